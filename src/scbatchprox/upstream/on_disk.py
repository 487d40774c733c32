"""Embed the counts of ``.h5ad`` and ``.zarr`` files without loading them, and read the record of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from anndata.io import read_elem

from ..cells.keys import as_keys, batch_labels
from ..core.checks import some_of
from ..errors import BadValue, Parameter
from ..io.damaged import naming, reading
from ..io.formats import CellFile, check_key, kind_of, open_cells
from ..io.formats.elements import AnnDataFile, check_stored, child, group_in, stored_rows
from ..progress import Progress, silent
from .base import RECORD, Upstream
from .counts import Counts, check_there
from .genes import MIN_SHARED, GeneReport, check_distinct

__all__ = ["embed_file", "open_counts", "read_counts", "recorded"]

#: Kinds of files that can hold counts and a record.
KINDS = (".h5ad", ".zarr")


def embed_file(
    path: str | Path,
    upstream: Upstream,
    *,
    layer: str | None = None,
    key_added: str | None = None,
    out: str | Path | None = None,
    min_shared: float = MIN_SHARED,
    fractional: bool = False,
    progress: Progress = silent,
) -> GeneReport:
    """Embed the cells of a file by their counts, which are read and written in blocks of rows.

    Parameters
    ----------
    path
        An ``.h5ad`` or ``.zarr`` file.
    upstream
        The reference to embed with.
    key_added
        Name of the embedding in ``obsm``, and of its record in ``uns``; by default ``X_pca`` or
        ``X_scvi``. In the file itself, an embedding of this name that another
        program wrote is never replaced.
    out
        Path of a copy of the file with the result; ``None`` writes into the file itself.
    layer, min_shared, fractional
        As for :meth:`Upstream.embed`.
    progress
        Called after each block of rows.
    """
    key = f"X_{upstream.method}" if key_added is None else key_added
    check_key(key, "the embedding")
    with _opened(path) as file:
        place = _checked_out(out, file.path)
        with reading(file.path):
            _check_free(file.group, key, file.path, in_place=place is None)
        counts = _counts(file, layer, upstream.batch_key, fractional)
        shape = (counts.n_cells, upstream.n_dims)
        with (
            naming(file.path, *filter(None, [place])),
            file.writer(place, key, shape, np.dtype(np.float32)) as writer,
        ):
            report, blocks = upstream.mapped(counts, min_shared)
            for lo, block in blocks:
                writer.write(lo, block)
                progress("embed", lo + len(block), counts.n_cells)
            writer.finish(upstream.record(report))
    return report


@contextmanager
def open_counts(
    path: str | Path,
    *,
    layer: str | None = None,
    batch_key: str | Sequence[str] | None = None,
    fractional: bool = False,
) -> Iterator[Counts]:
    """Open the counts of a file, to be read in blocks of rows while it is open."""
    with _opened(path) as file:
        keys = None if batch_key is None else as_keys(batch_key)
        yield _counts(file, layer, keys, fractional)


def read_counts(
    paths: Sequence[str | Path],
    *,
    layer: str | None = None,
    batch_key: str | Sequence[str] | None = None,
    fractional: bool = False,
) -> ad.AnnData:
    """Read the counts of one or several files, for the genes that all files have.

    The result has the counts in ``X``, the batch columns in ``obs``, and the columns of ``var`` that are the
    same in all files.
    """
    if not paths:
        raise BadValue("Expected at least one file with counts, found none.")
    parts = []
    for path in paths:
        with _opened(path) as file, reading(path):
            counts = _counts(file, layer, None, fractional)
            check_distinct(counts.genes, f" in {file.path.name}")
            keys = [] if batch_key is None else as_keys(batch_key)
            # Several files may use the same names for cells. The names are not needed.
            index = pd.RangeIndex(counts.n_cells).astype(str)
            obs = file.obs(keys).set_axis(index) if keys else pd.DataFrame(index=index)
            parts.append(ad.AnnData(counts.in_memory(), obs=obs, var=counts.var))
    if len(parts) == 1:
        return parts[0]
    together = ad.concat(parts, join="inner", merge="same", index_unique="-")
    if not together.n_vars:
        names = some_of([part.var_names[0] for part in parts])
        raise BadValue(
            f"Expected genes that all {len(parts)} files have, found none; their first genes are {names}."
        )
    return together


def recorded(file: CellFile, key: str | None) -> str | None:
    """Return the fingerprint of the upstream that made an embedding in a file, if it is recorded."""
    if key is None or not isinstance(file, AnnDataFile):
        return None
    with reading(file.path):
        found = _record(file.group, key)
    return None if found is None else str(found)


def _record(group: Any, key: str) -> Any:
    # An entry from another program may not be a group, or may not name an upstream.
    found = child(child(group_in(group, "uns"), key, {}), RECORD, None)
    if found is None:
        return None
    check_stored(found, RECORD)
    return read_elem(found)


@contextmanager
def _opened(path: str | Path) -> Iterator[AnnDataFile]:
    """Open a file that can hold counts and a record."""
    if kind_of(path) not in KINDS:
        raise BadValue(
            f"Expected an {' or '.join(KINDS)} file with counts, found {Path(path).name!r}."
        )
    with open_cells(path) as file:
        assert isinstance(file, AnnDataFile)
        yield file


def _counts(
    file: AnnDataFile, layer: str | None, batch_key: Sequence[str] | None, fractional: bool
) -> Counts:
    with reading(file.path):
        layers = group_in(file.group, "layers")
        counts = child(file.group, "X", None) if layer is None else child(layers, layer, None)
        check_there(counts, layer, layers, f" of {file.path.name}")
        file.note("X" if layer is None else f"layers/{layer}", "var")
        rows = stored_rows(counts, "X")
        genes = child(file.group, "var")
        check_stored(genes, "var")
        var = read_elem(genes)
        if not isinstance(var, pd.DataFrame) or len(rows.shape) != 2 or len(var) != rows.shape[1]:
            found = f"{len(var)} genes" if isinstance(var, pd.DataFrame) else type(var).__name__
            raise BadValue(
                f"Expected a table of the genes of counts of shape {rows.shape}, found {found}."
            )
        batch = None if batch_key is None else batch_labels(file.obs(batch_key), batch_key)
        return Counts(rows, var, batch, fractional)


def _check_free(group: Any, key: str, path: Path, *, in_place: bool) -> None:
    """Check that there is a place for an embedding and its record."""
    obsm, _ = (group_in(group, name) for name in ("obsm", "uns"))
    there = in_place and child(obsm, key, None) is not None
    if there and _record(group, key) is None:
        raise BadValue(
            f"Expected an unused name for the embedding, found {key!r} of another program in obsm of "
            f"{path.name}; choose another name with ", Parameter("key_added", "--key-added"), ".",
        )  # fmt: skip


def _checked_out(out: str | Path | None, path: Path) -> Path | None:
    if out is None or Path(out).resolve() == path.resolve():
        return None
    if kind_of(out) != kind_of(path):
        raise BadValue(
            f"Expected an output of the same kind as the input ({kind_of(path)}), found "
            f"{Path(out).name!r}."
        )
    if not Path(out).resolve().parent.is_dir() or path.resolve() in Path(out).resolve().parents:
        raise BadValue(f"Expected a folder outside of the input to write to, found {out}.")
    return Path(out)
