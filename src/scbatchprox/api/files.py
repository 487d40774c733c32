"""The file door: two passes, moments and then the map; never more than a few chunks in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cells import dask as lazy
from ..cells.file import connection, open_job, source_of
from ..cells.keys import as_keys
from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.solvers import solver_of
from ..diagnosis.look import look, sample_sizes
from ..errors import BadValue
from ..progress import Progress, silent
from ..targets.by_name import target_of
from .anndata import record as record_of
from .estimator import BatchProx

__all__ = ["apply_file", "refine_file"]


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
    diagnose: bool | None = None,
    cluster: str | None = None,
    progress: Progress = silent,
) -> BatchProx:
    """Fit a model to the cells of a file and write them refined; returns the fitted model.

    Parameters
    ----------
    path
        An ``.h5ad``, ``.zarr``, ``.npy``, ``.npz``, ``.parquet``, ``.csv`` or ``.tsv`` file.
    batch_key
        Column with the batch of each cell; several columns mean their combination.
    model
        What to fit; by default ``BatchProx()``.
    use_rep, key_added
        Names of the embedding and of the result, in files that hold several. In a table ``use_rep``
        is what the names of its coordinate columns begin with.
    out
        Where to write a copy of the file with the result; ``None`` writes into the file itself.
    labels
        A second file that holds the labels.
    population_key
        Column that tells what each batch is made of, for the population target, which otherwise
        finds populations itself: one pass more over the file.
    diagnose
        As for :func:`scbatchprox.refine`, on a sample that the first pass takes. The model has the table
        as ``diagnosis_``.
    cluster
        Compute on a Dask cluster: the address of its scheduler, or ``"local"`` for one that is
        started here.
    progress
        Called as rows are done.

    The solver ``"adam"`` visits cells in random order, so with it the embedding is held in memory.
    """
    model = BatchProx() if model is None else model
    needs_cells = solver_of(model.solver).needs_cells
    with (
        open_job(path, batch_key, use_rep, key_added, out, labels, population_key) as job,
        connection(cluster) as client,
    ):
        rep = use_rep or job.file.default_rep
        watched = sample_sizes(target_of(model.target), diagnose, job.labels.n)
        source = source_of(job, client, progress, watched)
        if needs_cells and client is not None:
            lazy.refuse(solver_of(model.solver))
        blank = BatchProx(**model.get_params(deep=False))  # what was seen before has no part in it
        cells = (job.in_memory(), job.labels) if needs_cells else None
        read = MemoryCells(*cells) if cells else source
        model.fit_moments(blank.describe(read, job.population), cells)
        model.diagnosis_ = look(model.fit_, read, diagnose)
        model.provenance_ = {
            "source": Path(path).name,
            "batch_key": as_keys(batch_key),
            "use_rep": rep,
            "key_added": job.key,
            "n_cells": model.moments_.n_cells,
        }
        refined = source.mapped(model.adapter_, "apply", job.labels)
        job.write(
            refined, record_of(model, model.diagnosis_, batch_key=batch_key, use_rep=rep), progress
        )
    return model


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
    """Apply a fitted adapter, or its inverse, to the cells of a file: known batches, as many coordinates.

    ``record`` goes to ``uns`` where the file has one; the rest is as for :func:`refine_file`.
    """
    with (
        open_job(path, batch_key, use_rep, key_added, out, labels) as job,
        connection(cluster) as client,
    ):
        if job.rows.shape[1] != adapter.n_dims:
            raise BadValue(
                f"Expected an embedding of {adapter.n_dims} coordinates, as the model has, found "
                f"{job.rows.shape[1]} in {Path(path).name}."
            )
        verb = "inverse" if inverse else "apply"
        source = source_of(job, client, progress)
        mapped = source.mapped(adapter, verb, job.labels.within(adapter.batches))
        job.write(mapped, record or {}, progress)
