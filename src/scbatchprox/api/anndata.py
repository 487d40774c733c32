"""The AnnData door: keys in, ``obsm`` and ``uns`` out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd

from .._version import __version__
from ..cells.keys import as_keys, batch_labels
from ..core.checks import some_of
from ..core.solvers import Solver
from ..diagnosis.diagnose import diagnose, unlike
from ..errors import BadKey, BadValue
from ..targets.base import TargetRule
from .estimator import BatchProx

__all__ = ["refine"]


def refine(
    adata: ad.AnnData,
    batch_key: str | Sequence[str],
    *,
    use_rep: str = "X_pca",
    key_added: str | None = None,
    inplace: bool = True,
    diagnosed: bool = True,
    populations: str | None = None,
    target: str | TargetRule = "moment",
    solver: str | Solver = "exact",
    rounds: int | str | None = "auto",
    lambda_target: float = 0.5,
    mu: float = 1e-3,
    lambda_id: float = 1e-3,
    eps: float = 1e-6,
    variance_matching: bool = True,
    strength: float = 1.0,
) -> np.ndarray | None:
    """Refine an embedding of ``adata`` batch by batch.

    Parameters
    ----------
    adata
        Annotated cells with an embedding in ``obsm``, which may be a Dask array, as in an AnnData
        opened with :func:`anndata.experimental.read_lazy`: the result is then lazy too.
    batch_key
        Column of ``obs`` with the batch of each cell; several columns mean their combination.
    use_rep
        Key of ``obsm`` to refine, or ``"X"`` for the matrix itself.
    key_added
        Key of ``obsm`` and ``uns`` to write; by default ``use_rep`` with ``_batchprox`` added.
    inplace
        Write to ``adata``; otherwise return the refined embedding and leave ``adata`` alone.
    diagnosed
        Look at what the refinement did to each batch, and warn if the moment target was used on batches
        that differ in composition, or the population target where populations blur into each other as
        well; see :func:`scbatchprox.diagnose`. It costs a look at a sample.
    populations
        Column of ``obs`` that tells what each batch is made of (a clustering, a coarse annotation), for
        ``target="population"``, which otherwise finds out.
    target, solver, rounds, lambda_target, mu, lambda_id, eps, variance_matching, strength
        As for :class:`scbatchprox.BatchProx`.

    Returns
    -------
    The refined embedding (cells x d) if ``inplace=False``, else ``None``, and ``adata`` has

    ``obsm[key_added]``
        the refined embedding;
    ``uns[key_added]``
        what was done: parameters, batches, scale and shift per batch, how far each batch moved, and
        the history of the rounds.
    """
    if key_added is not None and not inplace:
        raise BadValue(f"Expected key_added only with inplace=True, found {key_added!r}.")
    Z = _representation(adata, use_rep)
    batch = batch_labels(adata.obs, batch_key)
    model = BatchProx(
        target=target,
        solver=solver,
        rounds=rounds,
        lambda_target=lambda_target,
        mu=mu,
        lambda_id=lambda_id,
        eps=eps,
        variance_matching=variance_matching,
        strength=strength,
    )
    model.set_output(transform="default")  # arrays, whatever scikit-learn is told to return
    given = None if populations is None else batch_labels(adata.obs, populations)
    refined = model.fit_transform(Z, batch=batch, population=given)
    table = diagnose(Z, batch, model=model) if diagnosed else None
    warn_of(model, table)
    if not inplace:
        return refined
    key_added = f"{use_rep}_batchprox" if key_added is None else key_added
    adata.obsm[key_added] = refined
    adata.uns[key_added] = summary(model, table, batch_key=batch_key, use_rep=use_rep)
    return None


def warn_of(model: BatchProx, table: pd.DataFrame | None, stacklevel: int = 3) -> None:
    """Warn if a diagnosis says that the model's target is wrong for these batches."""
    message = None if table is None else unlike(model, table)
    if message is not None:
        warnings.warn(message, UserWarning, stacklevel=stacklevel)


def summary(
    model: BatchProx,
    table: pd.DataFrame | None = None,
    *,
    batch_key: str | Sequence[str],
    use_rep: str,
) -> dict[str, Any]:
    """Return what a fitted model did, in types that h5ad and zarr can write; ``table`` is a diagnosis."""
    params = {
        # There is no None in h5ad; the fixed point is what the rounds run to.
        name: "fixed point" if value is None else value if np.isscalar(value) else repr(value)
        for name, value in (model.get_params(deep=False) | {"rounds": model.rounds_}).items()
    }
    keys = as_keys(batch_key)
    movement = model.movement()
    diagnosis = (
        {}
        if table is None
        else {
            "diagnosis": {"batch": np.array(table.index)}
            | {str(name): table[name].to_numpy() for name in table}
        }
    )
    return diagnosis | {
        "params": params | {"batch_key": keys, "use_rep": use_rep, "version": __version__},
        "batches": model.batches_,
        "scale": model.scale_,
        "shift": model.shift_,
        "movement": {"batch": model.batches_}
        | {str(name): movement[name].to_numpy() for name in movement},
        "history": dict(vars(model.history_)),
        "converged": model.converged_,
    }


def _representation(adata: ad.AnnData, use_rep: str) -> Any:
    if use_rep in adata.obsm:
        return adata.obsm[use_rep]
    if use_rep == "X" and adata.X is not None:
        return adata.X
    raise BadKey(
        f"Expected use_rep in obsm, found no {use_rep!r}; available: {some_of(adata.obsm, most=20)}."
    )
