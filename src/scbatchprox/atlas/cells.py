"""New cells from a file: their moments, and their distances from the atlas."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..cells.file import Job, open_job
from ..cells.reading import LocalCells
from ..core.moments import Moments
from ..errors import BadValue
from ..io.atomic import replacing
from ..io.damaged import reading
from ..io.formats import kind_of
from ..kernels.arrays import Floats
from ..progress import Progress
from ..upstream.on_disk import recorded
from .judging import CELL_FAR, cell_scores

__all__ = ["Source", "check_score_outputs", "open_cells", "write_scores"]

DISTANCE, FLAG = "atlas_distance", "atlas_far"


@dataclass(frozen=True)
class Source:
    """A file that is read in chunks; twice if cells are scored."""

    _job: Job

    @property
    def batches(self) -> np.ndarray:
        """The batches of the file."""
        return self._job.labels.batches

    @property
    def n_dims(self) -> int:
        """The number of coordinates."""
        return int(self._job.rows.shape[1])

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
        counts: list[int] = np.bincount(codes, minlength=self.batches.size).tolist()
        return counts


@contextmanager
def open_cells(
    path: str | Path, batch_key: str | Sequence[str], use_rep: str | None, labels: str | Path | None
) -> Iterator[Source]:
    """Open a file with new cells."""
    with open_job(path, batch_key, use_rep, None, None, labels) as job:
        yield Source(job)


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
