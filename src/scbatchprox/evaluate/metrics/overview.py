"""Every score of an embedding in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import BadValue, MissingExtra
from ...kernels.arrays import Floats
from .cells import Cells, embedding
from .classification import f1_given_batch, leave_one_batch_out_f1, macro_f1
from .neighbours import N_NEIGHBOURS, Neighbours, mean_ilisi, mean_kept_in_batch
from .scib_scores import NEAREST, chosen, scib_library, scib_of
from .within import mixing_of, over_corrected, variance_kept

__all__ = ["neighbourhood_scores", "scores"]


def scores(
    Z: Any,
    batch: Any,
    cell_type: Any,
    *,
    before: Any = None,
    profile: str = "full",
    runs: int = 1,
    seed: int = 0,
    partial: bool = False,
) -> dict[str, float]:
    """Score an embedding by classification, by its neighbourhoods, and by scIB.

    Parameters
    ----------
    Z, batch, cell_type, before, profile, seed
        As for :func:`.scib`; the fast profile applies to all scores.
    runs
        Number of splits, with seeds ``seed``, ``seed + 1``, ...; ``macro_f1`` and ``f1_given_batch`` are
        means over them.
    partial
        Leave out scores whose package is not installed (``clisi``, ``ilisi``, ``graph_connectivity``, and
        the means ``bio``, ``batch`` and ``overall``), instead of an error.

    Returns
    -------
    dict
        ``macro_f1`` (and ``macro_f1_sd`` for several runs), ``f1_given_batch``, ``lobo_f1``,
        ``silhouette`` (of cell types, -1 to 1), ``ilisi_30``, ``mixing_within_types``,
        ``over_correction`` (lower is better), with ``before`` also ``variance_kept`` and
        ``neighbours_kept_in_batch`` (the mean of :func:`.neighbours_kept` within batches), and all that
        :func:`.scib` returns.

    Examples
    --------
    Needs the extra ``scib``.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import scores
    >>> found = scores(Z, batch, cell_type)
    >>> found["macro_f1"], found["lobo_f1"], found["over_correction"]
    (1.0, 1.0, 0.0)
    """
    if runs < 1:
        raise BadValue(f"Expected at least one run, found {runs}.")
    cells, first = chosen(Z, batch, cell_type, before, profile, seed)
    try:
        library = scib_library()
    except MissingExtra:
        if not partial:
            raise
        library = None
    near = Neighbours.of(cells.Z, NEAREST)
    splits = range(seed, seed + runs)
    f1 = [macro_f1(cells.Z, cells.cell_type, seed=split) for split in splits]
    given = [f1_given_batch(cells.Z, cells.cell_type, cells.batch, seed=split) for split in splits]
    by_scib = scib_of(cells, near, first, seed, library)
    spread = {"macro_f1_sd": float(np.std(f1))} if runs > 1 else {}
    return {
        "macro_f1": float(np.mean(f1)),
        **spread,
        "f1_given_batch": float(np.mean(given)),
        "silhouette": 2 * by_scib["asw_cell"] - 1,
        **_by_neighbours(cells, near, first),
        **by_scib,
    }


def neighbourhood_scores(Z: Any, batch: Any, cell_type: Any, before: Any) -> dict[str, float]:
    """Return the scores of :func:`scores` that use neighbours and spread; they do not need scib-metrics."""
    cells = Cells.of(Z, batch, cell_type)
    return _by_neighbours(cells, Neighbours.of(cells.Z, N_NEIGHBOURS), embedding(before))


def _by_neighbours(cells: Cells, near: Neighbours, before: Floats | None) -> dict[str, float]:
    """Return scores from given neighbours, at least ``N_NEIGHBOURS`` of each cell."""
    Z, batch, cell_type = cells.Z, cells.batch, cells.cell_type
    found = {
        "lobo_f1": leave_one_batch_out_f1(Z, cell_type, batch),
        "ilisi_30": mean_ilisi(near.indices[:, :N_NEIGHBOURS], batch),
        "mixing_within_types": mixing_of(cells, N_NEIGHBOURS),
        "over_correction": over_corrected(near.indices[:, :N_NEIGHBOURS], batch, cell_type),
    }
    if before is not None:
        found["variance_kept"] = variance_kept(before, Z, batch, cell_type)
        found["neighbours_kept_in_batch"] = mean_kept_in_batch(before, Z, batch, k=N_NEIGHBOURS)
    return found
