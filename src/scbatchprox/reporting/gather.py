"""Gathers the facts of a report from the cells."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from .._version import __version__
from ..api.estimator import BatchProx
from ..cells.keys import as_keys
from ..core.fit import Fit
from ..core.labels import Labels, column_labels, cross_counts, population_labels
from ..core.solvers import solver_of
from ..diagnosis.kept import kept_columns, kept_names
from ..diagnosis.table import diagnosis, with_kept
from ..io.model_file import params_as_json
from ..kernels.distances import squared_distances
from ..kernels.kmeans import kmeans
from ..progress import Progress, silent
from ..targets.population.find import looked_at
from ..upstream.base import digest
from .facts import Drawn, Facts, Scores
from .recorded import reason_against, recorded_fit, recorded_table
from .scored import scored
from .source import Source
from .views import AXES, MAX_CELLS, MAX_UMAP_CELLS, chosen_rows, chosen_view, placed

__all__ = ["gather"]

#: The label of cells without a type.
NO_LABEL = "no label"
#: Clusters of cells without types, at most, and the rounds of k-means that find them.
GROUPS, GROUP_ROUNDS = 12, 10
#: What a page says if it does not show the diagnosis in a record.
MADE_AGAIN = (
    "The diagnosis in the record is not one of these cells as they are, so it was made again."
)


def gather(
    source: Source,
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
) -> Facts:
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
    return Facts(
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


def _fitted(model: BatchProx, source: Source, population: str | None, progress: Progress) -> Fit:
    labels = source.cells.labels
    groups = None
    if population is not None:
        groups = population_labels(source.columns[population], labels.codes.size)
    every = np.arange(labels.codes.size)
    in_memory = solver_of(model.solver).needs_cells
    cells = (source.take(source.use_rep, every), labels, progress) if in_memory else None
    return model.fit_cells(source.cells, groups, cells).fit_


def _of_columns(
    table: pd.DataFrame, source: Source, fit: Fit, columns: Mapping[str, Labels]
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


def _groups(fit: Fit, source: Source, seed: int) -> pd.DataFrame:
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
    source: Source,
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


def _provenance(source: Source, fit: Fit, call: str) -> dict[str, str]:
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
