"""An atlas as it lies on disk: everything that can be read from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..errors import BadValue
from ..io.model_file import params_as_json
from ..kernels.arrays import Floats
from . import folder
from .folder import Counts
from .judging import cell_scores

__all__ = ["Diff", "Reading", "held"]


@dataclass(frozen=True, eq=False)
class Diff:
    """What is different in version ``b`` from version ``a``.

    ``rows`` has a row per batch that is in both: cells before and after, the largest absolute change of
    its scales and of its shifts, and ``mean_moved``, the root mean squared change, over coordinates, of
    where its mean is refined to.
    """

    added: Counts
    removed: Counts
    rows: pd.DataFrame
    params: dict[str, tuple[Any, Any]]


class Reading:
    """All versions of an atlas, without a way to add one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._record = folder.read(self.path)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an atlas, to read from or to write to."""
        return cls(path)

    @property
    def version(self) -> int:
        """Number of the current version."""
        return self._record.current.number

    @property
    def upstream(self) -> str | None:
        """What the embedding comes from, as it was said when the atlas was made."""
        return self._record.upstream

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the method."""
        return dict(self._record.params)

    @property
    def source(self) -> dict[str, Any]:
        """Where the latest cells from a file came from: its name, ``batch_key`` and ``use_rep``."""
        found = [entry.source for entry in self._record.versions if entry.source]
        return dict(found[-1]) if found else {}

    @property
    def model(self) -> BatchProx | None:
        """The current model, read anew; ``None`` if the atlas holds no batch."""
        return self.model_at(self.version)

    def model_at(self, version: int) -> BatchProx | None:
        """Return the model of any version."""
        return folder.load(self.path, self._record.entry(folder.as_version(version)))

    def cell_scores(self, Z: Any) -> Floats:
        """How far each cell is from all that the atlas holds; see :func:`scbatchprox.atlas.cell_scores`."""
        return cell_scores(held(self.model).moments_, Z)

    def entries(self) -> list[dict[str, Any]]:
        """Return all versions as ``atlas.json`` lists them."""
        return [asdict(entry) for entry in self._record.versions]

    def log(self) -> pd.DataFrame:
        """Return all versions, one row each."""
        rows = pd.DataFrame(self.entries(), dtype=object)  # None stays None
        return rows.rename(columns={"number": "version"}).set_index("version")

    def diff(self, a: int, b: int) -> Diff:
        """Return what is different in version ``b`` from version ``a``."""
        old, new = self.model_at(a), self.model_at(b)
        added, removed = self._record.changes(a, b)
        one, two = (self._params_of(model) for model in (old, new))
        changed = {name: (one[name], two[name]) for name in one if one[name] != two[name]}
        return Diff(added, removed, changed_rows(old, new), changed)

    def _params_of(self, model: BatchProx | None) -> dict[str, Any]:
        return self.params if model is None else params_as_json(model)


def held(model: BatchProx | None) -> BatchProx:
    """Return the model of an atlas that holds batches."""
    if model is None:
        raise BadValue(
            "Expected an atlas that holds batches, found one without any; add some first."
        )
    return model


def changed_rows(old: BatchProx | None, new: BatchProx | None) -> pd.DataFrame:
    """Return what became of the batches that two models both hold."""
    names = ["n_cells_before", "n_cells", "scale_change", "shift_change", "mean_moved"]
    if old is None or new is None:
        return pd.DataFrame(columns=names, index=pd.Index([], name="batch"))
    both = sorted(set(old.batches_.tolist()) & set(new.batches_.tolist()))
    i, j = (np.flatnonzero(np.isin(model.batches_, both)) for model in (old, new))
    scale, shift = new.scale_[j] - old.scale_[i], new.shift_[j] - old.shift_[i]
    moved = scale * new.moments_.mean[j] + shift
    columns = [
        old.moments_.n[i], new.moments_.n[j], np.abs(scale).max(1), np.abs(shift).max(1),
        np.sqrt((moved**2).mean(1)),
    ]  # fmt: skip
    return pd.DataFrame(dict(zip(names, columns, strict=True)), index=pd.Index(both, name="batch"))
