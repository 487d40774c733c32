"""Options that several commands share, and the model that they describe."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..api.estimator import BatchProx
from ..core.solvers import SOLVERS, Adam
from ..errors import BadValue
from ..targets.population.target import PopulationTarget

__all__ = ["Solvers", "cluster", "model_of", "where"]

_FILES, _METHOD, _OUTPUT = "Files", "Method", "Output"


class Solvers(StrEnum):
    """Solvers by name, for the parser."""

    exact = "exact"
    adam = "adam"


assert set(Solvers) == set(SOLVERS)

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
        help="Name of the result; by default the embedding's with _batchprox.",
        rich_help_panel=_FILES,
    ),
]
Diagnosed = Annotated[
    bool,
    typer.Option(
        "--diagnose/--no-diagnose",
        help="Look at what the refinement does to each batch, on a sample.",
        rich_help_panel=_OUTPUT,
    ),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option("--labels", help="A second file with the labels.", rich_help_panel=_FILES),
]
ModelIn = Annotated[
    Path, typer.Option("--model", help="A model saved by refine --model.", rich_help_panel=_FILES)
]
ModelOut = Annotated[
    Path | None, typer.Option("--model", help="Save the fitted model here.", rich_help_panel=_FILES)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but errors.", rich_help_panel=_OUTPUT)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Say more, with details of errors.", rich_help_panel=_OUTPUT
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Answer with one JSON object.", rich_help_panel=_OUTPUT)
]
Dask = Annotated[
    bool,
    typer.Option(
        "--dask", help="Work on a Dask cluster of this machine's cores.", rich_help_panel=_METHOD
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(help="Work on the Dask cluster at this address.", rich_help_panel=_METHOD),
]
Target = Annotated[
    str,
    typer.Option(
        help="Where batches are pulled: moment, all to one mean and spread, as in the paper; population, "
        "each to what it matches in others.",
        rich_help_panel=_METHOD,
    ),
]
Populations = Annotated[
    str | None,
    typer.Option(
        help="Column that tells what batches are made of, for --target population, which otherwise "
        "finds out.",
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
Solver = Annotated[
    Solvers, typer.Option(help="How the adapter is fitted.", rich_help_panel=_METHOD)
]
Rounds = Annotated[
    str,
    typer.Option(
        help="Strength: rounds of the procedure, 'fixed-point' (moment target), or 'auto': 3 for the moment "
        "target, 10 for the population target.",
        rich_help_panel=_METHOD,
    ),
]
LambdaTarget = Annotated[float, typer.Option(help="Pull to the target.", rich_help_panel=_METHOD)]
Mu = Annotated[float, typer.Option(help="FedProx weight.", rich_help_panel=_METHOD)]
LambdaId = Annotated[float, typer.Option(help="Pull to the identity.", rich_help_panel=_METHOD)]
Eps = Annotated[float, typer.Option(help="Added to standard deviations.", rich_help_panel=_METHOD)]
MeanOnly = Annotated[
    bool, typer.Option("--mean-only", help="Match means, not spreads.", rich_help_panel=_METHOD)
]
Strength = Annotated[
    float, typer.Option(help="Part of the refinement to apply, 0 to 1.", rich_help_panel=_METHOD)
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Of adam's shuffling, or of the population target's clustering.",
        rich_help_panel=_METHOD,
    ),
]
Lr = Annotated[float | None, typer.Option(help="Adam's step size.", rich_help_panel=_METHOD)]
LocalEpochs = Annotated[
    int | None, typer.Option(help="Adam's passes a round.", rich_help_panel=_METHOD)
]
BatchSize = Annotated[int | None, typer.Option(help="Adam's mini-batch.", rich_help_panel=_METHOD)]


def where(out: Path | None, in_place: bool, **others: Path | None) -> Path | None:
    """Return where the result goes, apart from other files: a path, or ``None`` for the input."""
    if (out is None) != in_place:
        found = "both" if in_place else "neither"
        raise BadValue(f"Expected either --out or --in-place, found {found}.")
    apart(**others, out=out)
    return out


def model_of(
    rounds: str,
    solver: str,
    adam: dict[str, Any],
    target: str,
    population: dict[str, Any],
    *,
    seed: int | None = None,
    **params: Any,
) -> BatchProx:
    """Return the unfitted model that the options describe; ``None`` is an option that is not given."""
    to_adam: dict[str, Any] = {} if seed is None else {"seed": seed}
    to_target = dict(to_adam)
    to_adam |= {name: value for name, value in adam.items() if value is not None}
    to_target |= {name: value for name, value in population.items() if value not in (None, False)}
    uses = (
        (to_adam, solver == "adam", f"--solver adam, found --solver {solver}"),
        (to_target, target == "population", f"--target population, found --target {target}"),
    )
    for given, used, only in uses:
        names = [name for name in given if name != "seed" or not any(used for _, used, _ in uses)]
        if names and not used:
            flags = ", ".join("--" + name.replace("_", "-") for name in names)
            raise BadValue(f"Expected {flags} only with {only}.")
    if rounds not in ("auto", "fixed-point") and not rounds.isdecimal():
        raise BadValue(
            f"Expected --rounds to be a whole number, 'fixed-point' or 'auto', found {rounds!r}."
        )
    named = {"auto": "auto", "fixed-point": None}
    per_batch = to_target.pop("per_batch", False)
    if per_batch:
        to_target["conditioned"] = False
    return BatchProx(
        target=PopulationTarget(**to_target) if target == "population" and to_target else target,
        solver=Adam(**to_adam) if solver == "adam" and to_adam else solver,
        rounds=named[rounds] if rounds in named else int(rounds),
        **params,
    )


def cluster(dask: bool, scheduler: str | None) -> str | None:
    """Return where to compute: ``None`` for here, ``"local"`` or the address of a scheduler."""
    if dask and scheduler:
        raise BadValue("Expected --dask or --scheduler, found both.")
    return scheduler or ("local" if dask else None)


def apart(**paths: Path | None) -> None:
    """Check that no two of the files named by options are one."""
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        place = path.resolve()
        if place in seen:
            raise BadValue(
                f"Expected different files for {seen[place]} and --{name}, found {path} for both."
            )
        seen[place] = "IN" if name == "path" else f"--{name}"
