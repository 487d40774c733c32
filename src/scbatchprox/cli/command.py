"""Commands from functions: a parameter that stands for several options becomes these options.

Options that commands share are the fields of a dataclass, such as :class:`.output.Output`. A function with a
parameter of that type has all of them, where the parameter stands; ``Annotated[Output, "verbose"]`` is for
some of them. The options of the method are declared by a list, ``Annotated[dict[str, Any], method_flags()]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin

import typer

from .output import Output

__all__ = ["command"]

Command = Callable[..., None]


def command(
    app: typer.Typer, example: str, *, name: str | None = None, help: str | None = None
) -> Callable[[Command], Command]:
    """Make a function a command. Its ``output`` prints errors; the options of that come last."""

    def add(function: Command) -> Command:
        made = _command(function)
        app.command(name, help=help, epilog=f"Example: `{example}`")(made)
        return made

    return add


def _command(function: Command) -> Command:
    groups: dict[str, tuple[Callable[..., Any], list[Parameter]]] = {}
    options: list[Parameter] = []
    last: list[Parameter] = []
    for one in signature(function, eval_str=True).parameters.values():
        group = _group(one.annotation)
        if group is not None:
            groups[one.name] = group
        is_last = group is not None and group[0] is Output
        (last if is_last else options).extend([one] if group is None else group[1])

    def run(**given: Any) -> None:
        made = {
            name: make(**{one.name: given.pop(one.name) for one in those})
            for name, (make, those) in groups.items()
        }
        with made["output"].handle_errors():
            function(**made, **given)

    run.__name__, run.__doc__, run.__annotations__ = function.__name__, function.__doc__, {}
    # By name, so that options without a default may follow those with one.
    named = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*options, *last)]
    run.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return run


def _group(annotation: Any) -> tuple[Callable[..., Any], list[Parameter]] | None:
    """What makes one value of several options, and these options; ``None`` for a single option."""
    kind, *about = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
    if isinstance(kind, type) and is_dataclass(kind):
        known = signature(kind, eval_str=True).parameters
        return kind, [known[name] for name in about or known]
    return (dict, about[0]) if about and isinstance(about[0], list) else None
