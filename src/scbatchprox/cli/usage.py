"""The words of the command line: parameters as options, and messages on wrong use, which typer prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from typer.core import TyperGroup

from ..errors import Parameter
from .plain import plain

__all__ = ["PlainGroup", "as_typed"]


class PlainGroup(TyperGroup):
    """The commands; a message on wrong use may quote a file name, which is made safe to print."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse options that come before a command."""
        with _plain_messages():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse and run a command."""
        with _plain_messages():
            return super().invoke(ctx)


def as_typed(parameter: Parameter) -> str:
    """Return a parameter as an option of the running command: ``--use-rep``, ``--target moment``."""
    # typer has its own copy of click, or uses click itself, by its version.
    parsing = TyperGroup.__mro__[1].__module__.rpartition(".")[0]
    context = import_module(f"{parsing}.globals").get_current_context(silent=True)
    name, _, value = parameter.python.partition("=")
    for option in [] if context is None else context.command.params:
        if option.param_type_name != "option" or option.name != name:
            continue
        if value == "False" and option.secondary_opts:
            return str(option.secondary_opts[0])
        flag, value = str(option.opts[0]), value.strip("'")
        return flag if value in ("", "True") else f"{flag} {value}"
    return parameter.flag or str(parameter)


@contextmanager
def _plain_messages() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Known by its method, because the module of the class depends on the version of typer.
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = plain(error.message)  # type: ignore[attr-defined]
        raise
