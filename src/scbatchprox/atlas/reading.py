"""Reading an atlas: versions, models, and differences between versions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..core.adapter import Adapter, displacement
from ..core.shown import count, names
from ..core.tables import Tabled
from ..errors import BadValue
from ..io.model_file import params_as_json, params_from_json
from ..kernels.arrays import Floats
from . import folder
from .folder import Counts
from .judging import cell_scores
from .log import Log

__all__ = ["AtlasReader", "Diff", "with_batches"]


@dataclass(frozen=True, eq=False, repr=False)
class Diff(Tabled):
    """The changes from version ``a`` to version ``b``.

    ``rows`` has one row per batch in both: cells before and after, the largest absolute change of its
    scales and of its shifts (NaN if its populations were found again), and ``mean_moved``, the root mean
    squared change, over coordinates, of its refined mean.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from scbatchprox import Atlas
    >>> atlas = Atlas.create(tempfile.mkdtemp())
    >>> Z = np.random.default_rng(0).normal(size=(200, 5))
    >>> _ = atlas.add(Z, batch=np.repeat(["a", "b"], 100))
    >>> _ = atlas.forget("b")
    >>> changes = atlas.diff(2, 3)
    >>> changes.added, changes.removed
    ([], [{'batch': 'b', 'n_cells': 100}])
    """

    added: Counts
    removed: Counts
    rows: pd.DataFrame
    params: dict[str, tuple[Any, Any]]

    def _facts(self) -> str:
        told = [f"{_named(self.added)} added", f"{_named(self.removed)} removed"]
        same = int((self.rows[["scale_change", "shift_change"]] == 0).all(axis=1).sum())
        return f"{', '.join(told)}, {len(self.rows):,} in both, of which {same:,} are identical"

    def _table(self) -> pd.DataFrame:
        return self.rows

    def _below(self, width: int) -> list[str]:
        return [f"{name}: {old} changed to {new}" for name, (old, new) in self.params.items()]


class AtlasReader:
    """All versions of an atlas, read only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._record = folder.read(self.path)

    def __repr__(self) -> str:
        now = self._record.current
        kind = self.params["target"]
        name = kind if isinstance(kind, str) else kind["name"]
        size = f"{count(now.n_batches, 'batch', 'batches')}, {count(now.n_cells, 'cell')}"
        return f"<Atlas {self.path.name}: version {now.number}, {size}; target {name!r}>"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an atlas."""
        return cls(path)

    @property
    def version(self) -> int:
        """Number of the current version."""
        return self._record.current.number

    @property
    def upstream(self) -> str | None:
        """The source of the embedding, as given when the atlas was created."""
        return self._record.upstream

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the method."""
        return dict(self._record.params)

    @property
    def source(self) -> dict[str, Any]:
        """The latest file that was added: its name, ``batch_key`` and ``use_rep``."""
        found = [entry.source for entry in self._record.versions if entry.source]
        return dict(found[-1]) if found else {}

    @property
    def model(self) -> BatchProx | None:
        """The current model, read from disk; ``None`` if the atlas has no batches."""
        return self.model_at(self.version)

    def model_at(self, version: int) -> BatchProx | None:
        """Return the model of any version."""
        return folder.load(self.path, self._record.entry(folder.as_version(version)))

    def cell_scores(self, Z: Any) -> Floats:
        """(N,) distance of each cell from the nearest batch; see :func:`scbatchprox.atlas.cell_scores`."""
        return cell_scores(with_batches(self.model).moments_, Z)

    def entries(self) -> list[dict[str, Any]]:
        """Return all versions as ``atlas.json`` lists them."""
        return [asdict(entry) for entry in self._record.versions]

    def log(self) -> pd.DataFrame:
        """Return all versions, one row each; all that is known of them, of which it prints a part."""
        rows = pd.DataFrame(self.entries(), dtype=object)  # None stays None
        return Log(rows.rename(columns={"number": "version"}).set_index("version"))

    def diff(self, a: int, b: int) -> Diff:
        """Return the changes from version ``a`` to version ``b``."""
        old, new = self.model_at(a), self.model_at(b)
        added, removed = self._record.changes(a, b)
        one, two = (self._params_of(model) for model in (old, new))
        changed = {name: (one[name], two[name]) for name in one if one[name] != two[name]}
        return Diff(added, removed, _changed_rows(old, new), changed)

    def _params_of(self, model: BatchProx | None) -> dict[str, Any]:
        # By way of a model: the list of an atlas may leave parameters at their defaults.
        model = BatchProx(**params_from_json(self.params)) if model is None else model
        return params_as_json(model.get_params(deep=False))


def _named(counts: Counts) -> str:
    found = count(len(counts), "batch", "batches")
    return f"{found} ({names([c['batch'] for c in counts])})" if counts else "no batch"


def with_batches(model: BatchProx | None) -> BatchProx:
    """Return the model, or raise an error if the atlas has no batches."""
    if model is None:
        raise BadValue("Expected an atlas with batches, found one without any; add some first.")
    return model


def _changed_rows(old: BatchProx | None, new: BatchProx | None) -> pd.DataFrame:
    """Return the changes of the batches that are in both models."""
    names = ["n_cells_before", "n_cells", "scale_change", "shift_change", "mean_moved"]
    empty = pd.DataFrame(columns=names, index=pd.Index([], name="batch"))
    if old is None or new is None:
        return empty
    both = sorted(set(old.batches_.tolist()) & set(new.batches_.tolist()))
    if not both:
        return empty
    table = [_changed(old, new, batch) for batch in both]
    return pd.DataFrame(table, columns=names, index=pd.Index(both, name="batch"))


def _changed(old: BatchProx, new: BatchProx, batch: Any) -> list[Any]:
    """Cells before and after, largest changes of scale and shift, and displacement of the refined mean."""
    models, name = (old, new), [batch]
    adapters = [model.adapter_.select(name) for model in models]
    rows = [
        moments.by_batch if adapter.anchors is None else moments
        for adapter, moments in zip(
            adapters, (model.fit_.moments.select(name) for model in models), strict=True
        )
    ]
    cells = [moments.n_cells for moments in rows]
    change = [np.nan, np.nan]  # rows of other populations cannot be compared
    one, two = adapters
    if _same_rows(one, two):
        change = [
            float(np.abs(two.scale - one.scale).max()), float(np.abs(two.shift - one.shift).max())
        ]  # fmt: skip
        rows[0] = rows[1]  # both versions are compared on the latest cells
    moved = np.subtract(
        *(displacement(m, a.scale, a.shift) for m, a in zip(rows, adapters, strict=True))
    )
    return [*cells, *change, float(np.sqrt((moved**2).mean()))]


def _same_rows(one: Adapter, two: Adapter) -> bool:
    """Whether a batch has the same populations in two versions."""
    if one.anchors is None or two.anchors is None:
        return one.anchors is two.anchors
    return np.array_equal(one.anchors, two.anchors)
