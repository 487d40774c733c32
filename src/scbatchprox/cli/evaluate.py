"""The command ``scbatchprox evaluate``: scores of the embeddings in a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import Profiles
from ..errors import BadValue
from . import options as o
from .output import Output

if TYPE_CHECKING:
    import pandas as pd

    from ..evaluate.comparison import Comparison, Scored

__all__ = ["evaluate"]


def evaluate(
    output: Output,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A file with named embeddings: .h5ad, .zarr, .npz, .parquet, .csv or .tsv.",
        ),
    ],
    batch_key: o.BatchKey,
    label_key: Annotated[str, o.files(help="Column with the type of each cell.")],
    reps: Annotated[str, o.files(help="Embeddings, separated by commas, the unrefined one first.")],
    labels: o.LabelsFile = None,
    out: Annotated[Path | None, o.files(help="Write all numbers to this .csv.")] = None,
    profile: Annotated[Profiles, o.how(help="fast: on about 5,000 cells.")] = Profiles.full,
    runs: Annotated[int, o.how(help="Number of splits for macro-F1.")] = 5,
    seed: Annotated[int, o.how(help="Seed of splits, clusters and samples.")] = 0,
) -> None:
    """Score embeddings of a file: separation of cell types, mixing of batches, and movement."""
    from ..evaluate.comparison import evaluate_file
    from ..io.atomic import replacing

    o.check_different(path=path, labels=labels, out=out)
    if out is not None and (out.suffix != ".csv" or not out.resolve().parent.is_dir()):
        raise BadValue(f"Expected a place for a .csv as --out, found {out}.")
    with output.progress(cells=False) as progress:
        scored = evaluate_file(
            path, batch_key, label_key, [rep.strip() for rep in reps.split(",")], labels=labels,
            profile=profile.value, runs=runs, seed=seed, progress=progress,
        )  # fmt: skip
    found = scored.comparison
    if out is not None:
        with replacing(out) as partial:
            found.long().to_csv(partial, index=False)
    output.print_line(_summary(scored, label_key))
    output.print_table(_table(found), verbatim=found.scores.columns)
    output.print_line("", "Higher is better, except for macro_f1_sd and over_correction.")
    if found.missing:
        output.print_line(
            f"{', '.join(found.missing)} need scib-metrics: pip install 'scbatchprox[scib]'."
        )
    _show_movement(output, found)
    if out is not None:
        output.print_line("", f"wrote {out}")
    output.print_json(_facts(scored) | {"profile": profile.value, "out": out and str(out)})


def _summary(scored: Scored, label_key: str) -> str:
    """Return a line on the cells that were scored."""
    counts = (labels.batches.size for labels in (scored.batch, scored.cell_type))
    line = "{:,} cells, batches: {}, cell types: {}".format(scored.n_cells, *counts)
    labelled = scored.n_in_file - scored.n_unlabelled
    if scored.n_cells < labelled:
        line += f"; a sample of {labelled:,} cells"
    if scored.n_unlabelled:
        line += f"; {scored.n_unlabelled:,} cells without a {label_key} are left out"
    return line


def _table(found: Comparison) -> pd.DataFrame:
    """Return scores as text: one column per embedding, followed by its difference to the first."""
    import pandas as pd

    first, *others = found.scores
    columns = [found.scores[first].map(_number)]
    change = found.change.reindex(found.scores.index)
    for rep in others:
        columns += [found.scores[rep].map(_number), change[rep].map(_signed).rename("change")]
    return pd.concat(columns, axis=1)


def _show_movement(output: Output, found: Comparison) -> None:
    """Print the movement of batches and rare types; ``--json`` has all types and populations."""
    first, *others = found.scores
    for rep in others:
        table = found.stability
        rows = table[(table["rep"] == rep) & table["kind"].isin(["batch", "rare type"])]
        numbers = ["moved", "relative", "neighbours_kept"]
        rows = rows[["name", "kind", "n"]].join(rows[numbers].map(_distance)).set_index("name")
        rows = rows.rename(columns={"n": "cells", "relative": "per spread"})
        output.print_line(
            "", f"From {first} to {rep}, cells of each batch and each rare type moved by"
        )
        output.print_table(rows)


def _number(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.3f}"


def _distance(x: float) -> str:
    # Embeddings may have any scale, so a small distance also has three digits.
    return f"{x:.3g}" if 0 < abs(x) < 0.1 else _number(x)


def _signed(x: float) -> str:
    return "" if math.isnan(x) else f"{round(x, 3) + 0.0:+.3f}"


def _facts(scored: Scored) -> dict[str, Any]:
    found = scored.comparison
    by_rep = found.stability.groupby("rep", sort=False)
    return {
        "n_cells": scored.n_cells,
        "n_cells_in_file": scored.n_in_file,
        "n_unlabelled": scored.n_unlabelled,
        "batches": scored.batch.batches.tolist(),
        "cell_types": scored.cell_type.batches.tolist(),
        "baseline": found.scores.columns[0],
        "scores": found.scores.to_dict(),
        "change": found.change.to_dict(),
        "missing": found.missing,
        "stability": {rep: rows.drop(columns="rep").to_dict("records") for rep, rows in by_rep},
    }
