"""New cells from a file: their moments, and their distances from the atlas."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..cells.file import Job
from ..cells.reading import LocalCells
from ..core.moments import Moments
from ..errors import BadValue
from ..io.atomic import replacing
from ..io.damaged import reading
from ..io.formats import kind_of
from ..kernels.arrays import Floats
from ..progress import Progress
from ..upstream import Upstream, is_saved
from ..upstream import load as load_upstream
from ..upstream.on_disk import recorded
from .folder import Record, checksum, file_sha256
from .judging import CELL_FAR, cell_scores

__all__ = [
    "Source",
    "check_score_outputs",
    "check_upstream",
    "fingerprint",
    "write_scores",
]

DISTANCE, FLAG = "atlas_distance", "atlas_far"


@dataclass(frozen=True)
class Source:
    """A file that is read in chunks; twice if cells are scored."""

    _job: Job

    @property
    def use_rep(self) -> str | None:
        """Name of the embedding, or the default if embeddings of this kind of file have names."""
        file = self._job.file
        by_name = kind_of(file.path) in (".h5ad", ".zarr")
        return self._job.use_rep or (file.default_rep if by_name else None)

    @property
    def upstream(self) -> str | None:
        """Fingerprint of the upstream of the embedding, if the file has one."""
        return recorded(self._job.file, self.use_rep)

    @property
    def state(self) -> os.stat_result:
        """The state of the file that was read; an error if it is another one by now."""
        self._job.file.check_unchanged()
        return self._job.file.state

    def describe(self, model: BatchProx, progress: Progress) -> Moments:
        """Return the moments of the cells, as the model needs them."""
        return model.describe(LocalCells(self._job, progress))

    def scores(self, model: BatchProx, progress: Progress) -> Floats:
        """(N,) distance of each cell from the batches of a model."""
        scores = np.empty(self._job.rows.shape[0])
        for lo, block in LocalCells(self._job, progress).chunks():
            hi = lo + block.shape[0]
            scores[lo:hi] = cell_scores(model.moments_, block)
            progress("scores", hi, scores.size)
        return scores

    def far_cells(self, scores: Floats) -> list[int]:
        """Count the cells of each batch that are far from the atlas."""
        codes = self._job.labels.codes[scores > CELL_FAR]
        counts: list[int] = np.bincount(codes, minlength=self._job.labels.batches.size).tolist()
        return counts


def check_score_outputs(path: str | Path, scores_out: str | Path | None, mark: bool) -> None:
    """Raise an error if scores cannot be written, before anything is read."""
    if mark and kind_of(path) != ".h5ad":
        raise BadValue(
            f"Expected an .h5ad file to mark cells in, found {Path(path).name}; write the scores to a "
            f".csv instead."
        )
    if scores_out is not None:
        if Path(scores_out).suffix != ".csv":
            raise BadValue(f"Expected a .csv for the scores, found {Path(scores_out).name!r}.")
        if Path(scores_out).resolve() == Path(path).resolve():
            raise BadValue(
                f"Expected different files for the scores and the input, found {path} for both."
            )
        if not Path(scores_out).resolve().parent.is_dir():
            raise BadValue(
                f"Expected a folder for the scores, found none at {Path(scores_out).parent}."
            )


def write_scores(
    path: str | Path,
    state: os.stat_result,
    scores: Floats,
    scores_out: str | Path | None,
    mark: bool,
) -> None:
    """Write scores and flags to a table, to ``obs`` of the file in this state, or to both."""
    columns = {DISTANCE: scores, FLAG: scores > CELL_FAR}
    if scores_out is not None:
        table = pd.DataFrame(columns, index=pd.RangeIndex(scores.size, name="row"))
        with replacing(scores_out) as partial:
            table.to_csv(partial)
    if mark:
        with reading(path):  # a damaged file may be readable, and yet nothing can be added to it
            _write_obs(Path(path), state, columns)


def _write_obs(path: Path, state: os.stat_result, columns: dict[str, np.ndarray]) -> None:
    """Add columns to ``obs`` of an .h5ad file; after a failure the file is unchanged."""
    import h5py
    from anndata.io import write_elem

    from ..io.formats.elements import own_group, parts_of
    from ..io.formats.h5ad import changing

    with changing(path, state) as file:
        obs = own_group(file, "obs")
        order = ["/".join(parts_of(name)) for name in obs.attrs["column-order"]]
        for name, values in columns.items():
            if name in obs:
                del obs[name]
            write_elem(obs, name, values)
        order += [name for name in columns if name not in order]
        obs.attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())


def fingerprint(upstream: str | Path | Upstream) -> str:
    """Return the text that identifies the upstream of an embedding.

    That is the fingerprint of an :class:`~scbatchprox.upstream.Upstream` or of its file, the checksum of
    any other file, the checksum of the names and contents of all files in a folder (such as a model saved
    by scvi-tools), or any other text itself.
    """
    if isinstance(upstream, Upstream):
        return upstream.fingerprint
    path = Path(upstream)
    try:
        kind = "file" if path.is_file() else "folder" if path.is_dir() else "text"
    except (OSError, ValueError):  # a text that cannot be the name of a file
        kind = "text"
    if kind == "file":
        return load_upstream(path).fingerprint if is_saved(path) else f"sha256:{file_sha256(path)}"
    if kind == "folder":
        files = sorted(item for item in path.rglob("*") if item.is_file())
        listed = [(item.relative_to(path).as_posix(), file_sha256(item)) for item in files]
        return f"sha256:{checksum(listed)}"
    if not str(upstream).strip():
        raise BadValue("Expected a text or a file as upstream, found an empty text.")
    return str(upstream)


def check_upstream(
    record: Record, upstream: str | Path | Upstream | None, recorded: str | None = None
) -> None:
    """Check that cells have the same upstream as the atlas, if it is known.

    ``recorded`` is the fingerprint in the file of the cells. It is compared with the fingerprint of the
    atlas. If the upstream of the atlas is a text, it is compared with the fingerprint in earlier files.
    """
    if upstream is not None:
        _same_upstream(record.upstream, fingerprint(upstream))
    own = record.upstream
    known = own if own is not None and _is_fingerprint(own) else record.recorded_upstream
    if recorded is not None and known is not None:
        _same_upstream(known, recorded)


def _same_upstream(known: str | None, found: str) -> None:
    if found != known:
        wanted = "none (the atlas names none)" if known is None else repr(known)
        raise BadValue(f"Expected the upstream of the atlas, {wanted}, found {found!r}.")


def _is_fingerprint(upstream: str) -> bool:
    return re.fullmatch(r"(sha256|pca|scvi):[0-9a-f]{64}", upstream) is not None
