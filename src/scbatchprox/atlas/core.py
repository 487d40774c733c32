"""The atlas door: batches arrive, batches leave, and any version can be had again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import lazy
from .._model_file import params_as_json, solver_from_json
from .._types import Floats
from .._validate import check_embedding, one_of, some_of
from .._version import __version__
from ..anndata import as_keys
from ..errors import BadFile, BadKey, BadValue
from ..labels import Labels, union
from ..model import BatchProx
from ..moments import Moments
from ..solvers import solver_of
from ..stream import Progress, apply_file, silent
from . import cells, folder
from .folder import Counts, Entry, Record
from .judging import cell_scores, grown, judged, refuse, shrunk

__all__ = ["Arrival", "Atlas", "Diff"]


@dataclass(frozen=True, eq=False)
class Arrival:
    """What became of new cells: how they were judged, and the version that holds them, if any.

    ``scores`` are those of :func:`scbatchprox.atlas.cell_scores`, where they were asked for.
    """

    judgement: pd.DataFrame
    version: int | None
    scores: Floats | None = None


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


class Atlas:
    """A folder that holds a model, everything it needs to grow and shrink, and all earlier versions.

    Its size does not depend on the number of cells, and no old cell is ever read again. Every method that
    changes it takes the lock, works on what is on disk by then, and either adds a version or leaves the
    atlas as it was.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from scbatchprox import Atlas
    >>> Z = np.random.default_rng(0).normal(size=(300, 10))
    >>> atlas = Atlas.create(tempfile.mkdtemp())
    >>> _ = atlas.add(Z[:200], batch=np.repeat(["a", "b"], 100))
    >>> atlas.add(Z[200:], batch=["c"] * 100).judgement["level"].tolist()
    ['close']
    >>> atlas.forget("b")
    4
    >>> atlas.model.batches_.tolist()
    ['a', 'c']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._record = folder.read(self.path)

    @classmethod
    def open(cls, path: str | Path) -> Atlas:
        """Open an atlas, to read from or to write to."""
        return cls(path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        model: BatchProx | None = None,
        upstream: str | Path | None = None,
        **params: Any,
    ) -> Atlas:
        """Make an atlas that holds no batch yet, in a folder that is new or empty.

        Parameters
        ----------
        path
            The folder.
        model, params
            An unfitted :class:`BatchProx`, or its parameters: they hold for the life of the atlas.
        upstream
            What the embedding comes from: a file or folder (kept as a checksum), or any text. Cells
            that are said to come from another one will be refused.
        """
        blank = BatchProx(**(model.get_params(deep=False) if model else {}) | params)
        blank._method()  # says which parameter makes no sense
        if solver_of(blank.solver).needs_cells:
            raise BadValue(
                f"Expected a solver that needs only moments (solver='exact'), found "
                f"{blank.solver!r}, which would have to visit cells that the atlas does not hold."
            )
        record = Record(
            params_as_json(blank), None if upstream is None else folder.fingerprint(upstream), ()
        )
        path = Path(path)
        if not path.resolve().parent.is_dir():
            raise BadFile(f"Expected a folder to make an atlas in, found none at {path.parent}.")
        if path.exists() and not path.is_dir():
            raise BadValue(f"Expected a new or empty folder for the atlas, found a file at {path}.")
        if path.is_dir() and (found := folder.strangers(path)):
            raise BadValue(
                f"Expected a new or empty folder for the atlas, found {some_of(found)} in {path}."
            )
        path.mkdir(exist_ok=True)
        with folder.locked(path):
            if (path / folder.LIST).exists():
                raise BadValue(
                    f"Expected a new or empty folder for the atlas, found one in {path}."
                )
            folder.commit(path, record, _entry(record, "init"))
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

    def add(
        self,
        X: Any,
        batch: Any = None,
        *,
        policy: str = "frozen",
        force: bool = False,
        merge: bool = False,
        upstream: str | Path | None = None,
        dry_run: bool = False,
    ) -> Arrival:
        """Take in new batches: cells (N, d) with a label each, or their :class:`Moments`.

        Parameters
        ----------
        X, batch
            The cells, or moments, which know their batches.
        policy
            As for :meth:`BatchProx.partial_fit`: ``"frozen"`` leaves every row as it is to the bit,
            ``"refit"`` fits all rows anew.
        force
            Add batches even if they are judged very far from the atlas, which is otherwise an error.
        merge
            Allow batches that are already there to get more cells, which is otherwise an error.
        upstream
            What the embedding comes from; an error if it is another than the atlas'.
        dry_run
            Only judge.
        """
        with self._writing(dry_run):
            folder.check_upstream(self._record, upstream)
            if isinstance(X, Moments):
                if batch is not None:
                    raise BadValue("Expected no labels beside Moments, found some.")
                moments, labels = X, Labels(np.empty(0, np.int32), X.batches)
            else:
                Z = X if lazy.is_lazy(X) else check_embedding(X)
                labels = Labels.of(lazy.in_memory(batch), Z.shape[0])
                moments = None
            before = self.model
            width = X.width if moments is not None else Z.shape[1]
            self._check_arrival(before, labels.batches, width, merge)
            if moments is None:
                moments = lazy.moments_of(Z, labels)
            return self._take_in(before, moments, policy, force, None, None, dry_run)

    def add_file(
        self,
        path: str | Path,
        batch_key: str | Sequence[str],
        *,
        use_rep: str | None = None,
        labels: str | Path | None = None,
        policy: str = "frozen",
        force: bool = False,
        merge: bool = False,
        upstream: str | Path | None = None,
        dry_run: bool = False,
        scores: bool = False,
        scores_out: str | Path | None = None,
        mark: bool = False,
        progress: Progress = silent,
    ) -> Arrival:
        """Take in the batches of a file, which is read in pieces; as :meth:`add` and ``refine_file``.

        Parameters
        ----------
        path, batch_key, use_rep, labels, progress
            As for :func:`scbatchprox.stream.refine_file`.
        policy, force, merge, upstream, dry_run
            As for :meth:`add`.
        scores
            Read the cells a second time, to hold each against what the atlas holds before them.
        scores_out
            A ``.csv`` to write these scores to: ``row``, ``atlas_distance``, ``atlas_far``.
        mark
            Write them into ``obs`` of the file itself, an ``.h5ad``. Both are written even if the file
            is then refused, and in a dry run.
        """
        with self._writing(dry_run):
            folder.check_upstream(self._record, upstream)
            cells.check_marks(path, scores_out, mark)
            before = self.model
            with cells.opened(path, batch_key, use_rep, labels) as source:
                self._check_arrival(before, source.batches, source.width, merge, Path(path).name)
                moments = source.moments(progress)
                wanted = scores or scores_out is not None or mark
                found = source.scores(_held(before), progress) if wanted else None
                far = None if found is None else source.far_cells(found)
                record = {
                    "name": Path(path).name, "batch_key": as_keys(batch_key), "use_rep": source.use_rep,
                }  # fmt: skip
            if found is not None:
                cells.write_marks(path, found, scores_out, mark)
            arrival = self._take_in(before, moments, policy, force, record, far, dry_run)
            return replace(arrival, scores=found)

    def judge(self, X: Any, batch: Any = None, *, policy: str = "frozen") -> pd.DataFrame:
        """Judge new batches without adding them; see :func:`scbatchprox.atlas.judge`."""
        return self.add(X, batch, policy=policy, merge=True, dry_run=True).judgement

    def cell_scores(self, Z: Any) -> Floats:
        """How far each cell is from all that the atlas holds; see :func:`scbatchprox.atlas.cell_scores`."""
        return cell_scores(_held(self.model).moments_, Z)

    def forget(self, batch: Hashable, *, policy: str = "frozen") -> int:
        """Be as if a batch had never been seen, as :meth:`BatchProx.forget`; returns the new version.

        ``policy="refit"`` also fits the others together anew. Earlier versions still hold the moments of
        the batch.
        """
        with self._writing():
            model = _held(self.model)
            gone = [count for count in _counts(model.moments_) if count["batch"] == batch]
            if not gone:
                raise BadKey(
                    f"Expected a batch to forget, found {batch!r}; "
                    f"available: {some_of(model.batches_.tolist())}."
                )
            one_of("policy", policy, ("frozen", "refit"))
            others = model.batches_.size > 1
            if others and policy == "frozen" and model.seen_.reference.batches.tolist() == [batch]:
                raise BadValue(
                    f"Expected to keep a batch that the others were fitted to, found that {batch!r} is "
                    f"the last; policy='refit' (--policy refit) fits the others together instead."
                )
            after = shrunk(model, batch, policy) if others else None
            return self._commit("forget", after, removed=gone, policy=policy)

    def rollback(self, version: int) -> int:
        """Return to a version exactly, as a new one that has the old one's file; returns its number."""
        with self._writing():
            old = self._record.entry(folder.as_version(version))
            model = folder.load(self.path, old)
            # By the log, not by the current file: this is the way back if that one is damaged.
            added, removed = self._record.changes(self.version, old.number)
            return self._commit(
                "rollback", model, same_as=old, to=old.number, added=added, removed=removed
            )

    def apply_file(self, path: str | Path, batch_key: str | Sequence[str], **options: Any) -> None:
        """Refine the cells of a file with the current version, as :func:`scbatchprox.stream.apply_file`."""
        model = _held(self.model)
        record = {
            "atlas": self.path.resolve().name,
            "atlas_version": self.version,
            "version": __version__,
            "batch_key": as_keys(batch_key),
        }
        apply_file(path, model.adapter_, batch_key, **{"record": record} | options)

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
        return Diff(added, removed, _rows(old, new), changed)

    @contextmanager
    def _writing(self, dry_run: bool = False) -> Iterator[None]:
        """Hold the lock over what is on disk now, which may be newer than what was opened."""
        if dry_run:
            self._record = folder.read(self.path)
            yield
            return
        folder.read(self.path)  # no lock is put where no atlas is
        with folder.locked(self.path):
            self._record = folder.read(self.path)
            yield

    def _check_arrival(
        self,
        before: BatchProx | None,
        batches: np.ndarray,
        width: int,
        merge: bool,
        name: str | None = None,
    ) -> None:
        """Say what makes new cells impossible to add, before they are read."""
        if before is None:
            return
        if width != before.n_features_in_:
            where = "" if name is None else f" in {name}"
            raise BadValue(
                f"Expected an embedding of {before.n_features_in_} coordinates, as the atlas has, found "
                f"{width}{where}."
            )
        union(before.batches_, batches)  # labels of another type are an error
        known = set(before.batches_.tolist())
        if not merge and (there := [b for b in batches.tolist() if b in known]):
            raise BadValue(
                f"Expected new batches, found {some_of(there)} in the atlas already; merge=True "
                f"(--merge) counts more cells of a known batch."
            )

    def _take_in(
        self,
        before: BatchProx | None,
        moments: Moments,
        policy: str,
        force: bool,
        source: dict[str, Any] | None,
        far_cells: list[int] | None,
        dry_run: bool,
    ) -> Arrival:
        if not moments.n.size or not moments.n.all():
            empty = moments.batches[moments.n == 0].tolist()
            raise BadValue(f"Expected cells in every batch, found none in {some_of(empty)}.")
        after = grown(before, moments, policy, self._blank())
        judgement = judged(before, moments, after)
        if far_cells is not None:
            judgement.insert(1, "far_cells", far_cells)
        if dry_run:
            return Arrival(judgement, None)
        if not force:
            refuse(judgement)
        forced = bool((judgement["level"] == "very far").any())
        added = _counts(moments)
        version = self._commit(
            "add", after, added=added, policy=policy, source=source, forced=forced
        )
        return Arrival(judgement, version)

    def _commit(
        self, action: str, model: BatchProx | None, same_as: Entry | None = None, **facts: Any
    ) -> int:
        entry = _entry(self._record, action, **facts)
        if model is not None:
            seen = model.moments_
            entry = replace(entry, n_batches=int(seen.batches.size), n_cells=seen.n_cells)
        if same_as is not None:
            entry, model = replace(entry, file=same_as.file, sha256=same_as.sha256), None
        self._record = folder.commit(self.path, self._record, entry, model)
        return self.version

    def _blank(self) -> BatchProx:
        params = self.params
        return BatchProx(**params | {"solver": solver_from_json(params["solver"])})

    def _params_of(self, model: BatchProx | None) -> dict[str, Any]:
        return self.params if model is None else params_as_json(model)


def _entry(record: Record, action: str, **facts: Any) -> Entry:
    parent = record.current.number if record.versions else None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Entry((parent or 0) + 1, action, parent, now, __version__, **facts)


def _held(model: BatchProx | None) -> BatchProx:
    if model is None:
        raise BadValue(
            "Expected an atlas that holds batches, found one without any; add some first."
        )
    return model


def _counts(moments: Moments) -> Counts:
    pairs = zip(moments.batches.tolist(), moments.n.tolist(), strict=True)
    return [{"batch": batch, "n_cells": n} for batch, n in pairs]


def _rows(old: BatchProx | None, new: BatchProx | None) -> pd.DataFrame:
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
