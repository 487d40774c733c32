"""How far cells are from an atlas; for cells of a file, written to a table or into the file itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..cells.file import Job
from ..cells.reading import LocalCells
from ..core.checks import check_embedding, nonfinite_error
from ..core.moments import Moments
from ..errors import BadValue
from ..io.atomic import replacing
from ..io.damaged import reading
from ..io.formats import kind_of
from ..kernels.arrays import Floats
from ..kernels.blocks import BLOCK_BYTES
from ..progress import Progress
from .judging import min_spread

__all__ = [
    "CELL_FAR",
    "cell_scores",
    "check_score_outputs",
    "far_cells",
    "score_file",
    "write_scores",
]

#: Cells further than this from every batch are flagged. For normal data the probability is 1 % with one
#: coordinate, 0.2 % with two, and close to zero with ten.
CELL_FAR = 2.5

#: Standard deviations of a batch, in spreads, are at least this when cells are scored: a batch of a few
#: cells gives a poor estimate.
_MIN_STD = 0.1
DISTANCE, FLAG = "atlas_distance", "atlas_far"


def cell_scores(moments: Moments, Z: Any) -> Floats:
    """(N,) distance of each cell (N, d) from the nearest batch: about 1 is usual, see ``CELL_FAR``.

    The distance from a batch is the root mean square, over coordinates, of the distance from its mean in
    standard deviations of the batch. Cells are not refined: a new batch has no row in the adapter yet.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import Moments
    >>> from scbatchprox.atlas import cell_scores
    >>> Z = np.random.default_rng(0).normal(size=(200, 5))
    >>> moments = Moments.of(Z, np.repeat(["a", "b"], 100))
    >>> (cell_scores(moments, np.array([[0.0] * 5, [9.0] * 5])) > 2.5).tolist()
    [False, True]
    """
    Z = check_embedding(Z)
    if Z.shape[1] != moments.n_dims:
        raise BadValue(f"Expected {moments.n_dims} coordinates per cell, found {Z.shape[1]}.")
    total = moments.pooled()
    unit = np.maximum(total.std, min_spread(total))
    centre = (moments.mean - total.mean) / unit
    weight = 1.0 / np.maximum(moments.std / unit, _MIN_STD) ** 2
    # Squares are expanded into two matrix products. That is accurate enough, because coordinates are centred
    # and weights are bounded.
    linear, constant = 2.0 * centre * weight, (centre**2 * weight).sum(1)
    scores = np.empty(Z.shape[0])
    step = max(1, 4 * BLOCK_BYTES // (8 * (moments.batches.size + 2 * moments.n_dims)))
    for lo in range(0, Z.shape[0], step):
        block = Z[lo : lo + step]
        block = block.toarray() if hasattr(block, "toarray") else block
        with np.errstate(invalid="ignore", over="ignore"):
            x = (block - total.mean) / unit
            squared = (x**2) @ weight.T - x @ linear.T + constant
        scores[lo : lo + step] = np.sqrt(np.maximum(squared.min(1), 0.0) / moments.n_dims)
    if not np.isfinite(scores).all():
        raise nonfinite_error(Z)
    return scores


def score_file(job: Job, moments: Moments, progress: Progress) -> Floats:
    """(N,) distance of each cell of a file from the nearest batch; reads the file once more."""
    scores = np.empty(job.rows.shape[0])
    for lo, block in LocalCells(job, progress).chunks():
        hi = lo + block.shape[0]
        scores[lo:hi] = cell_scores(moments, block)
        progress("scores", hi, scores.size)
    return scores


def far_cells(job: Job, scores: Floats) -> list[int]:
    """Count the cells of each batch that are far from the atlas."""
    codes = job.labels.codes[scores > CELL_FAR]
    counts: list[int] = np.bincount(codes, minlength=job.labels.batches.size).tolist()
    return counts


def check_score_outputs(path: str | Path, scores_out: str | Path | None, mark: bool) -> None:
    """Raise an error if scores cannot be written, before anything is read."""
    if mark and kind_of(path) != ".h5ad":
        raise BadValue(
            f"Expected an .h5ad file to mark cells in, found {Path(path).name}; write the scores to a "
            f".csv instead."
        )
    if scores_out is not None:
        if Path(scores_out).suffix != ".csv":
            raise BadValue(f"Expected a .csv for the scores, found {Path(scores_out).name!r}.")
        if Path(scores_out).resolve() == Path(path).resolve():
            raise BadValue(
                f"Expected different files for the scores and the input, found {path} for both."
            )
        if not Path(scores_out).resolve().parent.is_dir():
            raise BadValue(
                f"Expected a folder for the scores, found none at {Path(scores_out).parent}."
            )


def write_scores(
    path: str | Path,
    state: os.stat_result,
    scores: Floats,
    scores_out: str | Path | None,
    mark: bool,
) -> None:
    """Write scores and flags to a table, to ``obs`` of the file in this state, or to both."""
    columns = {DISTANCE: scores, FLAG: scores > CELL_FAR}
    if scores_out is not None:
        table = pd.DataFrame(columns, index=pd.RangeIndex(scores.size, name="row"))
        with replacing(scores_out) as partial:
            table.to_csv(partial)
    if mark:
        with reading(path):  # a damaged file may be readable, and yet nothing can be added to it
            _write_obs(Path(path), state, columns)


def _write_obs(path: Path, state: os.stat_result, columns: dict[str, np.ndarray]) -> None:
    """Add columns to ``obs`` of an .h5ad file; after a failure the file is unchanged."""
    import h5py
    from anndata.io import write_elem

    from ..io.formats.elements import own_group, parts_of
    from ..io.formats.h5ad import changing

    with changing(path, state) as file:
        obs = own_group(file, "obs")
        order = ["/".join(parts_of(name)) for name in obs.attrs["column-order"]]
        for name, values in columns.items():
            if name in obs:
                del obs[name]
            write_elem(obs, name, values)
        order += [name for name in columns if name not in order]
        obs.attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())
