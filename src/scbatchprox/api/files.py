"""The file door: two passes, moments and then the map; never more than a few chunks in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cells import dask as lazy
from ..cells.file import connection, open_job, source_of
from ..cells.keys import as_keys
from ..core.fit import AnyAdapter
from ..core.solvers import solver_of
from ..diagnosis.diagnose import diagnosis
from ..errors import BadValue
from ..progress import Progress, silent
from ..targets.population.find import looked_at
from .anndata import summary as record_of
from .anndata import warn_of
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
    diagnosed: bool = True,
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
        Column that tells what each batch is made of, for the population target, which otherwise finds
        out: one pass more over the file.
    diagnosed
        Look at what the refinement does to each batch, on a sample that the first pass takes; warn if the
        moment target is used on batches that differ in composition. The model has the table as
        ``diagnosis_``; see :func:`scbatchprox.diagnose`.
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
        source = source_of(job, client, progress, looked_at(job.labels.n) if diagnosed else None)
        if needs_cells and client is not None:
            lazy.refuse(solver_of(model.solver))
        blank = BatchProx(**model.get_params(deep=False))  # what was seen before has no part in it
        cells = (job.in_memory(), job.labels) if needs_cells else None
        read = lazy.LabelledCells(*cells) if cells else source
        model.fit_moments(blank.describe(read, job.population), cells)
        table = diagnosis(model, read) if diagnosed else None
        warn_of(model, table)
        model.diagnosis_ = table
        model.provenance_ = {
            "source": Path(path).name,
            "batch_key": as_keys(batch_key),
            "use_rep": rep,
            "key_added": job.key,
            "n_cells": model.moments_.n_cells,
        }
        refined = source.mapped(model.adapter_, "apply", job.labels)
        job.write(refined, record_of(model, table, batch_key=batch_key, use_rep=rep), progress)
    return model


def apply_file(
    path: str | Path,
    adapter: AnyAdapter,
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
    """Apply a fitted adapter, or its inverse, to the cells of a file: known batches, the same width.

    ``record`` goes to ``uns`` where the file has one; the rest is as for :func:`refine_file`.
    """
    with (
        open_job(path, batch_key, use_rep, key_added, out, labels) as job,
        connection(cluster) as client,
    ):
        if job.rows.shape[1] != adapter.width:
            raise BadValue(
                f"Expected an embedding of {adapter.width} coordinates, as the model has, found "
                f"{job.rows.shape[1]} in {Path(path).name}."
            )
        verb = "inverse" if inverse else "apply"
        source = source_of(job, client, progress)
        mapped = source.mapped(adapter, verb, job.labels.within(adapter.batches))
        job.write(mapped, record or {}, progress)
