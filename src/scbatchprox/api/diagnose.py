"""What a refinement does to each batch, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from ..cells import dask as lazy
from ..cells.keys import batch_labels, find_embedding
from ..core.checks import check_array_like, comes_from
from ..core.labels import Labels
from ..diagnosis.table import diagnosis
from ..errors import BadValue, Parameter
from ..options import takes_options
from .estimator import BatchProx
from .kept import kept_of, kept_values
from .options import check_no_path, check_options

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["diagnose"]


@takes_options
def diagnose(
    data: Any,
    batch: Any,
    *,
    use_rep: str | None = None,
    population_key: str | None = None,
    population: Any = None,
    keep: Any = None,
    model: BatchProx | None = None,
    seed: int = 0,
    **params: Any,
) -> pd.DataFrame:
    """Tell what a refinement does to each batch, and which evidence there is for it.

    Parameters
    ----------
    data, batch
        An AnnData or MuData, and a column of ``obs``, or several, as for :func:`refine`. Or cells (N, d), in
        memory or a Dask array, and the batch of each.
    use_rep
        Key of ``obsm`` of an AnnData, ``X_pca`` by default; ``"rna:X_pca"`` of a MuData.
    population_key, population
        The population of each cell, as for :func:`refine`: a column of ``obs``, or for arrays the values.
    keep
        What must survive, such as a condition or a tissue: columns of ``obs``. For arrays, a data frame, a
        dictionary or a named Series with a value per cell.
    model
        A model fitted to these batches; its ``diagnosis_`` is set. By default one is fitted.
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
        part of the batch that meets other batches;
    ``agreement``
        how far its centres agree on a displacement, over what chance gives;
    ``evidence``
        how well its geometry fits the other batches, compared with turned copies of it: the number that
        must be above the setting ``evidence``;
    ``support``, ``chance``
        how well its geometry, and that of the copies, fits the other batches;
    ``gain``
        how many times better it meets the other batches than without its shift; NaN if its centres agree on
        none. Up to the setting ``better`` it stays where it is;
    ``smooth``
        how far neighbouring centres agree on more than a shift, over what chance gives;
    ``composition``
        how much its composition differs from that of all other batches, 0 (the same) to 1 (nothing in
        common), beyond what chance explains. NaN for a batch with fewer than 50 cells;
    ``removed``
        root mean squared displacement that the evidence asks for, before ``strength``;
    ``neighbours_kept``
        fraction of a cell's nearest neighbours in its own batch that remain its nearest neighbours;
    ``NAME confounded``, ``NAME removed``
        of each column to keep; the same for all batches. How much of it the batch tells, from 0 to 1 (each
        batch has one value), and the part of the variance between its values that the refinement removes;
    ``level``
        ``no effect found`` (left exactly as it is), ``effect removed``, ``weak evidence`` (moved, with care)
        or ``nothing to compare with`` (left as it is). ``target="moment"`` moves all batches;
    ``reasons``
        the names of the numbers that are its reasons, such as ``agreement``; ``n_batches`` if there is no
        other batch to compare with;
    ``verdict``
        level and reasons in words: ``effect removed: ...``.

    The evidence is that of the fit. For ``target="moment"`` it is found on a sample of the cells.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import diagnose
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(600, 5)) + 8.0 * rng.integers(0, 3, size=(600, 1))
    >>> diagnose(Z, np.repeat(["a", "b"], 300))["level"].tolist()
    ['no effect found', 'no effect found']
    """
    check_options(params, diagnose)
    check_no_path(data, "an array or an AnnData", "diagnose_file")
    populations = {"population_key": population_key, "population": population}
    given = [*params, *(name for name, value in populations.items() if value is not None)]
    if model is not None and given:
        raise BadValue(
            f"Expected either a fitted model or parameters, found both: {', '.join(sorted(given))}."
        )
    if comes_from(data, "anndata.AnnData") or comes_from(data, "mudata.MuData"):
        if population is not None:
            raise BadValue(
                "Expected population only for an array, found it for an AnnData; ",
                Parameter("population_key"), " is the name of a column of obs.",
            )  # fmt: skip
        found = find_embedding(data, use_rep or "X_pca")
        Z, columns = found.Z, kept_of(found.obs, keep)
        batch = batch_labels(found.obs, batch)
        if population_key is not None:
            population = batch_labels(found.obs, population_key)
    else:
        check_array_like(data)
        for name, value in (("use_rep", use_rep), ("population_key", population_key)):
            if value is not None:
                raise BadValue(
                    "Expected ", Parameter(name), f" only for an AnnData, found {value!r} for an array."
                )  # fmt: skip
        Z, columns = data, kept_values(keep, len(data) if isinstance(data, list) else data.shape[0])
    Z = lazy.check_cells(Z)
    cells = lazy.cells_of(Z, Labels.of(lazy.in_memory(batch), Z.shape[0]))
    if model is not None:
        check_is_fitted(model)
        cells.labels.within(model.batches_)  # an unknown batch is an error
    else:
        model = BatchProx(**params).fit(Z, batch=cells.labels, population=population)
    model.diagnosis_ = diagnosis(model.fit_, cells, seed=seed, keep=columns)
    return model.diagnosis_
