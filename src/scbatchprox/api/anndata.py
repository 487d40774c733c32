"""Refine an AnnData: reads ``obsm`` and ``obs``, writes ``obsm`` and ``uns``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas.api.types import is_numeric_dtype

from .._version import __version__
from ..cells.dask import cells_of, check_cells, in_memory
from ..cells.keys import as_keys, batch_labels
from ..cells.modality import find_embedding
from ..core.labels import Labels
from ..core.solvers import Solver
from ..core.target import TargetRule
from ..diagnosis.look import look
from ..errors import BadValue
from .estimator import BatchProx
from .kept import kept_of
from .options import check_no_path

if TYPE_CHECKING:
    import anndata as ad
    import mudata
    import pandas as pd

__all__ = ["record", "refine"]


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
    target: str | TargetRule = "population",
    solver: str | Solver = "exact",
    rounds: int | str | None = "auto",
    lambda_target: float = 0.5,
    mu: float = 1e-3,
    lambda_id: float = 1e-3,
    strength: float = 1.0,
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
    target, solver, rounds, lambda_target, mu, lambda_id, strength
        As for :class:`scbatchprox.BatchProx`.

    Returns
    -------
    The refined embedding (cells x d) if ``inplace=False``, else ``None``, and ``adata`` has

    ``obsm[key_added]``
        the refined embedding;
    ``uns[key_added]``
        the record: parameters; ``batches``; ``scale`` and ``shift`` of each row, with the row's batch
        in ``row_batch``; how far each batch moved; the history of the rounds; and the evidence on each
        batch, in the order of ``batches``, if the target has any.

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
    check_no_path(adata, "an AnnData or MuData", "refine_file")
    if key_added is not None and not inplace:
        raise BadValue(f"Expected key_added only with inplace=True, found {key_added!r}.")
    found = find_embedding(adata, use_rep)
    Z, obs = found.Z, found.obs
    batch = Labels.of(in_memory(batch_labels(obs, batch_key)), found.adata.n_obs)
    kept = kept_of(obs, keep, diagnose)
    model = BatchProx(
        target=target,
        solver=solver,
        rounds=rounds,
        lambda_target=lambda_target,
        mu=mu,
        lambda_id=lambda_id,
        strength=strength,
    )
    # Arrays, even if scikit-learn is set to return data frames.
    model.set_output(transform="default")
    population = None if population_key is None else batch_labels(obs, population_key)
    refined = model.fit_transform(Z, batch=batch, population=population)
    table = look(model.fit_, cells_of(check_cells(Z), batch), diagnose, kept)
    if not inplace:
        return refined
    key_added = found.result_key(key_added)
    found.adata.obsm[key_added] = refined
    found.adata.uns[key_added] = record(model, table, batch_key=batch_key, use_rep=found.key)
    return None


def record(
    model: BatchProx,
    table: pd.DataFrame | None = None,
    *,
    batch_key: str | Sequence[str],
    use_rep: str,
) -> dict[str, Any]:
    """Return what a fitted model did, in types that h5ad and zarr can store; ``table`` is a diagnosis."""
    params = {
        # h5ad cannot store None, which means the fixed point as the number of rounds.
        name: "fixed point" if value is None else value if np.isscalar(value) else repr(value)
        for name, value in (model.get_params(deep=False) | {"rounds": model.rounds_}).items()
    }
    keys = as_keys(batch_key)
    diagnosis = {} if table is None else {"diagnosis": _storable(table)}
    adapter = model.adapter_
    populations = (
        {}
        if adapter.anchors is None
        else {"anchors": adapter.anchors, "bandwidth": adapter.bandwidth}
    )
    known = model.evidence_
    evidence = {"evidence": dict(vars(known))} if known.batches.size else {}
    return (
        diagnosis
        | populations
        | evidence
        | {
            "params": params | {"batch_key": keys, "use_rep": use_rep, "version": __version__},
            "batches": model.batches_,
            "row_batch": model.batches_[model.adapter_.batch],
            "scale": model.scale_,
            "shift": model.shift_,
            "movement": _storable(model.movement()),
            "history": dict(vars(model.history_)),
            "converged": model.converged_,
        }
    )


def _storable(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that h5ad and zarr can store: text as objects, and no "/" in names of columns."""
    stored = table.rename(columns=lambda name: str(name).replace("/", "|"))
    if "reasons" in stored:  # names of columns
        stored["reasons"] = stored["reasons"].str.replace("/", "|")
    for name in stored.columns[[not is_numeric_dtype(kind) for kind in stored.dtypes]]:
        stored[name] = stored[name].astype(object)
    if not is_numeric_dtype(stored.index.dtype):
        stored.index = stored.index.astype(object)
    return stored
