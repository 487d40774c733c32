"""The cells of a report: an AnnData, or a file that is read in parts and never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..api.record import find_record
from ..cells.dask import cells_of, check_cells, in_memory
from ..cells.file import Job, open_job
from ..cells.keys import as_keys, batch_labels, find_embedding
from ..cells.reading import LocalCells
from ..core.checks import check_embedding, require_columns
from ..core.labels import Labels
from ..core.target import Cells
from ..errors import BadKey, BadType, BadValue
from ..io.damaged import naming
from ..kernels.arrays import Ints
from ..progress import Progress

__all__ = ["ReportSource", "opened"]


@dataclass(frozen=True, eq=False)
class ReportSource:
    """Where the cells of a report are.

    Attributes
    ----------
    name
        What to call it.
    cells
        All cells of the unrefined embedding.
    n_dims, dtype
        Coordinates of a cell, and the type of their numbers.
    use_rep, key
        Names of the unrefined and the refined embedding.
    record
        What ``refine`` wrote about the refined embedding, if there is one.
    columns
        Further columns of labels.
    has, take
        Tells whether there is an embedding of a name, and reads some of its rows (in increasing order).
    """

    name: str
    cells: Cells
    n_dims: int
    dtype: str
    use_rep: str
    key: str
    record: dict[str, Any] | None
    columns: pd.DataFrame
    has: Callable[[str], bool]
    take: Callable[[str, Ints], np.ndarray]


@contextmanager
def opened(
    data: Any,
    batch_key: str | Sequence[str],
    columns: Sequence[str],
    use_rep: str | None,
    key_added: str | None,
    labels: str | Path | None,
    progress: Progress,
    sample_sizes: Callable[[Ints], Ints | None],
) -> Iterator[ReportSource]:
    """Open the cells of an AnnData or of a file.

    ``columns`` are columns of labels besides the batches. ``sample_sizes`` tells, from the sizes of batches,
    which sample the diagnosis will need: it is drawn in the first pass over a file.
    """
    if not isinstance(data, str | Path):
        if labels is not None:
            raise BadValue("Expected a second file with labels only for a file, found an AnnData.")
        if not (hasattr(data, "obsm") and hasattr(data, "obs")):
            raise BadType(
                f"Expected an AnnData or the path of a file, found {type(data).__name__}."
            )
        use_rep, key_added = _names(data, use_rep, key_added)
        yield _of_anndata(data, batch_key, columns, use_rep, key_added)
        return
    with ExitStack() as stack:
        found = open_job(data, batch_key, use_rep, key_added, None, labels, columns=columns)
        job = stack.enter_context(found)
        yield _of_job(job, LocalCells(job, progress, sample_sizes(job.labels.n)))


def _names(data: Any, use_rep: str | None, key_added: str | None) -> tuple[str, str | None]:
    """Return the names of both embeddings; those that are not given are in the record of ``refine``."""
    if use_rep is None and (key_added is not None or "X_pca" not in data.obsm):
        try:
            found = find_record(data, key_added)
            return f"{found.prefix}{found.values['params']['use_rep']}", found.key
        except (BadKey, KeyError, TypeError):
            pass  # there is none, or several: as if nothing had been refined
    return use_rep or "X_pca", key_added


def _of_job(job: Job, cells: LocalCells) -> ReportSource:
    file, use_rep = job.file, job.use_rep or job.file.default_rep

    def has(name: str) -> bool:
        try:
            return file.keyed and file.embedding(name).shape[0] == job.rows.shape[0]
        except BadKey:
            return False

    def take(name: str, rows: Ints) -> np.ndarray:
        if name == use_rep:
            return cells.take(rows)
        with naming(file.path):
            stored = file.embedding(name)
            check_embedding(stored[0:1])
        return LocalCells(replace(job, use_rep=name, rows=stored), cells.progress).take(rows)

    assert job.columns is not None
    record = file.record(job.key)
    shape, dtype = job.rows.shape, str(job.rows.dtype)
    return ReportSource(
        file.path.name, cells, shape[1], dtype, use_rep, job.key, record, job.columns, has, take
    )


def _of_anndata(
    adata: Any,
    batch_key: str | Sequence[str],
    columns: Sequence[str],
    use_rep: str,
    key_added: str | None,
) -> ReportSource:
    found = find_embedding(adata, use_rep)
    adata, obs, use_rep, Z = found.adata, found.obs, found.key, check_cells(found.Z)
    require_columns(columns, (key for key in obs if key in obs.columns), "columns of labels")
    batch = Labels.of(in_memory(batch_labels(obs, as_keys(batch_key))), adata.n_obs)
    key = found.result_key(key_added)

    def take(name: str, rows: Ints) -> np.ndarray:
        rows_of = in_memory(check_cells(Z if name == use_rep else adata.obsm[name])[rows])
        return np.asarray(rows_of.toarray() if hasattr(rows_of, "toarray") else rows_of)

    return ReportSource(
        "an AnnData in memory",
        cells_of(Z, batch),
        Z.shape[1],
        str(Z.dtype),
        use_rep,
        key,
        adata.uns.get(key) if key in adata.obsm else None,
        pd.DataFrame({name: in_memory(obs[name]) for name in columns}),
        adata.obsm.__contains__,
        take,
    )
