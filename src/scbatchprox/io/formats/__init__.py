"""Files with embeddings, opened by suffix. Most are read in parts, not loaded completely."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ...errors import BadFile, BadValue
from ..damaged import reading
from ..found import kind_at
from .base import CellFile, Rows, Writer, check_key

__all__ = ["SUFFIXES", "CellFile", "Rows", "Writer", "check_key", "kind_of", "open_cells"]

#: The module and class that open each kind of file; imported when needed.
SUFFIXES = {
    ".h5ad": ("h5ad", "H5adFile"),
    ".zarr": ("zarr", "ZarrFile"),
    ".npy": ("arrays", "NpyFile"),
    ".npz": ("arrays", "NpzFile"),
    ".parquet": ("parquet", "ParquetFile"),
    ".csv": ("text", "TextFile"),
    ".tsv": ("text", "TextFile"),
    ".csv.gz": ("text", "TextFile"),
    ".tsv.gz": ("text", "TextFile"),
}


def kind_of(path: str | Path) -> str:
    """Return the suffix that tells the kind of a file."""
    name = Path(path).name.lower()
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    if name.endswith(".h5mu"):
        raise BadValue(
            f"Expected a file with one table of cells, found the MuData {Path(path).name!r}; write a "
            f'modality to its own file, such as mdata["rna"].write_h5ad("rna.h5ad"), or call '
            f"scbatchprox.refine on the MuData."
        )
    raise BadValue(
        f"Expected a file with a suffix of {', '.join(SUFFIXES)}, found {Path(path).name!r}."
    )


def open_cells(
    path: str | Path, labels: str | Path | None = None, *, worker: bool = False
) -> CellFile:
    """Open a file for reading; ``labels`` is a second file with the labels.

    Only ``.npy`` needs a second file; all other kinds can hold labels. A ``worker`` reads on behalf of a
    process that has the file open and may hold its lock.
    """
    path = Path(path)
    module, name = SUFFIXES[kind_of(path)]
    found, wanted = kind_at(path), "folder" if kind_of(path) == ".zarr" else "file"
    if found is None and wanted == "folder":
        from .zarr_place import restore

        restore(path)  # a process may have been killed while it replaced the store
        found = kind_at(path)
    if found is None:
        raise BadFile(f"Expected a file to read, found none at {path}.")
    if found != wanted:
        raise BadValue(f"Expected {path} to be a {wanted}, found a {found}.")
    kind: type[CellFile] = getattr(import_module(f".{module}", __name__), name)
    with reading(path):
        file = kind(path, worker=worker)
    if labels is None:
        return file
    from .second_file import WithLabels

    return WithLabels(file, Path(labels))
