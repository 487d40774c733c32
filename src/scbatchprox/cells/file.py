"""A file to refine: opened, checked against the options, with a place for the result."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core.checks import check_embedding
from ..core.labels import Labels, column_labels, population_labels
from ..errors import BadKey, BadValue, NotFinite, Parameter
from ..io.damaged import naming, reading
from ..io.formats import CellFile, RowsOnDisk, check_key, kind_of, open_cells
from ..io.formats.arrays import npy_writer
from ..kernels.blocks import output_dtype
from ..progress import Progress
from .keys import as_keys, as_names, batch_labels

__all__ = ["Job", "open_job", "rows_at_a_time"]

log = logging.getLogger(__name__)

#: Bytes of cells read at a time. A few of these are in memory at once.
CHUNK_BYTES = 1 << 25

#: Text tables, which can be written as each other: only separator and compression differ.
TEXT_TABLES = {".csv", ".tsv", ".csv.gz", ".tsv.gz"}


@dataclass(frozen=True)
class Job:
    """An open file whose labels and embedding have been checked, and the place of its result."""

    file: CellFile
    use_rep: str | None
    rows: RowsOnDisk
    labels: Labels
    key: str
    out: Path | None
    population: Labels | None = None
    keep: Mapping[str, Labels] = field(default_factory=dict)
    #: Further columns of labels.
    columns: pd.DataFrame | None = None

    @property
    def step(self) -> int:
        """Rows to read at a time."""
        return rows_at_a_time(self.file, self.rows)

    def write(
        self, mapped: Iterator[tuple[int, np.ndarray]], record: dict[str, Any], progress: Progress
    ) -> None:
        """Write the blocks of the result as they arrive, then the record."""
        n, d = self.rows.shape
        writer_of = self.file.writer
        if self.out is not None and kind_of(self.out) == ".npy":
            # only the refined cells, for any type of input
            writer_of = partial(npy_writer, check=self.file.check_unchanged)
        # A damaged file may be readable, and yet no result can be added to it.
        path = self.file.path
        with ExitStack() as stack:
            opened = writer_of(self.out, self.key, (n, d), output_dtype(self.rows))
            with reading(path):
                writer = stack.enter_context(opened)
            for lo, block in mapped:
                with reading(path):
                    writer.write(lo, block)
                progress("refine", lo + len(block), n)
                del block
            with reading(path):
                writer.finish(record)
                stack.close()


def rows_at_a_time(file: CellFile, rows: RowsOnDisk) -> int:
    """Rows of a file to read at a time: whole stored chunks, so that none is read twice."""
    wanted = max(1, CHUNK_BYTES // (rows.shape[1] * rows.dtype.itemsize))
    return max(file.row_step, wanted // file.row_step * file.row_step)


@contextmanager
def open_job(
    path: str | Path,
    batch_key: str | Sequence[str],
    use_rep: str | None,
    key_added: str | None,
    out: str | Path | None,
    labels: str | Path | None,
    population_key: str | None = None,
    keep: str | Sequence[str] | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Job]:
    """Open a file and check all options before the cells are read.

    ``columns`` are further columns of labels to read: in a table they are not coordinates.
    """
    keys = as_keys(batch_key)
    with open_cells(path, labels) as file:
        for name, given, allowed in (
            ("use_rep", use_rep, file.named),
            ("key_added", key_added, file.keyed),
        ):
            if given is not None and not allowed:
                raise BadValue(
                    "Expected ", Parameter(name), f" only for files that hold several embeddings, found "
                    f"{given!r} for {file.path.name}.",
                )  # fmt: skip
        kept = as_names(keep)
        also = [key for key in (population_key, *kept, *columns) if key is not None]
        try:
            obs = file.obs(list(dict.fromkeys(keys + also)))
        except BadKey:  # which of the parameters names what is not there?
            file.obs(
                [] if population_key is None else [population_key], Parameter("population_key")
            )
            file.obs(kept, Parameter("keep"))
            file.obs(columns, "columns of labels")
            raise
        with naming(file.path):
            rows = file.embedding(use_rep)
            check_embedding(rows[0:1])
        n, population = rows.shape[0], None
        with naming(file.path if labels is None else labels, file.path):
            batches = Labels.of(batch_labels(obs, keys), n)
            if population_key is not None:
                population = population_labels(obs[population_key], n)
            to_keep = column_labels({name: obs[name] for name in kept}, n)
        key = file.default_key(use_rep) if key_added is None else key_added
        check_key(key, f"the result in {file.path.name}")
        if file.keyed and key == (use_rep or file.default_rep):
            raise BadValue(
                f"Expected a name for the result that differs from the input's, found {key!r}."
            )
        place, more = _checked_out(out, file), obs[list(columns)]
        job = Job(file, use_rep, rows, batches, key, place, population, to_keep, more)
        log.info(
            "%s: %d cells x %d coordinates (%s) in %d batches, %d rows at a time; result %r",
            file.path.name, *rows.shape, rows.dtype, batches.batches.size, job.step, key,
        )  # fmt: skip
        try:
            yield job
        except NotFinite:  # on values of cells, which are found while they are read
            with naming(file.path):
                raise


def _checked_out(out: str | Path | None, file: CellFile) -> Path | None:
    if out is None or Path(out).resolve() == file.path.resolve():
        return None
    kind, out_kind = kind_of(file.path), kind_of(out)
    if kind != out_kind and not (out_kind == ".npy" or {kind, out_kind} <= TEXT_TABLES):
        raise BadValue(
            f"Expected an output of the same kind as the input ({kind}), or .npy for only the refined "
            f"cells, found {Path(out).name!r}."
        )
    if out_kind == ".zarr":
        from ..io.formats.zarr_folder import check_store_place

        check_store_place(out)
    elif Path(out).is_dir():
        raise BadValue(f"Expected a {out_kind} file, or nothing, at {out}, found a folder.")
    if file.path.resolve() in Path(out).resolve().parents:
        raise BadValue(f"Expected an output outside of the input folder, found {out}.")
    if not Path(out).resolve().parent.is_dir():
        raise BadValue(f"Expected a folder to write to, found none at {Path(out).parent}.")
    return Path(out)
