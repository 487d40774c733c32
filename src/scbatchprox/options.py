"""The options of the method: the only place that declares them.

A field of :class:`Options` is a parameter of :class:`scbatchprox.BatchProx`, and so of every function that
fits one, and of the plans of sites. The commands have a flag for it, with its help, and the page of options
a line. :data:`OF_OBJECTS` are flags for options of targets and solvers, which these classes declare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from inspect import Parameter, signature
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any, TypeVar

from .choices import LAMBDA_ID, LAMBDA_TARGET, MU, Solvers

if TYPE_CHECKING:
    from .core.solvers import Solver
    from .core.target import TargetRule

__all__ = [
    "OF_OBJECTS",
    "Option",
    "Options",
    "described",
    "options_of",
    "takes_options",
    "with_parameters",
]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes
    ----------
    help
        A sentence for the command line and the page of options.
    more
        What Python users read in place of it, if they need more.
    typed
        Its type on the command line.
    name, default
        Its name and default in Python.
    of
        The targets or solvers whose option it is; none for one of the method itself.
    flag, sets
        Its name on the command line, if that is another; such a flag sets the option to this value.
    everywhere
        Whether all commands that fit have it, or only ``refine``.
    """

    help: str
    more: str = ""
    typed: Any = float
    name: str = ""
    default: Any = None
    of: tuple[str, ...] = ()
    flag: str = ""
    sets: Any = None
    everywhere: bool = True

    @property
    def typed_name(self) -> str:
        """Its name on the command line, with "_" for "-"."""
        return self.flag or self.name

    @property
    def typed_default(self) -> Any:
        """Its default on the command line; of an object's option nothing, since the object knows it."""
        if self.of:
            return False if self.typed is bool else None
        return self.default if self.default is None else self.typed(self.default)


def own(default: Any, help: str, more: str = "", **about: Any) -> Any:
    """Declare an option of the method."""
    return field(default=default, metadata={"option": Option(help, more, **about)})


@dataclass(eq=False, repr=False)
class Options:
    """The options of the method; targets and solvers are given by name or as objects."""

    target: str | TargetRule = own(  # noqa: RUF009 - it is a field
        "population",
        "What batches are pulled to: moment, one mean and variance for all, as in the paper; or population, "
        "the matching populations of other batches.",
        '``"population"``: each population of a batch moves to its partners in other batches, and unmatched '
        'populations follow their batch. ``"moment"``: every batch moves to the mean and standard deviation '
        "of all cells, as in the paper; the fastest, and it has an inverse. Or a target object with options: "
        ":class:`MomentTarget` (such as ``MomentTarget(variance_matching=False)``) or "
        ":class:`PopulationTarget`.",
        typed=str,
    )
    solver: str | Solver = own(  # noqa: RUF009 - it is a field
        "exact",
        "How the adapter is fitted.",
        '``"exact"`` (closed form), ``"adam"`` (the paper\'s optimiser), or a solver object with options, '
        "such as ``Adam(seed=1)``.",
        typed=Solvers,
        everywhere=False,
    )
    rounds: int | str | None = own(
        "auto",
        "Number of rounds, 'fixed-point' (--target moment), or 'auto': 3 for the moment target, 10 for the "
        "population target.",
        "Number of federated rounds; ``None`` is their fixed point (exact solver only). Few rounds are "
        "conservative. In few rounds small batches move less than large ones, because a client's weight in "
        'the average is its share of the cells. ``"auto"`` is 3 for the moment target and 10 for the '
        "population target, where it counts rounds of registration after the first, coarse ones. 0 is "
        "the identity.",
        typed=str,
    )
    lambda_target: float = own(
        LAMBDA_TARGET,
        "Weight of the target.",
        "Weight of the distance to the target, or of the evidence for the target.",
    )
    mu: float = own(
        MU,
        "Weight of the previous round (FedProx).",
        'Weight of the proximal term, which pulls to the previous round; 0 is "without FedProx".',
    )
    lambda_id: float = own(
        LAMBDA_ID,
        "Weight of the identity.",
        'Weight of the identity term, which pulls to no change; 0 is "without identity".',
    )
    strength: float = own(
        1.0,
        "Part of the refinement to apply, 0 to 1.",
        "How much of the refinement to apply, from 0 (no cell moves) to 1.",
    )


_OWN = fields(Options)
del Options.__dataclass_fields__  # the estimator has this signature, but is no dataclass
_MOMENT, _POPULATION, _ADAM = ("moment",), ("population",), ("adam",)
OF_OBJECTS = (
    Option(
        "One adapter row per batch, not per population (--target population).",
        typed=bool, name="conditioned", of=_POPULATION, flag="per_batch", sets=False,
    ),
    Option(
        "Also move batches without evidence of a common geometry (--target population).",
        typed=bool, name="force", of=_POPULATION, everywhere=False,
    ),
    Option("Added to standard deviations (--target moment); 1e-6 by default.", name="eps", of=_MOMENT),
    Option(
        "Match means, not variances (--target moment).",
        typed=bool, name="variance_matching", of=_MOMENT, flag="mean_only", sets=False,
    ),
    Option(
        "Seed of adam's shuffling, or of the population target's clustering.",
        typed=int, name="seed", of=_ADAM + _POPULATION,
    ),
    Option("Adam's step size.", name="lr", of=_ADAM, everywhere=False),
    Option("Adam's epochs per round.", typed=int, name="local_epochs", of=_ADAM, everywhere=False),
    Option("Adam's mini-batch size.", typed=int, name="batch_size", of=_ADAM, everywhere=False),
)  # fmt: skip


def options_of() -> list[Option]:
    """Return the options of the method itself, with their names and defaults."""
    return [
        Option(**vars(one.metadata["option"]) | {"name": one.name, "default": one.default})
        for one in _OWN
    ]


def described(text: str | None) -> str:
    """Return a docstring with the options in place of ``{options}``."""
    lines = [
        line
        for one in options_of()
        for line in (one.name, indent(fill(one.more or one.help, 100), "    "))
    ]
    return (text or "").replace("{options}", indent("\n".join(lines), "    ").lstrip())


def with_parameters(function: Function, parameters: Iterable[Parameter]) -> Function:
    """Give a function, whose last parameter is ``**options``, a signature with these in place of it."""
    signed = signature(function)
    *before, _ = signed.parameters.values()
    function.__signature__ = signed.replace(parameters=[*before, *parameters])  # type: ignore[attr-defined]
    return function


def takes_options(function: Function) -> Function:
    """Show the options of the method in the signature of a function that passes them on as ``**options``."""
    own = signature(Options).parameters.values()
    return with_parameters(function, [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own])
