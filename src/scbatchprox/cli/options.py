"""Options that several commands share, and the model that they define."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import Solvers
from ..errors import BadValue
from ..options import OF_OBJECTS, Option, options_of
from .output import Json, Output, Quiet, Verbose

if TYPE_CHECKING:
    from ..api.estimator import BatchProx

__all__ = [
    "CellFileOptions", "Cluster", "Json", "Quiet", "Result", "Verbose", "check_different", "files",
    "how", "method_flags", "model_of", "printing",
]  # fmt: skip

#: Options by the panel of the help that they are in.
files = partial(typer.Option, rich_help_panel="Files")
how = partial(typer.Option, rich_help_panel="Method")
printing = partial(typer.Option, rich_help_panel="Output")

#: Output of commands that have no result to print.
NoJson = Annotated[Output, "quiet", "verbose"]
VerboseOnly = Annotated[Output, "verbose"]
#: Output of commands that only print.
NoQuiet = Annotated[Output, "verbose", "as_json"]

In = Annotated[
    Path,
    typer.Argument(
        metavar="IN",
        help="A .h5ad, .zarr, .npy, .npz, .parquet, .csv or .tsv file; text may be gzipped.",
    ),
]
BatchKey = Annotated[
    list[str], files(help="Column with the batch of each cell; repeat to combine columns.")
]
MaybeBatchKey = Annotated[
    list[str] | None, files(help="Column with the batch of each cell; by default the model's.")
]
UseRep = Annotated[
    str | None,
    files(
        help="Embedding: a key of obsm (default X_pca), an array of an .npz, a prefix of table columns."
    ),
]
KeyAdded = Annotated[
    str | None, files(help="Name of the result; by default that of the embedding with _batchprox.")
]
Keep = Annotated[
    list[str] | None,
    files(
        help="Column that must survive, such as a condition; repeat for more. Verdicts tell whether it is "
        "confounded with batches, and how much of its variance is removed."
    ),
]
LabelsFile = Annotated[Path | None, files("--labels", help="A second file, with the labels.")]
PopulationKey = Annotated[
    str | None,
    files(
        help="Column with the population of each cell (--target population); by default populations are "
        "found."
    ),
]
ModelOut = Annotated[Path | None, files("--model", help="Save the fitted model here.")]


@dataclass
class CellFileOptions:
    """The file with the cells, and what is read of it: parameters of the functions for files."""

    path: In
    batch_key: BatchKey
    use_rep: UseRep = None
    labels: LabelsFile = None
    population_key: PopulationKey = None
    keep: Keep = None


@dataclass
class Result:
    """Where the result goes."""

    out: Annotated[Path | None, files(help="Write a copy of IN with the result here.")] = None
    in_place: Annotated[bool, files("--in-place", help="Write the result into IN.")] = False

    def place(self, **others: Path | None) -> Path | None:
        """Return the path of the result, or ``None`` for the input; it must differ from other files."""
        if (self.out is None) != self.in_place:
            found = "both" if self.in_place else "neither"
            raise BadValue(f"Expected either --out or --in-place, found {found}.")
        check_different(**others, out=self.out)
        return self.out


@dataclass
class Cluster:
    """Where the work is done."""

    dask: Annotated[bool, how("--dask", help="Compute on a local Dask cluster.")] = False
    scheduler: Annotated[str | None, how(help="Compute on the Dask cluster at this address.")] = (
        None
    )

    def address(self) -> str | None:
        """Return ``None`` for this process, ``"local"``, or the address of a scheduler."""
        if self.dask and self.scheduler:
            raise BadValue("Expected --dask or --scheduler, found both.")
        return self.scheduler or ("local" if self.dask else None)


def method_flags(
    *, everything: bool = False, only: Collection[str] = (), **defaults: Any
) -> list[Parameter]:
    """Return the options of the method.

    ``everything`` includes the options that only ``refine`` has; ``defaults`` are those of a command.
    """
    known = [one for one in (*options_of(), *OF_OBJECTS) if one.everywhere or everything]
    return [_flag(one, defaults) for one in known if not only or one.name in only]


def _flag(option: Option, defaults: Mapping[str, Any]) -> Parameter:
    name = option.typed_name
    # A flag without a value would also have its opposite, unless it is named.
    names = [f"--{name.replace('_', '-')}"] if option.typed is bool else []
    optional = option.typed | None if option.typed_default is None else option.typed
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=defaults.get(name, option.typed_default),
        annotation=Annotated[optional, how(*names, help=option.help)],
    )


#: The options of the method that all commands have which fit.
Method = Annotated[dict[str, Any], method_flags()]


def model_of(method: Mapping[str, Any]) -> BatchProx:
    """Return the unfitted model that the options of a command define.

    ``None`` and ``False`` mean that an option of a target or a solver is not given.
    """
    from ..api.estimator import BatchProx
    from ..core.solvers import SOLVERS
    from ..targets.method import TARGETS

    own = {one.name: method[one.name] for one in options_of() if one.name in method}
    own["solver"] = str(own.get("solver", Solvers.exact))
    chosen = {"--solver": own["solver"], "--target": own["target"]}
    given: dict[str, dict[str, Any]] = {}
    for option in OF_OBJECTS:
        value = method.get(option.typed_name)
        if value is None or value is False:
            continue
        user = next((name for name in option.of if name in chosen.values()), None)
        if user is None:
            raise _unused(option, method, chosen)
        given.setdefault(user, {})[option.name] = value if option.sets is None else option.sets
    for flag, objects in (("--solver", SOLVERS), ("--target", TARGETS)):
        name = chosen[flag]
        if name in given:
            own[flag.removeprefix("--")] = objects[name](**given[name])
    rounds = own["rounds"]
    if rounds not in ("auto", "fixed-point") and not rounds.isdecimal():
        raise BadValue(
            f"Expected --rounds to be a whole number, 'fixed-point' or 'auto', found {rounds!r}."
        )
    named = {"auto": "auto", "fixed-point": None}
    return BatchProx(**own | {"rounds": named[rounds] if rounds in named else int(rounds)})


def _unused(option: Option, method: Mapping[str, Any], chosen: Mapping[str, str]) -> BadValue:
    """The error on options of a target or a solver that is not chosen."""
    alike = [
        f"--{one.typed_name.replace('_', '-')}"
        for one in OF_OBJECTS
        if one.of == option.of and method.get(one.typed_name) not in (None, False)
    ]
    kinds = {name: "--solver" if name in list(Solvers) else "--target" for name in option.of}
    wanted = " or ".join(f"{kind} {name}" for name, kind in kinds.items())
    found = " and ".join(f"{kind} {chosen[kind]}" for kind in dict.fromkeys(kinds.values()))
    return BadValue(f"Expected {', '.join(alike)} only with {wanted}, found {found}.")


def check_different(**paths: Path | None) -> None:
    """Check that the files of options are different."""
    from ..io.atomic import kind_at

    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        kind_at(path)  # a circle of links is an error, which resolving it would not tell as such
        place = path.resolve()
        if place in seen:
            raise BadValue(
                f"Expected different files for {seen[place]} and --{name}, found {path} for both."
            )
        seen[place] = "IN" if name == "path" else f"--{name}"
