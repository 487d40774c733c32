"""What a refinement does to each batch, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from ..cells import dask as lazy
from ..core.checks import check_array_like
from ..core.labels import Labels
from ..diagnosis.table import diagnosis
from ..errors import BadValue
from .estimator import BatchProx

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["diagnose"]


def diagnose(
    Z: Any, batch: Any, *, model: BatchProx | None = None, seed: int = 0, **params: Any
) -> pd.DataFrame:
    """Tell what a refinement does to each batch, and whether that is safe.

    Parameters
    ----------
    Z, batch
        Cells (N, d), in memory or a Dask array, and the batch of each.
    model
        A model fitted to these batches; by default one is fitted to ``Z``.
    seed
        Seed of the sample of cells that is examined.
    params
        Parameters of the :class:`BatchProx` to fit.

    Returns
    -------
    One row per batch:

    ``n_cells``
        number of cells;
    ``moved``
        root mean squared displacement of its cells, divided by the batch's spread (the square root of
        its total variance);
    ``scale_min``, ``scale_max``
        smallest and largest scale over all coordinates;
    ``matched``
        fraction of its cells whose population has a partner in another batch;
    ``composition``
        how much its composition differs from that of all other batches, 0 (the same) to 1 (nothing in
        common), beyond what chance explains; NaN for a batch that is far from all others;
    ``distinct``
        fraction of the variance of cells (in batches with partners) that lies between groups of consensus
        centres; the same for all batches. If it is low, populations overlap and cannot be matched
        reliably. NaN if there are too few populations for 20 groups;
    ``neighbours_kept``
        fraction of a cell's nearest neighbours in its own batch that remain its nearest neighbours;
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
    if model is not None and params:
        raise BadValue(
            f"Expected either a fitted model or parameters, found both: {', '.join(sorted(params))}."
        )
    check_array_like(Z, 'call diagnose(adata.obsm["X_pca"], adata.obs["batch"])')
    Z = lazy.check_cells(Z)
    cells = lazy.cells_of(Z, Labels.of(lazy.in_memory(batch), Z.shape[0]))
    if model is not None:
        check_is_fitted(model)
        cells.labels.within(model.batches_)  # an unknown batch is an error
    else:
        model = BatchProx(**params).fit(Z, batch=cells.labels)
    return diagnosis(model.fit_, cells, seed=seed)
