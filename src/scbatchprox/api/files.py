"""Refine files in two passes: one for the moments, one to write. A few chunks are in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cells import dask as lazy
from ..cells.file import Job, open_job
from ..cells.keys import as_keys
from ..cells.memory import MemoryCells
from ..cells.reading import ClusterCells, LocalCells, connection, source_of
from ..core.adapter import Adapter
from ..core.target import Cells
from ..diagnosis.table import look, sample_sizes
from ..errors import BadValue
from ..io.damaged import naming
from ..progress import Progress, silent
from ..targets.method import solver_of, target_of
from .anndata import check_keep
from .estimator import BatchProx
from .record import record_of

__all__ = ["apply_file", "diagnose_file", "refine_file"]


def refine_file(
    path: str | Path,
    batch_key: str | Sequence[str],
    *,
    model: BatchProx | None = None,
    use_rep: str | None = None,
    key_added: str | None = None,
    out: str | Path | None = None,
    labels: str | Path | None = None,
    population_key: str | None = None,
    keep: str | Sequence[str] | None = None,
    diagnose: bool | None = None,
    cluster: str | None = None,
    progress: Progress = silent,
) -> BatchProx:
    """Fit a model to the cells of a file, write the refined cells, and return the model.

    Parameters
    ----------
    path
        An ``.h5ad``, ``.zarr``, ``.npy``, ``.npz``, ``.parquet``, ``.csv`` or ``.tsv`` file.
    batch_key
        Column with the batch of each cell; several columns mean their combination.
    model
        The model to fit; by default ``BatchProx()``.
    use_rep, key_added
        Names of the embedding and of the result, in files that hold several. In a table ``use_rep``
        is the prefix of the names of the coordinate columns.
    out
        Path for a copy of the file with the result; ``None`` writes into the input file.
    labels
        A second file with the labels.
    population_key
        Column with the population of each cell, for the population target. Without it the target finds
        populations itself, in one more pass over the file.
    keep
        Columns that must survive, as for :func:`scbatchprox.refine`; costs two more passes for each.
    diagnose
        As for :func:`scbatchprox.refine`, on a sample drawn in the first pass. The table is in
        ``model.diagnosis_``.
    cluster
        Compute on a Dask cluster: the address of its scheduler, or ``"local"`` to start one on this
        machine.
    progress
        Called after every chunk of rows, and after every round of the solver ``"adam"``.

    The solver ``"adam"`` visits cells in random order, so it holds the embedding in memory.

    Examples
    --------
    >>> import tempfile
    >>> import anndata as ad
    >>> import numpy as np
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 50)}, map(str, range(100)))
    >>> adata = ad.AnnData(obs=obs, obsm={"X_pca": rng.normal(size=(100, 5))})
    >>> path = tempfile.mkdtemp() + "/cells.h5ad"
    >>> adata.write_h5ad(path)
    >>> from scbatchprox import refine_file
    >>> model = refine_file(path, "batch")  # into the file; out= writes a copy
    >>> list(ad.read_h5ad(path).obsm)
    ['X_pca', 'X_pca_batchprox']
    """
    check_keep(keep, diagnose)
    model = BatchProx() if model is None else model
    with (
        open_job(path, batch_key, use_rep, key_added, out, labels, population_key, keep) as job,
        connection(cluster) as client,
    ):
        rep = use_rep or job.file.default_rep
        source = _fitted(model, job, client, diagnose, progress)
        model.provenance_ = {
            "source": Path(path).name,
            "batch_key": as_keys(batch_key),
            "use_rep": rep,
            "key_added": job.key,
            "n_cells": model.moments_.n_cells,
        }
        refined = source.mapped(model.adapter_, "apply", job.labels)
        job.write(refined, record_of(model), progress)
    return model


def diagnose_file(
    path: str | Path,
    batch_key: str | Sequence[str],
    *,
    model: BatchProx | None = None,
    use_rep: str | None = None,
    labels: str | Path | None = None,
    population_key: str | None = None,
    keep: str | Sequence[str] | None = None,
    cluster: str | None = None,
    progress: Progress = silent,
) -> BatchProx:
    """Tell what :func:`refine_file` would do to each batch; the file does not change.

    Returns the fitted model, with the table in ``diagnosis_``; see :func:`scbatchprox.diagnose`. The
    parameters are those of :func:`refine_file`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pandas as pd
    >>> from scbatchprox import diagnose_file
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(600, 3)) + 8.0 * rng.integers(0, 3, size=(600, 1))
    >>> table = pd.DataFrame(Z, columns=["PC1", "PC2", "PC3"]).assign(batch=np.repeat(["a", "b"], 300))
    >>> path = f"{tempfile.mkdtemp()}/cells.csv"
    >>> table.to_csv(path, index=False)
    >>> diagnose_file(path, "batch").diagnosis_.index.tolist()
    ['a', 'b']
    """
    model = BatchProx() if model is None else model
    with (
        open_job(path, batch_key, use_rep, None, None, labels, population_key, keep) as job,
        connection(cluster) as client,
    ):
        _fitted(model, job, client, True, progress)
    return model


def _fitted(
    model: BatchProx, job: Job, client: Any, diagnose: bool | None, progress: Progress
) -> LocalCells | ClusterCells:
    """Fit a model to the cells of a file and examine it; return the cells."""
    sizes = sample_sizes(target_of(model.target), diagnose, job.labels.n, job.keep)
    source = source_of(job, client, progress, sizes)
    cells: Cells = source
    visited, solver = None, solver_of(model.solver)
    if isinstance(source, ClusterCells):  # before the target, which has another reason to refuse
        lazy.check_supported(solver)
    elif solver.needs_cells:
        cells = MemoryCells(source.in_memory(), job.labels)
        visited = cells.Z, cells.labels, progress
    model.fit_cells(cells, job.population, visited)
    model.diagnosis_ = look(model.fit_, cells, diagnose, job.keep)
    return source


def apply_file(
    path: str | Path,
    adapter: Adapter,
    batch_key: str | Sequence[str],
    *,
    inverse: bool = False,
    use_rep: str | None = None,
    key_added: str | None = None,
    out: str | Path | None = None,
    labels: str | Path | None = None,
    record: dict[str, Any] | None = None,
    cluster: str | None = None,
    progress: Progress = silent,
) -> None:
    """Apply a fitted adapter, or its inverse, to the cells of a file.

    The adapter must know all batches of the file and have the same number of coordinates. ``record`` is
    written to ``uns`` if the file has one. The other parameters are those of :func:`refine_file`.

    Examples
    --------
    >>> import tempfile
    >>> import anndata as ad
    >>> import numpy as np
    >>> import pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 50)}, map(str, range(100)))
    >>> adata = ad.AnnData(obs=obs, obsm={"X_pca": rng.normal(size=(100, 5))})
    >>> path = tempfile.mkdtemp() + "/cells.h5ad"
    >>> adata.write_h5ad(path)
    >>> from scbatchprox import BatchProx, apply_file
    >>> model = BatchProx().fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    >>> apply_file(path, model.adapter_, "batch", key_added="X_refined")
    >>> list(ad.read_h5ad(path).obsm)
    ['X_pca', 'X_refined']
    """
    with (
        open_job(path, batch_key, use_rep, key_added, out, labels) as job,
        connection(cluster) as client,
    ):
        if job.rows.shape[1] != adapter.n_dims:
            raise BadValue(
                f"Expected an embedding of {adapter.n_dims} coordinates, as in the model, found "
                f"{job.rows.shape[1]} in {Path(path).name}."
            )
        verb = "inverse" if inverse else "apply"
        source = source_of(job, client, progress)
        with naming(path if labels is None else labels):
            known = job.labels.within(adapter.batches)
        mapped = source.mapped(adapter, verb, known)
        job.write(mapped, record or {}, progress)
