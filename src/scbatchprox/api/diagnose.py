"""The door to a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..cells import dask as lazy
from ..core.labels import Labels
from ..diagnosis.table import diagnosis
from .estimator import BatchProx

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["diagnose"]


def diagnose(
    Z: Any, batch: Any, *, model: BatchProx | None = None, seed: int = 0, **params: Any
) -> pd.DataFrame:
    """Say what a refinement would do to each batch, before anyone believes in it.

    Parameters
    ----------
    Z, batch
        Cells (N, d), in memory or a Dask array, and the batch of each.
    model
        A model that has been fitted to these batches; otherwise one is fitted here.
    seed
        Of the sample of cells that is looked at.
    params
        Parameters of the :class:`BatchProx` to fit.

    Returns
    -------
    One row per batch:

    ``n_cells``
        its cells;
    ``moved``
        root mean squared distance that a cell travels, in units of the batch's spread;
    ``scale_min``, ``scale_max``
        of all coordinates;
    ``matched``
        part of its cells whose population has a partner in another batch;
    ``composition``
        how different its make-up is from that of all others, 0 (the same) to 1 (nothing in common),
        beyond what chance explains; NaN for a batch that lies apart from all others;
    ``distinct``
        part of the variance of cells (of batches with partners) that is between groups of the consensus'
        centres, the same for all batches: where it is low populations blur into each other, and nobody can
        tell which are alike; NaN where there are too few populations for 20 groups;
    ``neighbours_kept``
        part of a cell's nearest neighbours in its own batch that still are;
    ``verdict``
        ``safe``, ``move with care: ...`` or ``leave alone: ...``.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import diagnose
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(600, 5)) + 8.0 * rng.integers(0, 3, size=(600, 1))
    >>> diagnose(Z, np.repeat(["a", "b"], 300))["verdict"].tolist()
    ['safe', 'safe']
    """
    Z = lazy.check_cells(Z)
    cells = lazy.cells_of(Z, Labels.of(lazy.in_memory(batch), Z.shape[0]))
    if model is None:
        model = BatchProx(**params).fit(Z, batch=cells.labels)
    return diagnosis(model.fit_, cells, seed=seed)
