"""Refine an AnnData: reads ``obsm`` and ``obs``, writes ``obsm`` and ``uns``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells.dask import cells_of, check_cells, in_memory, is_lazy
from ..cells.keys import as_keys, batch_labels, find_embedding
from ..core.labels import Labels, population_labels
from ..core.tensors import like
from ..diagnosis.table import look
from ..errors import BadValue, Parameter
from ..options import takes_options
from .estimator import BatchProx
from .kept import kept_of
from .options import check_no_path, check_options
from .record import record_of

if TYPE_CHECKING:
    import anndata as ad
    import mudata

__all__ = ["refine"]


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
    population = None
    if population_key is not None:
        population = population_labels(
            in_memory(batch_labels(obs, population_key)), labels.codes.size
        )
    cells = cells_of(check_cells(Z), labels)
    model.fit_cells(cells, population, None if is_lazy(Z) else (cells.Z, labels))
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
