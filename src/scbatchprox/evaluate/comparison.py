"""Embeddings of the same cells, compared: all scores of each, and how far cells moved from the first.

``scores`` gives every score of one embedding, ``stability`` the movement of each batch, type and population,
and ``compare`` both for several embeddings. ``evaluate_file`` does so for a file: it reads all labels first,
then only the rows that are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..cells.file import rows_at_a_time
from ..cells.keys import as_keys, batch_labels
from ..core.checks import check_embedding, one_of, some_of
from ..core.labels import Labels
from ..core.printed_tables import Tabled
from ..core.shown import count, names
from ..errors import BadValue, Parameter
from ..io.damaged import naming
from ..io.formats import CellFile, kind_of, open_cells
from ..kernels.arrays import Floats, Ints
from ..progress import Progress, silent
from .cells import ScoredCells, embedding, group_sums, pairs, sample
from .classification import f1_given_batch, leave_one_batch_out_f1, macro_f1
from .mixing import (
    N_NEIGHBOURS,
    Neighbours,
    mean_ilisi,
    mean_kept_in_batch,
    mixing_within_types,
    neighbours_kept,
    over_corrected,
    variance_kept,
)
from .scib_scores import BY_LIBRARY, FAST_CELLS, NEAREST, PROFILES, chosen, scib_library, scib_of

__all__ = [
    "Comparison", "Scored", "compare", "evaluate_file", "neighbourhood_scores", "scores", "stability",
]  # fmt: skip


def scores(
    Z: Any,
    batch: Any,
    cell_type: Any,
    *,
    before: Any = None,
    profile: str = "full",
    runs: int = 1,
    seed: int = 0,
    partial: bool = False,
) -> dict[str, float]:
    """Score an embedding by classification, by its neighbourhoods, and by scIB.

    Parameters
    ----------
    Z, batch, cell_type, before, profile, seed
        As for :func:`.scib`; the fast profile applies to all scores.
    runs
        Number of splits, with seeds ``seed``, ``seed + 1``, ...; ``macro_f1`` and ``f1_given_batch`` are
        means over them.
    partial
        Leave out scores whose package is not installed (``clisi``, ``ilisi``, ``graph_connectivity``, and
        the means ``bio``, ``batch`` and ``overall``), instead of an error.

    Returns
    -------
    dict
        ``macro_f1`` (and ``macro_f1_sd`` for several runs), ``f1_given_batch``, ``lobo_f1``,
        ``silhouette`` (of cell types, -1 to 1), ``ilisi_30``, ``mixing_within_types``,
        ``over_correction`` (lower is better), with ``before`` also ``variance_kept`` and
        ``neighbours_kept_in_batch`` (the mean of :func:`.neighbours_kept` within batches), and all that
        :func:`.scib` returns.

    Examples
    --------
    Needs the extra ``scib``.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import scores
    >>> found = scores(Z, batch, cell_type)
    >>> found["macro_f1"], found["lobo_f1"], found["over_correction"]
    (1.0, 1.0, 0.0)
    """
    if runs < 1:
        raise BadValue(f"Expected at least one run, found {runs}.")
    cells = chosen(Z, batch, cell_type, before, profile, seed)
    library = scib_library(partial)
    near = Neighbours.of(cells.Z, NEAREST)
    splits = range(seed, seed + runs)
    f1 = [macro_f1(cells.Z, cells.cell_type, seed=split) for split in splits]
    given = [f1_given_batch(cells.Z, cells.cell_type, cells.batch, seed=split) for split in splits]
    by_scib = scib_of(cells, near, seed, library)
    spread = {"macro_f1_sd": float(np.std(f1))} if runs > 1 else {}
    return {
        "macro_f1": float(np.mean(f1)),
        **spread,
        "f1_given_batch": float(np.mean(given)),
        "silhouette": 2 * by_scib["asw_cell"] - 1,
        **_by_neighbours(cells, near),
        **by_scib,
    }


def neighbourhood_scores(
    Z: Any, batch: Any, cell_type: Any, before: Any = None
) -> dict[str, float]:
    """Return the scores of :func:`scores` that use neighbours and spread; they do not need scib-metrics."""
    cells = ScoredCells.of(Z, batch, cell_type, before)
    return _by_neighbours(cells, Neighbours.of(cells.Z, N_NEIGHBOURS))


def _by_neighbours(cells: ScoredCells, near: Neighbours) -> dict[str, float]:
    """Return scores from given neighbours, at least ``N_NEIGHBOURS`` of each cell."""
    Z, batch, cell_type = cells.Z, cells.batch, cells.cell_type
    found = {
        "lobo_f1": leave_one_batch_out_f1(Z, cell_type, batch),
        "ilisi_30": mean_ilisi(near.indices[:, :N_NEIGHBOURS], batch),
        "mixing_within_types": mixing_within_types(Z, batch, cell_type),
        "over_correction": over_corrected(near.indices[:, :N_NEIGHBOURS], batch, cell_type),
    }
    if cells.before is not None:
        found["variance_kept"] = variance_kept(cells.before, Z, batch, cell_type)
        found["neighbours_kept_in_batch"] = mean_kept_in_batch(cells.before, Z, batch)
    return found


def stability(
    before: Any,
    after: Any,
    batch: Any,
    cell_type: Any = None,
    *,
    k: int = N_NEIGHBOURS,
    rare: float = 0.05,
) -> pd.DataFrame:
    r"""How far cells moved, and how many of their neighbours they kept, group by group.

    Parameters
    ----------
    before, after
        (N, d) and (N, d') embeddings of the same cells.
    batch, cell_type
        One label of each kind per cell; without types there are only rows for batches.
    k
        Number of neighbours.
    rare
        Types with less than this share of all cells are called rare.

    Returns
    -------
    DataFrame
        A row per group: ``kind`` (``"batch"``, ``"cell type"``, ``"rare type"``, or ``"population"``
        for the cells of one type in one batch), ``name``, ``n`` (cells), ``moved`` (the root mean
        squared displacement of its cells), ``relative`` (``moved`` divided by the spread of the group
        before, the root mean squared distance from its mean), ``neighbours_kept`` (mean share of the
        k nearest neighbours).

        Displacements only make sense if the second embedding is a refinement of the first: ``moved``
        and ``relative`` are NaN if their numbers of coordinates differ. ``relative`` is also NaN if all
        cells of the group have the same coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import stability
    >>> stability(Z, Z + 1.0, batch)[["name", "n", "moved", "neighbours_kept"]].round(2).values.tolist()
    [['a', 50, 1.73, 1.0], ['b', 50, 1.73, 1.0]]
    """
    first, second = embedding(before), embedding(after)
    kept = neighbours_kept(first, second, k=k)
    n = len(first)
    batches = Labels.of(batch, n)
    by: list[tuple[Any, list[Any], Ints]] = [("batch", batches.batches.tolist(), batches.codes)]
    if cell_type is not None:
        types = Labels.of(cell_type, n, "cell type")
        found, population = np.unique(pairs(types, batches), return_inverse=True)
        of_type, of_batch = np.divmod(found, batches.batches.size)
        both = zip(types.batches[of_type], batches.batches[of_batch], strict=True)
        kinds = np.where(types.n < rare * n, "rare type", "cell type")
        by.append((kinds, types.batches.tolist(), types.codes))
        by.append(("population", [f"{t} | {b}" for t, b in both], population))
    tables = [
        pd.DataFrame({"kind": kind, "name": name} | _movement(first, second, kept, codes))
        for kind, name, codes in by
    ]
    return pd.concat(tables, ignore_index=True)


def _movement(before: Floats, after: Floats, kept: Floats, codes: Ints) -> dict[str, np.ndarray]:
    """Return columns of the table for one grouping of the cells."""
    n = np.bincount(codes)
    centre = group_sums(before, codes, n.size) / n[:, None]
    spread = np.sqrt(np.bincount(codes, ((before - centre[codes]) ** 2).sum(1)) / n)
    moved = np.full(n.size, np.nan)
    if before.shape == after.shape:
        moved = np.sqrt(np.bincount(codes, ((after - before) ** 2).sum(1)) / n)
    return {
        "n": n,
        "moved": moved,
        "relative": np.divide(moved, spread, out=np.full(n.size, np.nan), where=spread > 0),
        "neighbours_kept": np.bincount(codes, kept) / n,
    }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabled):
    """Scores of embeddings, and how far cells moved from the first to each of the others.

    Attributes
    ----------
    scores
        A row per score, a column per embedding.
    stability
        The rows of :func:`.stability` for every embedding but the first, which ``rep`` names.

    Examples
    --------
    >>> import pandas as pd
    >>> from scbatchprox.evaluate import Comparison
    >>> index = pd.Index(["macro_f1"], name="score")
    >>> scores = pd.DataFrame({"before": [0.8], "after": [0.9]}, index=index)
    >>> found = Comparison(scores, pd.DataFrame())  # as `compare` returns
    >>> found.change.round(2).to_dict("index")
    {'macro_f1': {'after': 0.1}}
    """

    scores: pd.DataFrame
    stability: pd.DataFrame

    def _facts(self) -> str:
        return (
            f"{count(self.scores.shape[1], 'embedding')} ({names(list(self.scores))}), "
            f"{count(len(self.scores), 'score')}; change and stability have more"
        )

    def _table(self) -> pd.DataFrame:
        return self.scores

    @property
    def change(self) -> pd.DataFrame:
        """Differences from the first embedding; the spreads between splits are left out."""
        spread = [name for name in self.scores.index if name.endswith("_sd")]
        scores = self.scores.drop(index=spread)
        first, *others = scores
        return scores[others].sub(scores[first], axis=0)

    @property
    def missing(self) -> list[str]:
        """Scores that need scib-metrics, which is not installed."""
        return [name for name in BY_LIBRARY if name not in self.scores.index]

    def long(self) -> pd.DataFrame:
        """Return one table with a number per row: scores of all cells first, then of groups of cells."""
        value, change = (
            table.reset_index().melt("score", var_name="rep", value_name=name)
            for name, table in (("value", self.scores), ("change", self.change))
        )
        table = value.merge(change, how="left").assign(kind="all cells", name="")
        if len(self.stability):
            by_group = self.stability.melt(["rep", "kind", "name"], var_name="score")
            table = pd.concat([table, by_group], ignore_index=True)
        return table[["rep", "kind", "name", "score", "value", "change"]]


def compare(
    embeddings: Mapping[str, Any],
    batch: Any,
    cell_type: Any,
    *,
    runs: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> Comparison:
    """Score embeddings of the same cells; the first one is the unrefined embedding.

    Scores whose package is not installed are left out; :attr:`Comparison.missing` names them.

    Parameters
    ----------
    embeddings
        (N, d) arrays by name.
    batch, cell_type, runs, seed
        As for :func:`.scores`.
    progress
        Called after each embedding.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import compare
    >>> found = compare({"before": Z, "after": Z - Z.mean(0)}, batch, cell_type, runs=1)
    >>> found.scores.columns.tolist()
    ['before', 'after']
    """
    if not embeddings:
        raise BadValue("Expected at least one embedding to score, found none.")
    before = next(iter(embeddings.values()))
    columns, moved = {}, []
    for done, (name, Z) in enumerate(embeddings.items()):
        columns[name] = scores(
            Z, batch, cell_type, before=before, runs=runs, seed=seed, partial=True
        )
        if done:
            moved.append(stability(before, Z, batch, cell_type).assign(rep=name))
        progress("score", (done + 1) * len(Z), len(embeddings) * len(Z))
    columns_of = ["kind", "name", "n", "moved", "relative", "neighbours_kept", "rep"]
    return Comparison(
        pd.DataFrame(columns).rename_axis(index="score"),
        pd.concat(moved, ignore_index=True) if moved else pd.DataFrame(columns=columns_of),
    )


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
            cell_type = file.obs([label_key], Parameter("label_key"))[label_key]
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
            rows, known = rows[kept], [of.at(kept) for of in known]
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


def _read(file: CellFile, rep: str, rows: Ints, n_cells: int) -> np.ndarray:
    """Read the chosen rows of an embedding in blocks, so that the whole is never in memory."""
    with naming(file.path):
        stored = file.embedding(rep)
        check_embedding(stored[0:1])
    n = stored.shape[0]
    if n != n_cells:
        raise BadValue(
            f"Expected one label per cell of {rep!r} ({n}) in {file.path.name}, found {n_cells}."
        )
    step = rows_at_a_time(file, stored)
    blocks = []
    for lo in range(0, n, step):
        wanted = rows[(rows >= lo) & (rows < lo + step)] - lo
        if wanted.size:
            block = stored[lo : min(n, lo + step)][wanted]
            blocks.append(block.toarray() if hasattr(block, "toarray") else np.asarray(block))
    return np.concatenate(blocks)
