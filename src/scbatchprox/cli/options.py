"""Options that several commands share, and the model that they define."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import Solvers
from ..errors import BadValue

if TYPE_CHECKING:
    from ..api.estimator import BatchProx

__all__ = ["Solvers", "check_different", "cluster", "model_of", "result_path"]

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
Target = Annotated[
    str,
    typer.Option(
        help="What batches are pulled to: moment, one mean and variance for all, as in the paper; or "
        "population, the matching populations of other batches.",
        rich_help_panel=_METHOD,
    ),
]
PopulationKey = Annotated[
    str | None,
    typer.Option(
        help="Column with the population of each cell (--target population); by default populations are "
        "found.",
        rich_help_panel=_FILES,
    ),
]
PerBatch = Annotated[
    bool,
    typer.Option(
        "--per-batch",
        help="One adapter row per batch, not per population (--target population).",
        rich_help_panel=_METHOD,
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Also move batches without evidence of a common geometry (--target population).",
        rich_help_panel=_METHOD,
    ),
]
Solver = Annotated[
    Solvers, typer.Option(help="How the adapter is fitted.", rich_help_panel=_METHOD)
]
Rounds = Annotated[
    str,
    typer.Option(
        help="Number of rounds, 'fixed-point' (--target moment), or 'auto': 3 for the moment target, 10 for "
        "the population target.",
        rich_help_panel=_METHOD,
    ),
]
LambdaTarget = Annotated[float, typer.Option(help="Weight of the target.", rich_help_panel=_METHOD)]
Mu = Annotated[
    float, typer.Option(help="Weight of the previous round (FedProx).", rich_help_panel=_METHOD)
]
LambdaId = Annotated[float, typer.Option(help="Weight of the identity.", rich_help_panel=_METHOD)]
Eps = Annotated[
    float | None,
    typer.Option(
        help="Added to standard deviations (--target moment); 1e-6 by default.",
        rich_help_panel=_METHOD,
    ),
]
MeanOnly = Annotated[
    bool,
    typer.Option(
        "--mean-only", help="Match means, not variances (--target moment).", rich_help_panel=_METHOD
    ),
]
Strength = Annotated[
    float, typer.Option(help="Part of the refinement to apply, 0 to 1.", rich_help_panel=_METHOD)
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Seed of adam's shuffling, or of the population target's clustering.",
        rich_help_panel=_METHOD,
    ),
]
Lr = Annotated[float | None, typer.Option(help="Adam's step size.", rich_help_panel=_METHOD)]
LocalEpochs = Annotated[
    int | None, typer.Option(help="Adam's epochs per round.", rich_help_panel=_METHOD)
]
BatchSize = Annotated[
    int | None, typer.Option(help="Adam's mini-batch size.", rich_help_panel=_METHOD)
]


def result_path(out: Path | None, in_place: bool, **others: Path | None) -> Path | None:
    """Return the path of the result, or ``None`` for the input; it must differ from other files."""
    if (out is None) != in_place:
        found = "both" if in_place else "neither"
        raise BadValue(f"Expected either --out or --in-place, found {found}.")
    check_different(**others, out=out)
    return out


def model_of(
    rounds: str,
    solver: str,
    adam: dict[str, Any],
    target: str,
    options: dict[str, Any],
    *,
    seed: int | None = None,
    **params: Any,
) -> BatchProx:
    """Return the unfitted model that the options define.

    ``adam`` has the options of that solver and ``options`` those of the targets, by the names of their flags.
    ``None`` and ``False`` mean that an option is not given.
    """
    from ..api.estimator import BatchProx
    from ..core.solvers import Adam

    given = {name: value for name, value in (adam | options).items() if value not in (None, False)}
    users = {"lr": "adam", "local_epochs": "adam", "batch_size": "adam"} | {
        "eps": "moment", "mean_only": "moment", "per_batch": "population",
        "force": "population",
    }  # fmt: skip
    if seed is not None:
        given["seed"] = seed
        users["seed"] = "adam" if solver == "adam" else "population"
        if solver != "adam" and target != "population":
            raise BadValue(
                f"Expected --seed only with --solver adam or --target population, found --solver "
                f"{solver} and --target {target}."
            )
    chosen = {"adam": ("--solver", solver)}
    for user in dict.fromkeys(users[name] for name in given):
        flag, found = chosen.get(user, ("--target", target))
        if found != user:
            flags = [f"--{name.replace('_', '-')}" for name in given if users[name] == user]
            raise BadValue(
                f"Expected {', '.join(flags)} only with {flag} {user}, found {flag} {found}."
            )
    if rounds not in ("auto", "fixed-point") and not rounds.isdecimal():
        raise BadValue(
            f"Expected --rounds to be a whole number, 'fixed-point' or 'auto', found {rounds!r}."
        )
    named = {"auto": "auto", "fixed-point": None}
    of = {user: {n: v for n, v in given.items() if users[n] == user} for user in users.values()}
    return BatchProx(
        target=_target(target, of.get(target, {})),
        solver=Adam(**of["adam"]) if solver == "adam" and of["adam"] else solver,
        rounds=named[rounds] if rounds in named else int(rounds),
        **params,
    )


def _target(target: str, options: dict[str, Any]) -> Any:
    """Return a target by its name, or with the options that are given."""
    from ..targets.moment import MomentTarget
    from ..targets.population.target import PopulationTarget

    if not options:
        return target
    if target == "moment":
        variance = {"variance_matching": False} if options.pop("mean_only", False) else {}
        return MomentTarget(**variance, **options)
    if options.pop("per_batch", False):
        options["conditioned"] = False
    return PopulationTarget(**options)


def cluster(dask: bool, scheduler: str | None) -> str | None:
    """Return the cluster: ``None`` for this process, ``"local"``, or the address of a scheduler."""
    if dask and scheduler:
        raise BadValue("Expected --dask or --scheduler, found both.")
    return scheduler or ("local" if dask else None)


def check_different(**paths: Path | None) -> None:
    """Check that the files of options are different."""
    from ..io.found import kind_at

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
