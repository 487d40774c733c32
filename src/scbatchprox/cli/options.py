"""Options that several commands share, and the model that they define."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import Solvers
from ..errors import BadValue
from ..options import OF_OBJECTS, Function, Option, options_of, with_parameters

if TYPE_CHECKING:
    from ..api.estimator import BatchProx

__all__ = ["check_different", "cluster", "model_of", "result_path", "takes_method"]

_FILES, _METHOD, _OUTPUT = "Files", "Method", "Output"


In = Annotated[
    Path,
    typer.Argument(
        metavar="IN",
        help="A .h5ad, .zarr, .npy, .npz, .parquet, .csv or .tsv file; text may be gzipped.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write a copy of IN with the result here.", rich_help_panel=_FILES),
]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Write the result into IN.", rich_help_panel=_FILES)
]
BatchKey = Annotated[
    list[str],
    typer.Option(
        help="Column with the batch of each cell; repeat to combine columns.",
        rich_help_panel=_FILES,
    ),
]
MaybeBatchKey = Annotated[
    list[str] | None,
    typer.Option(
        help="Column with the batch of each cell; by default the model's.", rich_help_panel=_FILES
    ),
]
UseRep = Annotated[
    str | None,
    typer.Option(
        help="Embedding: a key of obsm (default X_pca), an array of an .npz, a prefix of table columns.",
        rich_help_panel=_FILES,
    ),
]
KeyAdded = Annotated[
    str | None,
    typer.Option(
        help="Name of the result; by default that of the embedding with _batchprox.",
        rich_help_panel=_FILES,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        help="Column that must survive, such as a condition; repeat for more. Verdicts tell whether it is "
        "confounded with batches, and how much of its variance is removed.",
        rich_help_panel=_FILES,
    ),
]
Diagnose = Annotated[
    bool | None,
    typer.Option(
        "--diagnose/--no-diagnose",
        help="Print a verdict per batch, or check nothing. By default --target population prints verdicts, "
        "and --target moment only warns, after a quick look, if it is wrong for these batches.",
        rich_help_panel=_OUTPUT,
    ),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option("--labels", help="A second file, with the labels.", rich_help_panel=_FILES),
]
ModelIn = Annotated[
    Path, typer.Option("--model", help="A model saved by refine --model.", rich_help_panel=_FILES)
]
ModelOut = Annotated[
    Path | None, typer.Option("--model", help="Save the fitted model here.", rich_help_panel=_FILES)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel=_OUTPUT)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print more, with details of errors.", rich_help_panel=_OUTPUT
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)
]
Dask = Annotated[
    bool,
    typer.Option("--dask", help="Compute on a local Dask cluster.", rich_help_panel=_METHOD),
]
Scheduler = Annotated[
    str | None,
    typer.Option(help="Compute on the Dask cluster at this address.", rich_help_panel=_METHOD),
]
PopulationKey = Annotated[
    str | None,
    typer.Option(
        help="Column with the population of each cell (--target population); by default populations are "
        "found.",
        rich_help_panel=_FILES,
    ),
]


def result_path(out: Path | None, in_place: bool, **others: Path | None) -> Path | None:
    """Return the path of the result, or ``None`` for the input; it must differ from other files."""
    if (out is None) != in_place:
        found = "both" if in_place else "neither"
        raise BadValue(f"Expected either --out or --in-place, found {found}.")
    check_different(**others, out=out)
    return out


def takes_method(
    *, everything: bool = False, only: Collection[str] = (), **defaults: Any
) -> Callable[[Function], Function]:
    """Give a command the options of the method in place of its ``**method``, where its ``*`` stands.

    ``everything`` includes the options that only ``refine`` has; ``defaults`` are those of this command.
    """
    known = [one for one in (*options_of(), *OF_OBJECTS) if one.everywhere or everything]
    wanted = [one for one in known if not only or one.name in only]
    return lambda command: with_parameters(
        command, [_flag(one, defaults) for one in wanted], last=False
    )


def _flag(option: Option, defaults: Mapping[str, Any]) -> Parameter:
    name = option.typed_name
    # A flag without a value would also have its opposite, unless it is named.
    names = [f"--{name.replace('_', '-')}"] if option.typed is bool else []
    about = typer.Option(*names, help=option.help, rich_help_panel=_METHOD)
    optional = option.typed | None if option.typed_default is None else option.typed
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=defaults.get(name, option.typed_default),
        annotation=Annotated[optional, about],
    )


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


def cluster(dask: bool, scheduler: str | None) -> str | None:
    """Return the cluster: ``None`` for this process, ``"local"``, or the address of a scheduler."""
    if dask and scheduler:
        raise BadValue("Expected --dask or --scheduler, found both.")
    return scheduler or ("local" if dask else None)


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
