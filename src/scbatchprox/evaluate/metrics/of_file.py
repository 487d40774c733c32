"""Score the embeddings of a file: read all labels first, then only the rows that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd

from ...cells.file import CHUNK_BYTES
from ...cells.keys import as_keys, batch_labels
from ...core.checks import check_embedding, one_of, some_of
from ...core.labels import Labels
from ...core.narrow import Tabled
from ...core.shown import count
from ...errors import BadValue, Parameter
from ...io.damaged import naming
from ...io.formats import CellFile, kind_of, open_cells
from ...kernels.arrays import Ints
from ...progress import Progress, silent
from .cells import sample
from .comparison import Comparison, compare
from .scib_scores import FAST_CELLS, PROFILES

__all__ = ["Scored", "evaluate_file"]

#: Kinds of files in which an embedding has a name; in a table it is a prefix of column names.
_BY_NAME = (".h5ad", ".zarr", ".npz")


@dataclass(frozen=True, eq=False, repr=False)
class Scored(Tabled):
    """Scores of the embeddings of a file, and the labels of the scored cells.

    Attributes
    ----------
    comparison
        The scores.
    batch, cell_type
        Labels of the cells that were scored.
    n_in_file, n_unlabelled
        Number of cells in the file, and of cells without a type, which were left out.
    """

    comparison: Comparison
    batch: Labels
    cell_type: Labels
    n_in_file: int
    n_unlabelled: int

    def _facts(self) -> str:
        return f"{self.n_cells:,} of {count(self.n_in_file, 'cell')}; {self.comparison._facts()}"

    def _table(self) -> pd.DataFrame:
        return self.comparison._table()

    @property
    def n_cells(self) -> int:
        """Number of scored cells: all with a type, or a sample of them."""
        return int(self.batch.codes.size)


def evaluate_file(
    path: str | Path,
    batch_key: str | Sequence[str],
    label_key: str,
    reps: Sequence[str],
    *,
    labels: str | Path | None = None,
    profile: str = "full",
    runs: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> Scored:
    """Score embeddings of a file and compare them with the first.

    Parameters
    ----------
    path
        A file that holds embeddings by name: ``.h5ad``, ``.zarr``, ``.npz``, or a table, in which the
        name is a prefix of column names.
    batch_key, label_key
        Columns with the batch and the type of each cell. Cells without a type are left out.
    reps
        Names of the embeddings, the unrefined one first.
    labels
        A second file that holds the labels.
    profile, runs, seed
        As for :func:`.scores`.
    progress
        Called after each embedding.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> path = tempfile.mkdtemp() + "/cells.npz"
    >>> np.savez(path, X_pca=Z, X_refined=Z + 1.0, batch=batch, cell_type=cell_type)
    >>> from scbatchprox.evaluate import evaluate_file
    >>> found = evaluate_file(path, "batch", "cell_type", ["X_pca", "X_refined"], runs=1)
    >>> found.n_cells, found.comparison.scores.columns.tolist()
    (100, ['X_pca', 'X_refined'])
    """
    one_of("profile", profile, PROFILES)
    _check_reps(reps)
    with open_cells(path, labels) as file:
        _check_file(file, reps)
        with naming(path if labels is None else labels, path):
            batch = batch_labels(file.obs(as_keys(batch_key)), batch_key)
            cell_type = _types(file, label_key)
        if len(cell_type) != len(batch):  # arrays of an .npz may have any length
            raise BadValue(
                f"Expected one batch and one type per cell in {file.path.name}, found {len(batch)} batches "
                f"and {len(cell_type)} types."
            )
        rows = np.flatnonzero(cell_type.notna())
        if not rows.size:
            raise BadValue(
                f"Expected cells with a type in {label_key!r} of {file.path.name}, found none."
            )
        with naming(path if labels is None else labels, path):
            known = [Labels.of(column.iloc[rows], rows.size) for column in (batch, cell_type)]
        if profile == "fast":
            kept = sample(known[0], known[1], FAST_CELLS, seed)
            rows, known = rows[kept], [Labels(k.codes[kept], k.batches) for k in known]
        embeddings = {rep: _read(file, rep, rows, len(batch)) for rep in reps}
    try:
        found = compare(embeddings, *known, runs=runs, seed=seed, progress=progress)
    except BadValue:
        with naming(path):
            raise
    return Scored(found, known[0], known[1], len(batch), int(cell_type.isna().sum()))


def _check_reps(reps: Sequence[str]) -> None:
    if not reps or not all(reps):
        raise BadValue(f"Expected names of embeddings, found {some_of(reps)}.")
    if len(set(reps)) < len(reps):
        raise BadValue(f"Expected different embeddings, found {some_of(reps)}.")


def _check_file(file: CellFile, reps: Sequence[str]) -> None:
    if not file.named:
        raise BadValue(f"Expected a file that holds embeddings by name, found {file.path.name}.")
    if kind_of(file.path) in _BY_NAME:
        return
    for a, b in permutations(reps, 2):
        if b.startswith(a):
            raise BadValue(
                f"Expected names that are not prefixes of each other, found {a!r} and {b!r}."
            )


def _types(file: CellFile, label_key: str) -> pd.Series:
    column: pd.Series = file.obs([label_key], Parameter("label_key"))[label_key]
    return column


def _read(file: CellFile, rep: str, rows: Ints, n_cells: int) -> np.ndarray:
    """Read the chosen rows of an embedding in blocks, so that the whole is never in memory."""
    with naming(file.path):
        stored = file.embedding(rep)
        check_embedding(stored[0:1])
    n, d = stored.shape
    if n != n_cells:
        raise BadValue(
            f"Expected one label per cell of {rep!r} ({n}) in {file.path.name}, found {n_cells}."
        )
    step = max(file.row_step, CHUNK_BYTES // (d * stored.dtype.itemsize))
    blocks = []
    for lo in range(0, n, step):
        wanted = rows[(rows >= lo) & (rows < lo + step)] - lo
        if wanted.size:
            block = stored[lo : min(n, lo + step)][wanted]
            blocks.append(block.toarray() if hasattr(block, "toarray") else np.asarray(block))
    return np.concatenate(blocks)
