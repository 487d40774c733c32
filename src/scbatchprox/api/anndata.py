"""Refine the embedding of an AnnData, or tell what that does to each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..cells.dask import cells_of, check_cells, in_memory
from ..cells.keys import as_keys, as_names, batch_labels, find_embedding
from ..core.checks import check_array_like, comes_from, like, require_columns, some_of
from ..core.labels import Labels, column_labels, population_labels
from ..diagnosis.table import diagnosis, look
from ..errors import BadType, BadValue, Parameter
from ..options import takes_options
from .estimator import BatchProx
from .record import record_of

if TYPE_CHECKING:
    import anndata as ad
    import mudata
    import pandas as pd

__all__ = [
    "check_keep",
    "check_no_path",
    "check_options",
    "diagnose",
    "kept_of",
    "kept_values",
    "refine",
]


@takes_options
def refine(
    adata: ad.AnnData | mudata.MuData,
    batch_key: str | Sequence[str],
    *,
    use_rep: str = "X_pca",
    key_added: str | None = None,
    inplace: bool = True,
    population_key: str | None = None,
    keep: str | Sequence[str] | None = None,
    diagnose: bool | None = None,
    **options: Any,
) -> np.ndarray | None:
    """Refine an embedding of ``adata`` batch by batch.

    Parameters
    ----------
    adata
        Annotated cells with an embedding in ``obsm``. The embedding may be a Dask array, as in an AnnData
        opened with :func:`anndata.experimental.read_lazy`; then the result is lazy too. Or a MuData.
    batch_key
        Column of ``obs`` with the batch of each cell; several columns mean their combination. For a
        modality of a MuData: its own columns first, then those of the MuData.
    use_rep
        Key of ``obsm`` to refine, or ``"X"`` for the matrix itself. ``"rna:X_pca"`` is the embedding
        ``X_pca`` of the modality ``rna`` of a MuData; the result is written to that modality.
    key_added
        Key of ``obsm`` and ``uns`` to write; by default ``use_rep`` with ``_batchprox`` added.
    inplace
        Write to ``adata``; otherwise return the refined embedding and leave ``adata`` unchanged.
    population_key
        Column of ``obs`` with the population of each cell (a clustering or a coarse annotation), for
        ``target="population"``. Without it the target finds populations itself.
    keep
        Columns of ``obs`` that must survive, such as a condition or a tissue. The diagnosis tells whether
        they are confounded with batches, and how much of their variance is removed; a warning, if much is.
    diagnose
        ``True`` writes to ``uns`` what the refinement did to each batch; see
        :func:`scbatchprox.diagnose`. ``None`` does so only if it is cheap (population target), and
        otherwise checks a small sample. Both warn if batches differ in composition and the target does
        not allow for it. ``False`` checks nothing.
    options
        Parameters of :class:`scbatchprox.BatchProx`, such as ``target`` and ``rounds``.

    Returns
    -------
    The refined embedding (cells x d) if ``inplace=False``, else ``None``, and ``adata`` has

    ``obsm[key_added]``
        the refined embedding;
    ``uns[key_added]``
        the record: parameters; ``batches``; ``scale`` and ``shift`` of each row, with the row's batch
        in ``row_batch``; how far each batch moved; the history of the rounds; the evidence on each
        batch, in the order of ``batches``, if the target has any; and the rest of the model, for
        :meth:`BatchProx.from_anndata`.

    Examples
    --------
    >>> import anndata as ad
    >>> import numpy as np
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 50)}, map(str, range(100)))
    >>> adata = ad.AnnData(obs=obs, obsm={"X_pca": rng.normal(size=(100, 5))})
    >>> from scbatchprox import refine
    >>> refine(adata, "batch")
    >>> list(adata.obsm)
    ['X_pca', 'X_pca_batchprox']
    >>> refine(adata, "batch", target="moment", inplace=False).shape  # the paper's method
    (100, 5)
    """
    check_options(options, refine)
    check_no_path(adata, "an AnnData or MuData", "refine_file")
    if key_added is not None and not inplace:
        raise BadValue(
            "Expected ", Parameter("key_added"), " only with ", Parameter("inplace=True"),
            f", found {key_added!r}.",
        )  # fmt: skip
    found = find_embedding(adata, use_rep)
    Z, obs = found.Z, found.obs
    labels = Labels.of(in_memory(batch_labels(obs, batch_key)), found.adata.n_obs)
    kept = kept_of(obs, keep, diagnose)
    model = BatchProx(**options)
    groups = None if population_key is None else in_memory(batch_labels(obs, population_key))
    population = population_labels(groups, labels.codes.size)
    cells = cells_of(check_cells(Z), labels)
    model.fit_cells(cells, population)
    model.diagnosis_ = look(model.fit_, cells, diagnose, kept)
    refined = like(model.refined(cells), Z)
    if not inplace:
        return refined
    key_added = found.result_key(key_added)
    found.adata.obsm[key_added] = refined
    model.provenance_ = {
        "batch_key": as_keys(batch_key),
        "use_rep": found.key,
        "key_added": key_added,
        "n_cells": model.moments_.n_cells,
    }
    found.adata.uns[key_added] = record_of(model)
    return None


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
    Z = check_cells(Z)
    cells = cells_of(Z, Labels.of(in_memory(batch), Z.shape[0]))
    if model is not None:
        check_is_fitted(model)
        cells.labels.within(model.batches_)  # an unknown batch is an error
    else:
        model = BatchProx(**params).fit(Z, batch=cells.labels, population=population)
    model.diagnosis_ = diagnosis(model.fit_, cells, seed=seed, keep=columns)
    return model.diagnosis_


def check_keep(keep: str | Sequence[str] | None, diagnose: bool | None) -> None:
    """Raise if columns are to be kept, and nothing is examined."""
    if diagnose is False and as_names(keep):
        raise BadValue(
            "Expected ", Parameter("keep"), " only with a diagnosis, which it is a part of, found ",
            Parameter("diagnose=False"), ".",
        )  # fmt: skip


def kept_of(
    obs: Any, keep: str | Sequence[str] | None, diagnose: bool | None = None
) -> Mapping[str, Labels]:
    """Return columns of ``obs`` to keep; they are only examined by a diagnosis."""
    check_keep(keep, diagnose)
    names = as_names(keep)
    require_columns(names, (key for key in obs if key in obs.columns), Parameter("keep"))
    return column_labels({name: in_memory(obs[name]) for name in names}, len(obs))


def kept_values(keep: Any, n_cells: int) -> Mapping[str, Labels]:
    """Return columns to keep that are given as values: of a data frame, a dictionary or a named column."""
    if keep is None:
        return {}
    if hasattr(keep, "columns"):  # pandas, polars
        columns = {name: keep[name] for name in keep.columns}
    elif isinstance(keep, Mapping):
        columns = dict(keep)
    elif hasattr(keep, "name") and hasattr(keep, "dtype"):
        if keep.name in (None, ""):
            raise BadValue(
                "Expected a column to keep with a name, found a Series without one; "
                "keep={'name': values} gives it one."
            )
        columns = {keep.name: keep}
    else:
        raise BadType(
            f"Expected a data frame, a dictionary of columns or a named Series to keep, found "
            f"{type(keep).__name__}."
        )
    return column_labels({name: in_memory(values) for name, values in columns.items()}, n_cells)


def check_options(params: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise if ``params``, the further options given to ``function``, are not those of a BatchProx."""
    wanted = list(signature(BatchProx).parameters)
    unknown = [name for name in params if name not in wanted]
    if unknown:
        taken = signature(function).parameters.values()
        names = [one.name for one in taken if one.kind is one.KEYWORD_ONLY]
        raise BadType(
            f"Expected options of {function.__name__}, found {some_of(unknown)}; "
            f"available: {', '.join(names)}."
        )


def check_no_path(data: object, wanted: str, instead: str) -> None:
    """Raise if ``data`` is the path of a file; the function ``instead`` is for those."""
    if isinstance(data, str | Path):
        raise BadType(
            f"Expected {wanted}, found {type(data).__name__}; for a file, call "
            f"scbatchprox.{instead}({str(data)!r}, batch_key)."
        )
