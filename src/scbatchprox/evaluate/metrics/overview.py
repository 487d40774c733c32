"""Every score of an embedding in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import BadValue
from .classification import leave_one_batch_out_f1, macro_f1
from .neighbours import Neighbours, mean_ilisi
from .scib_scores import NEAREST, chosen, scib_of

__all__ = ["scores"]


def scores(
    Z: Any,
    batch: Any,
    cell_type: Any,
    *,
    before: Any = None,
    profile: str = "full",
    runs: int = 1,
    seed: int = 0,
) -> dict[str, float]:
    """Score an embedding by classification, by its neighbourhoods, and by scIB.

    Parameters
    ----------
    Z, batch, cell_type, before, profile, seed
        As for :func:`.scib`; the fast profile holds for all scores.
    runs
        Splits, of seeds ``seed``, ``seed + 1``, ..., that ``macro_f1`` is the mean of.

    Returns
    -------
    dict
        ``macro_f1`` (and, of several runs, ``macro_f1_sd``), ``lobo_f1``, ``silhouette`` (of cell
        types, -1 to 1), ``ilisi_30``, and all that :func:`.scib` returns.
    """
    if runs < 1:
        raise BadValue(f"Expected at least one run, found {runs}.")
    cells, first = chosen(Z, batch, cell_type, before, profile, seed)
    near = Neighbours.of(cells.Z, NEAREST)
    f1 = [macro_f1(cells.Z, cells.cell_type, seed=seed + run) for run in range(runs)]
    by_scib = scib_of(cells, near, first, seed)
    spread = {"macro_f1_sd": float(np.std(f1))} if runs > 1 else {}
    return {
        "macro_f1": float(np.mean(f1)),
        **spread,
        "lobo_f1": leave_one_batch_out_f1(cells.Z, cells.cell_type, cells.batch),
        "silhouette": 2 * by_scib["asw_cell"] - 1,
        "ilisi_30": mean_ilisi(near.indices[:, :30], cells.batch),
        **by_scib,
    }
