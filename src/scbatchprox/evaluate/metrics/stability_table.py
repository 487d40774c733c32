"""How far a refinement moved the cells of each batch, type and population."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ...kernels.arrays import Floats, Ints
from .cells import embedding, groups
from .neighbours import N_NEIGHBOURS, neighbours_kept

__all__ = ["stability"]


def stability(
    before: Any,
    after: Any,
    batch: Any,
    cell_type: Any = None,
    *,
    k: int = N_NEIGHBOURS,
    rare: float = 0.05,
) -> pd.DataFrame:
    r"""How far cells moved, and how many of their neighbours they kept, group by group.

    Parameters
    ----------
    before, after
        (N, d) and (N, d') embeddings of the same cells.
    batch, cell_type
        One label of each kind per cell; without types there are only rows for batches.
    k
        Number of neighbours.
    rare
        Types with less than this share of all cells are called rare.

    Returns
    -------
    DataFrame
        A row per group: ``kind`` (``"batch"``, ``"cell type"``, ``"rare type"``, or ``"population"``
        for the cells of one type in one batch), ``name``, ``n`` (cells), ``moved`` (the root mean
        squared displacement of its cells), ``relative`` (``moved`` divided by the spread of the group
        before, the root mean squared distance from its mean), ``neighbours_kept`` (mean share of the
        k nearest neighbours).

        Displacements only make sense if the second embedding is a refinement of the first: ``moved``
        and ``relative`` are NaN if their numbers of coordinates differ. ``relative`` is also NaN if all
        cells of the group have the same coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import stability
    >>> stability(Z, Z + 1.0, batch)[["name", "n", "moved", "neighbours_kept"]].round(2).values.tolist()
    [['a', 50, 1.73, 1.0], ['b', 50, 1.73, 1.0]]
    """
    first, second = embedding(before), embedding(after)
    kept = neighbours_kept(first, second, k=k)
    n = len(first)
    batches = groups(batch, n, "batch label")
    kinds = [np.full(batches.batches.size, "batch")]
    names = [batches.batches.tolist()]
    codes: list[Ints] = [batches.codes]
    if cell_type is not None:
        types = groups(cell_type, n, "cell type")
        kinds.append(np.where(types.n < rare * n, "rare type", "cell type"))
        names.append(types.batches.tolist())
        codes.append(types.codes)
        found, population = np.unique(
            types.codes.astype(np.int64) * batches.batches.size + batches.codes,
            return_inverse=True,
        )
        of_type, of_batch = np.divmod(found, batches.batches.size)
        kinds.append(np.full(found.size, "population"))
        names.append(
            [
                f"{t} | {b}"
                for t, b in zip(types.batches[of_type], batches.batches[of_batch], strict=True)
            ]
        )
        codes.append(population)
    tables = [
        pd.DataFrame({"kind": kind, "name": name} | _movement(first, second, kept, code))
        for kind, name, code in zip(kinds, names, codes, strict=True)
    ]
    return pd.concat(tables, ignore_index=True)


def _movement(before: Floats, after: Floats, kept: Floats, codes: Ints) -> dict[str, np.ndarray]:
    """Return columns of the table for one grouping of the cells."""
    n = np.bincount(codes)
    centre = np.zeros((n.size, before.shape[1]))
    np.add.at(centre, codes, before)
    centre /= n[:, None]
    spread = np.sqrt(np.bincount(codes, ((before - centre[codes]) ** 2).sum(1)) / n)
    moved = np.full(n.size, np.nan)
    if before.shape == after.shape:
        moved = np.sqrt(np.bincount(codes, ((after - before) ** 2).sum(1)) / n)
    return {
        "n": n,
        "moved": moved,
        "relative": np.divide(moved, spread, out=np.full(n.size, np.nan), where=spread > 0),
        "neighbours_kept": np.bincount(codes, kept) / n,
    }
