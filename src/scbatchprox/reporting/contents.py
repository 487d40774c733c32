"""What a report shows, gathered from the cells before anything is drawn.

The facts are a refinement and its diagnosis, made for the report or taken from the record of one that was
made before; the cells that are drawn, and where in the picture they are; and scores, where cell types are
known.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd

from .._version import __version__
from ..api.estimator import BatchProx
from ..cells.keys import as_keys
from ..choices import Views
from ..core.adapter import Adapter
from ..core.checks import one_of
from ..core.fit import Fit, Method
from ..core.labels import Labels, column_labels, cross_counts, population_labels
from ..core.moments import Anchors, Moments
from ..core.solvers import Exact, History
from ..core.target import Cells, Weights
from ..diagnosis.kept import MEASURES, kept_columns, kept_names
from ..diagnosis.table import COLUMNS, diagnosis, with_kept
from ..diagnosis.verdict import TEXT_COLUMNS, level_of
from ..errors import BadValue, MissingExtra, Parameter
from ..evaluate.cells import sample
from ..evaluate.classification import f1_given_batch
from ..evaluate.comparison import neighbourhood_scores
from ..io.model_file import checked, from_record, params_as_json
from ..kernels.arrays import Floats, Ints
from ..kernels.kmeans import kmeans
from ..kernels.products import squared_distances
from ..plots.layout import NEIGHBOURS, principal, umaps
from ..progress import Progress, silent
from ..targets.method import solver_of, target_of
from ..targets.population.find import gathered, looked_at
from ..upstream.base import digest
from .source import ReportSource

__all__ = ["SCORES", "Contents", "Drawn", "Scores", "gather"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """The cells in the scatter plots: a sample in which small batches are seen too.

    Attributes
    ----------
    before, after
        (m, 2) positions in the picture.
    batch, cell_type
        Labels of the cells; without types ``cell_type`` is ``None``, and cells may lack one ("no label").
    moved
        (m,) displacement of each cell as a part of the spread of its batch.
    view
        What the two axes are, in words.
    """

    before: Floats
    after: Floats
    batch: Labels
    cell_type: Labels | None
    moved: Floats
    view: str

    @property
    def n(self) -> int:
        """Number of cells drawn."""
        return len(self.before)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the unrefined and the refined embedding (columns), on ``n`` cells with a type."""

    table: pd.DataFrame
    n: int


@dataclass(frozen=True, eq=False)
class Contents:
    """All that a report shows.

    Attributes
    ----------
    name
        Name of the file, or what else the cells came from.
    n_cells, n_dims
        Size of the embedding.
    use_rep, key, stored
        Names of the unrefined and the refined embedding, and whether the latter was read, not made.
    note
        Why a stored refined embedding, or its diagnosis, was not shown, if there is one.
    batch_key, label_key
        Columns with batches (several are joined) and cell types.
    table
        The diagnosis, one row per batch.
    drawn
        The cells in the pictures.
    counts, counted
        Cells of each batch (rows) by cell type or consensus group (columns), and which of these it is.
    kept
        For each column to keep: cells of each batch (rows) by value (columns).
    scores
        Scores, if there are cell types.
    params, provenance
        How the refinement was made, and from what by what, in words.
    """

    name: str
    n_cells: int
    n_dims: int
    use_rep: str
    key: str
    stored: bool
    note: str | None
    batch_key: str
    label_key: str | None
    table: pd.DataFrame
    drawn: Drawn
    counts: pd.DataFrame
    counted: str
    kept: dict[str, pd.DataFrame] = field(default_factory=dict)
    scores: Scores | None = None
    params: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def batches(self) -> np.ndarray:
        """Names of all batches, sorted."""
        return self.drawn.batch.batches


#: What the axes of a picture are.
AXES = {
    "stored": "two UMAPs from the data, one made before and one made after",
    "umap": "a UMAP of each embedding, which start alike",
    "pca": "the first two principal axes of the unrefined embedding",
}
#: Cells in the pictures, and fewer if a UMAP has to be computed, which takes about a millisecond per cell.
MAX_CELLS, MAX_UMAP_CELLS = 12_000, 5_000
#: This part of the drawn cells is shared equally by the batches, the rest by their sizes.
EQUAL_PART = 0.25


def chosen_rows(labels: Labels, most: int, seed: int = 0) -> Ints:
    """Sorted rows of about ``most`` cells, drawn at random: small batches give more than their share."""
    n = labels.n
    if n.sum() <= most:
        return np.arange(labels.codes.size)
    fewest = np.minimum(n, max(1, int(EQUAL_PART * most / n.size)))
    share = max(most - int(fewest.sum()), 0) / max(int((n - fewest).sum()), 1)
    wanted = fewest + np.floor((n - fewest) * share).astype(np.int64)
    rng = np.random.default_rng(seed)
    drawn = [
        rng.choice(own, size, replace=False, shuffle=False)
        for own, size in zip(labels.rows(), wanted.tolist(), strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def chosen_view(view: str, stored: bool, n_cells: int) -> str:
    """Return ``stored``, ``umap`` or ``pca``; ``stored`` says whether the data have both UMAPs."""
    one_of("view", view, tuple(Views))
    if view == "pca" or stored:
        return "pca" if view == "pca" else "stored"
    there = find_spec("umap") is not None
    if view == "umap" and not there:
        raise MissingExtra("umap-learn for ", Parameter("view='umap'"), "report")
    few = view == "auto" and n_cells <= NEIGHBOURS
    return "umap" if there and not few else "pca"


def placed(before: Floats, after: Floats, view: str, seed: int = 0) -> tuple[Floats, Floats]:
    """(m, 2) positions before and after, by ``umap`` or ``pca``."""
    axes = principal(before, after)
    return umaps(before, after, axes, seed) if view == "umap" else axes


#: Cells that are scored, at most: more would take minutes.
MAX_SCORED = 5_000
#: Scores that are shown: name, what it tells, and whether a higher value is better.
SCORES: dict[str, tuple[str, str, bool]] = {
    "f1_given_batch": ("F1 given batch",
        "how well types are told apart by a linear classifier that knows the batch", True),
    "lobo_f1": ("Leave-one-batch-out F1",
        "how well types of a batch are predicted from the other batches", True),
    "mixing_within_types": ("Mixing within types", "how well batches mix inside each type", True),
    "over_correction": ("Over-correction",
        "part of the neighbours from other batches that are of another type", False),
}  # fmt: skip


def scored(
    before: Any, after: Any, batch: Labels, cell_type: Labels, missing: str, seed: int
) -> Scores | None:
    """Score both embeddings on cells with a type; ``None`` with fewer than two types."""
    known = np.flatnonzero(cell_type.batches[cell_type.codes].astype(str) != missing)
    if not known.size:
        return None
    batch = Labels.of(batch.batches[batch.codes[known]], known.size)
    cell_type = Labels.of(cell_type.batches[cell_type.codes[known]], known.size)
    if cell_type.batches.size < 2:
        return None
    rows = sample(batch, cell_type, MAX_SCORED, seed)
    batch, cell_type = batch.at(rows), cell_type.at(rows)
    first, second = (np.asarray(Z, np.float64)[known[rows]] for Z in (before, after))
    columns = {
        name: {"f1_given_batch": _f1_given_batch(Z, cell_type, batch, seed)}
        | neighbourhood_scores(Z, batch, cell_type)
        for name, Z in (("unrefined", first), ("refined", second))
    }
    return Scores(pd.DataFrame(columns).reindex(list(SCORES)), rows.size)


def _f1_given_batch(Z: Any, cell_type: Labels, batch: Labels, seed: int) -> float:
    try:
        return f1_given_batch(Z, cell_type, batch, seed=seed)
    except BadValue:  # there are too few cells for training and test cells of every type
        return float("nan")


#: Numbers of a diagnosis, at most; more would fill the page with digits.
LARGEST = 1e12

#: Entries of a record that describe the adapter.
NEEDED = ("params", "batches", "row_batch", "scale", "shift")


def reason_against(
    record: Any, key: str, use_rep: str, batch_key: Any, labels: Labels
) -> str | None:
    """Say why a stored refined embedding cannot be shown, or ``None`` if it can."""
    start = f"There is a refined embedding {key!r}"
    if not isinstance(record, Mapping) or not set(NEEDED) <= set(record):
        return f"{start} without a record of the adapter that made it"
    if not isinstance(record["params"], Mapping):
        return f"{start} without a record of its parameters"
    source = record["params"].get("use_rep", use_rep)
    if source != use_rep:
        return f"{start} that was made from {source!r}, not from {use_rep!r}"
    used = [str(name) for name in np.atleast_1d(record["params"].get("batch_key", []))]
    if used != as_keys(batch_key):
        return f"{start} that was made for other batches ({', '.join(used) or 'unknown'})"
    if np.asarray(record["batches"]).tolist() != labels.batches.tolist():
        return f"{start} that was made when there were other batches"
    return None


def recorded_fit(record: dict[str, Any], cells: Cells) -> Fit:
    """Return the refinement of a record as a fit of these cells.

    Records of versions before 0.3.0 have no model: then it has no consensus, no evidence and no history.
    """
    if "model" in record:
        return _of_model(record, cells)
    batches = cells.labels.batches
    try:
        position = {str(batch): i for i, batch in enumerate(batches.tolist())}
        row_batch = np.array([position[str(batch)] for batch in np.asarray(record["row_batch"])])
        scale, shift = (np.asarray(record[name], np.float64) for name in ("scale", "shift"))
        anchors, bandwidth = (
            None if record.get(name) is None else np.asarray(record[name], np.float64)
            for name in ("anchors", "bandwidth")
        )
        adapter = Adapter(batches, row_batch, scale, shift, anchors, bandwidth)
        strength = float(record["params"].get("strength", 1.0))
    except (BadValue, ValueError, KeyError, TypeError) as error:
        raise _damaged(error) from error
    moments = _moments(cells, None if anchors is None else Anchors(batches, row_batch, anchors))
    if moments.n_dims != adapter.n_dims:
        raise BadValue(
            f"Expected the record of a refinement of {moments.n_dims} coordinates, found one of "
            f"{adapter.n_dims}."
        )
    params = record["params"]
    # A target with options is recorded as a text such as "PopulationTarget(...)".
    name = "population" if "population" in str(params.get("target")).lower() else "moment"
    method = Method(target_of(name), Exact(), 1, Weights(), strength)
    none = moments.select([])
    return Fit(method, moments, none, moments, adapter, History.none(), False)


def _of_model(record: dict[str, Any], cells: Cells) -> Fit:
    try:
        with checked("its model"):
            fit = from_record(record, "model").fit
    except BadValue as error:
        raise _damaged(error) from error
    rows = fit.moments
    if np.array_equal(rows.by_batch.n, cells.labels.n):
        return fit
    # Some cells are gone since.
    anchors = None if rows.anchors is None else Anchors(rows.batches, rows.batch, rows.anchors)
    return replace(fit, moments=_moments(cells, anchors))


def _damaged(error: Exception) -> BadValue:
    return BadValue(f"Expected the record of a refinement, found a damaged one ({error}).")


def _moments(cells: Cells, anchors: Anchors | None) -> Moments:
    """Return the moments that the rows of an adapter belong to: those of batches, or around its anchors."""
    if anchors is None:
        return cells.moments()
    # Some cells may be gone since: the rows of populations that have none are kept.
    return gathered(anchors, cells.moments(anchors), anchors)


def recorded_table(record: dict[str, Any], labels: Labels) -> pd.DataFrame | None:
    """Return the diagnosis in a record, if there is one of these cells, as far as their numbers tell."""
    stored = record.get("diagnosis")
    if not isinstance(stored, Mapping | pd.DataFrame):
        return None
    try:
        table = pd.DataFrame(stored)
    except (ValueError, TypeError):  # columns of other lengths, or of anything
        return None
    if "batch" in table:
        table = table.set_index("batch")
    if not _is_diagnosis(table):
        return None
    same = [str(batch) for batch in table.index] == [str(batch) for batch in labels.batches]
    return table if same and table["n_cells"].tolist() == labels.n.tolist() else None


def _is_diagnosis(table: pd.DataFrame) -> bool:
    """Whether a table has columns of a diagnosis and no others: words on each batch, and numbers."""
    # One of an earlier version may have no level and no reasons.
    judged = {"level", "reasons"} & set(table)
    needed = {"n_cells", "moved", "verdict", *(TEXT_COLUMNS if judged else ())}
    kept = (f"{name} {what}" for name in kept_names(table) for what in MEASURES)
    numbers = table.drop(columns=list(TEXT_COLUMNS), errors="ignore")
    return (
        needed <= set(table) <= {*TEXT_COLUMNS, "distinct", *COLUMNS, *kept}
        and table.columns.is_unique
        and all(
            isinstance(text, str) for name in TEXT_COLUMNS if name in table for text in table[name]
        )
        and all(level_of(text) is not None for text in table.get("level", ()))
        and all(isinstance(x, np.dtype) and x.kind in "iuf" for x in numbers.dtypes)
        and not (numbers.abs() > LARGEST).any(axis=None)
    )


#: The label of cells without a type.
NO_LABEL = "no label"
#: Clusters of cells without types, at most, and the rounds of k-means that find them.
GROUPS, GROUP_ROUNDS = 12, 10
#: What a page says if it does not show the diagnosis in a record.
MADE_AGAIN = (
    "The diagnosis in the record is not one of these cells as they are, so it was made again."
)


def gather(
    source: ReportSource,
    batch_key: str | Sequence[str],
    label_key: str | None,
    keep: Sequence[str],
    params: dict[str, Any],
    *,
    population: str | None = None,
    view: str = "auto",
    seed: int = 0,
    call: str = "",
    progress: Progress = silent,
) -> Contents:
    """Return all that a report shows; ``params`` are those of :class:`BatchProx`.

    With ``params`` the cells are refined by these. Without, a refined embedding of the data is shown if it
    has a record, and otherwise one is made with the default parameters. Nothing is written.
    """
    labels = source.cells.labels
    columns = column_labels({name: source.columns[name] for name in keep}, labels.codes.size)
    reason = reason_against(source.record, source.key, source.use_rep, batch_key, labels)
    note: str | None = None
    stored = source.record is not None and reason is None and not params and population is None
    if stored:
        assert source.record is not None
        fit, described = recorded_fit(source.record, source.cells), dict(source.record["params"])
        table = recorded_table(source.record, labels)
        if table is not None:
            table = _of_columns(table, source, fit, columns)
        elif "diagnosis" in source.record:
            note = MADE_AGAIN
    else:
        model, table = BatchProx(**params), None
        fit = _fitted(model, source, population, progress)
        described = params_as_json(model.get_params(deep=False))
        note = None if source.record is None else _note(reason, source.key)
    if table is None:
        table = diagnosis(fit, source.cells, seed=seed, keep=columns)
    types = None if label_key is None else _types(source.columns[label_key])
    drawn, scores = _drawn(source, fit, types, stored, view, seed, progress)
    counts = _groups(fit, source, seed) if types is None else _counts(labels, types)
    return Contents(
        name=source.name,
        n_cells=int(labels.codes.size),
        n_dims=source.n_dims,
        use_rep=source.use_rep,
        key=source.key,
        stored=stored,
        note=note,
        batch_key=" | ".join(as_keys(batch_key)),
        label_key=label_key,
        table=table,
        drawn=drawn,
        counts=counts,
        counted="group" if label_key is None else label_key,
        kept={name: _counts(labels, _types(source.columns[name])) for name in keep},
        scores=scores,
        params={str(name): _text(value) for name, value in described.items()},
        provenance=_provenance(source, fit, call),
    )


def _fitted(
    model: BatchProx, source: ReportSource, population: str | None, progress: Progress
) -> Fit:
    labels = source.cells.labels
    groups = None
    if population is not None:
        groups = population_labels(source.columns[population], labels.codes.size)
    every = np.arange(labels.codes.size)
    in_memory = solver_of(model.solver).needs_cells
    cells = (source.take(source.use_rep, every), labels, progress) if in_memory else None
    return model.fit_cells(source.cells, groups, cells).fit_


def _of_columns(
    table: pd.DataFrame, source: ReportSource, fit: Fit, columns: Mapping[str, Labels]
) -> pd.DataFrame | None:
    """Return the diagnosis in a record, if it is one of these columns to keep."""
    if not columns:
        return table
    # Columns may have changed since: what happens to them is measured again.
    kept = kept_columns(columns, source.cells, fit.adapter)
    if not kept_names(table):
        # A diagnosis of an earlier version has no reasons to add to; it is made again.
        return with_kept(table, kept) if "reasons" in table else None
    now = {name: value for column in kept for name, value in column.numbers.items()}
    same = set(now) <= set(table) and np.allclose(
        [table[name].iloc[0] for name in now], list(now.values()), atol=1e-6, equal_nan=True
    )
    return table if same else None


def _note(reason: str | None, key: str) -> str:
    start = reason or f"There is a refined embedding {key!r}, but parameters were given"
    return f"{start}. So this report shows a new refinement, which was not written anywhere."


def _types(column: pd.Series) -> Labels:
    """Encode a column; cells without a value get one of their own."""
    texts = column.astype("category")
    missing = texts.isna()
    if missing.any():
        texts = texts.cat.rename_categories(str)
        texts = texts.cat.add_categories([c for c in [NO_LABEL] if c not in texts.cat.categories])
        texts = texts.fillna(NO_LABEL)
    return Labels.of(texts, len(texts))


def _counts(labels: Labels, types: Labels) -> pd.DataFrame:
    """Cells of each batch and type, the most frequent type first."""
    counts = cross_counts(labels, types)
    order = np.argsort(-counts.sum(0), kind="stable")
    return pd.DataFrame(counts[:, order], labels.batches.tolist(), types.batches[order].tolist())


def _groups(fit: Fit, source: ReportSource, seed: int) -> pd.DataFrame:
    """Cells of each batch in clusters of refined cells, of a sample, the largest cluster first."""
    sample = source.cells.sample(looked_at(source.cells.labels.n), seed)
    labels = sample.labels
    X = np.asarray(fit.adapter.apply(sample.cells, labels), np.float64)
    X = (X - X.mean(0)).astype(np.float32)
    centres = kmeans(X, np.ones(len(X)), GROUPS, GROUP_ROUNDS, np.random.default_rng(seed))
    near = squared_distances(X, centres).argmin(1)
    found = _counts(labels, Labels.of(near, near.size))
    return found.set_axis([str(i + 1) for i in range(found.shape[1])], axis=1)


def _drawn(
    source: ReportSource,
    fit: Fit,
    types: Labels | None,
    stored: bool,
    view: str,
    seed: int,
    progress: Progress,
) -> tuple[Drawn, Scores | None]:
    """Return the cells of the pictures, and scores of both embeddings on those with a type."""
    labels = source.cells.labels
    umaps = "X_umap", f"X_umap{source.key.removeprefix(source.use_rep)}"
    view = chosen_view(view, all(map(source.has, umaps)), labels.codes.size)
    rows = chosen_rows(labels, MAX_UMAP_CELLS if view == "umap" else MAX_CELLS, seed)
    own = labels.at(rows)
    before = source.take(source.use_rep, rows)
    after = source.take(source.key, rows) if stored else fit.adapter.apply(before, own)
    before, after = (np.asarray(Z, np.float64) for Z in (before, after))
    of_type = None if types is None else types.at(rows)
    scores = None
    if of_type is not None:
        progress("score", 0, rows.size)
        scores = scored(before, after, own, of_type, NO_LABEL, seed)
        progress("score", rows.size, rows.size)
    if view == "stored":
        first, second = (np.asarray(source.take(name, rows), np.float64)[:, :2] for name in umaps)
    else:
        progress("draw", 0, rows.size)
        first, second = placed(before, after, view, seed)
        progress("draw", rows.size, rows.size)
    moments = fit.moments.by_batch
    spread = np.sqrt((moments.m2 / moments.n[:, None]).sum(1))[own.codes]
    distance = np.sqrt(((after - before) ** 2).sum(1))
    moved = np.divide(distance, spread, out=np.zeros_like(distance), where=spread > 0)
    return Drawn(first, second, own, of_type, moved, AXES[view]), scores


def _provenance(source: ReportSource, fit: Fit, call: str) -> dict[str, str]:
    adapter = fit.adapter
    arrays = {"scale": adapter.scale, "shift": adapter.shift}
    if adapter.anchors is not None:
        arrays |= {"anchors": adapter.anchors, "bandwidth": np.asarray(adapter.bandwidth)}
    batches = [str(batch) for batch in adapter.batches.tolist()]
    packages = ("numpy", "scikit-learn", "anndata", "bokeh")
    return {
        "cells from": f"{source.name} ({source.dtype})",
        "made by": call,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "scbatchprox": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "fingerprint of the adapter": digest("adapter", arrays, batches),
    }


def _text(value: Any) -> str:
    """Return a parameter as text."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "fixed point" if value is None else str(value)
