"""The atlas: add batches, forget them, and return to any version."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import pandas as pd

from .._version import __version__
from ..api.anndata import check_options
from ..api.estimator import POLICIES, BatchProx
from ..api.files import apply_file
from ..cells import dask as lazy
from ..cells.file import open_job
from ..cells.keys import as_keys
from ..cells.reading import LocalCells
from ..core.checks import check_embedding, one_of, some_of
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.shown import count
from ..errors import BadKey, BadValue, Parameter
from ..io.damaged import naming
from ..io.formats import kind_of
from ..io.model_file import params_as_json
from ..kernels.arrays import Floats
from ..options import takes_options
from ..progress import Progress, silent
from ..targets.method import solver_of
from ..upstream import Upstream
from ..upstream.on_disk import recorded
from . import versions
from .judging import (
    Arrival,
    after_adding,
    check_arrival,
    judge_arrival,
    refuse,
)
from .log import Diff, Log, changed_rows
from .scores import cell_scores, check_score_outputs, far_cells, score_file, write_scores
from .versions import AtlasList, Counts, Entry, check_upstream, fingerprint

__all__ = ["Atlas"]


class Atlas:
    """A folder with a model, the moments needed to add and remove batches, and all earlier versions.

    Its size does not depend on the number of cells, and it reads no old cells. Every method that changes
    it takes the lock, reads the latest version, and adds a version. If it fails, the atlas is unchanged.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from scbatchprox import Atlas
    >>> rng = np.random.default_rng(0)
    >>> types = 9.0 * rng.normal(size=(4, 10))
    >>> Z = rng.normal(size=(300, 10)) + types[rng.integers(0, 4, size=300)]
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
        self._record = versions.read(self.path)

    def __repr__(self) -> str:
        now = self._record.current
        kind = self.params["target"]
        name = kind if isinstance(kind, str) else kind["name"]
        size = f"{count(now.n_batches, 'batch', 'batches')}, {count(now.n_cells, 'cell')}"
        return f"<Atlas {self.path.name}: version {now.number}, {size}; target {name!r}>"

    @classmethod
    @takes_options
    def create(
        cls,
        path: str | Path,
        *,
        model: BatchProx | None = None,
        upstream: str | Path | Upstream | None = None,
        **params: Any,
    ) -> Atlas:
        """Create an atlas without batches, in a new or empty folder.

        Parameters
        ----------
        path
            The folder.
        model, params
            An unfitted :class:`BatchProx`, or its parameters, which cannot be changed later.
        upstream
            The source of the embedding: a :mod:`scbatchprox.upstream` or its file (its fingerprint is
            kept), another file or folder (its checksum is kept), or any text. Cells from another
            upstream are refused later.
        """
        check_options(params, cls.create)
        blank = BatchProx(**(model.get_params(deep=False) if model else {}) | params)
        blank.check_params()
        if solver_of(blank.solver).needs_cells:
            raise BadValue(
                "Expected a solver that needs only moments (", Parameter("solver='exact'"),
                f"), found {blank.solver!r}, which needs cells, and the atlas holds none.",
            )  # fmt: skip
        record = AtlasList(
            params_as_json(blank.get_params(deep=False)),
            None if upstream is None else fingerprint(upstream),
            (),
        )
        path = Path(path)
        versions.check_new_folder(path)
        path.mkdir(exist_ok=True)
        with versions.locked(path):
            if (path / versions.LIST).exists():
                raise BadValue(
                    f"Expected a new or empty folder for the atlas, found one in {path}."
                )
            versions.commit(path, record, versions.next_entry(record, "init"))
        return cls(path)

    def add(
        self,
        X: Any,
        batch: Any = None,
        *,
        policy: str = "frozen",
        force: bool = False,
        merge: bool = False,
        upstream: str | Path | Upstream | None = None,
        dry_run: bool = False,
    ) -> Arrival:
        """Add new batches: cells (N, d) with a label each, or their :class:`Moments`.

        Parameters
        ----------
        X, batch
            Cells and their labels, or moments without labels.
        policy
            As for :meth:`BatchProx.partial_fit`: ``"frozen"`` changes no old row, ``"refit"`` fits all
            rows again.
        force
            Also add batches that are very far, or that have nothing to compare with: these are left as they
            are. Without it, such batches are an error.
        merge
            Add more cells of batches that the atlas has. Without it, that is an error.
        upstream
            The source of the embedding. It is an error if it differs from that of the atlas.
        dry_run
            Only judge the batches; none is refused.
        """
        with self._writing(dry_run):
            check_upstream(self._record, upstream)
            if isinstance(X, Moments):
                if batch is not None:
                    raise BadValue("Expected no labels with Moments, found some.")
                before = self.model
                check_arrival(before, X.batches, X.n_dims, merge)
                return self._add(before, X, policy, force, dry_run)
            Z = X if lazy.is_lazy(X) else check_embedding(X)
            labels = Labels.of(lazy.in_memory(batch), Z.shape[0])
            before = self.model
            check_arrival(before, labels.batches, Z.shape[1], merge)
            moments = (before or self._record.blank).describe_apart(lazy.cells_of(Z, labels))
            return self._add(before, moments, policy, force, dry_run)

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
        upstream: str | Path | Upstream | None = None,
        dry_run: bool = False,
        scores: bool = False,
        scores_out: str | Path | None = None,
        mark: bool = False,
        progress: Progress = silent,
    ) -> Arrival:
        """Add the batches of a file, which is read in chunks.

        If the file has the fingerprint of an upstream, it is compared with the upstream of the atlas, or
        with the fingerprints of earlier files. A file with another upstream is refused.

        Parameters
        ----------
        path, batch_key, use_rep, labels, progress
            As for :func:`scbatchprox.refine_file`.
        policy, force, merge, upstream, dry_run
            As for :meth:`add`.
        scores
            Read the cells a second time, to score each against the batches that were in the atlas before.
        scores_out
            A ``.csv`` to write these scores to: ``row``, ``atlas_distance``, ``atlas_far``.
        mark
            Write them to ``obs`` of the file itself, an ``.h5ad``. Scores are written even if the file
            is refused, and in a dry run.
        """
        with naming(path, self.path), self._writing(dry_run):
            check_upstream(self._record, upstream)
            scored = scores or scores_out is not None or mark
            if scored:
                check_score_outputs(path, scores_out, mark)
            before, name = self.model, Path(path).name
            with open_job(path, batch_key, use_rep, None, None, labels) as job:
                # Embeddings of these files have names.
                if not use_rep and kind_of(path) in (".h5ad", ".zarr"):
                    use_rep = job.file.default_rep
                source = {"name": name, "batch_key": as_keys(batch_key), "use_rep": use_rep}
                made_by = recorded(job.file, use_rep)
                if made_by is not None:
                    source["upstream"] = made_by
                check_upstream(self._record, None, made_by)
                check_arrival(before, job.labels.batches, job.rows.shape[1], merge, name)
                moments = (before or self._record.blank).describe(LocalCells(job, progress))
                found = far = None
                if scored:
                    found = score_file(job, with_batches(before).moments_, progress)
                    far = far_cells(job, found)
                job.file.check_unchanged()
                state = job.file.state
            if found is not None:
                write_scores(path, state, found, scores_out, mark)
            arrival = self._add(before, moments, policy, force, dry_run, source, far)
            return replace(arrival, scores=found)

    def judge(self, X: Any, batch: Any = None, *, policy: str = "frozen") -> pd.DataFrame:
        """Judge new batches without adding them; see :func:`scbatchprox.atlas.judge`."""
        return self.add(X, batch, policy=policy, merge=True, dry_run=True).judgement

    def forget(self, batch: Hashable, *, policy: str = "frozen") -> int:
        """Remove a batch, as :meth:`BatchProx.forget`; returns the number of the new version.

        ``policy="refit"`` also fits all other batches together again. Earlier versions still hold the
        moments of the batch.
        """
        with self._writing():
            model = with_batches(self.model)
            gone = [count for count in _counts(model.moments_) if count["batch"] == batch]
            if not gone:
                raise BadKey(
                    f"Expected a batch to forget, found {batch!r}; "
                    f"available: {some_of(model.batches_.tolist())}."
                )
            one_of("policy", policy, POLICIES)
            others = model.batches_.size > 1
            if others and policy == "frozen" and model.fit_.reference.batches.tolist() == [batch]:
                raise BadValue(
                    f"Expected to keep a batch that the others were fitted to, found that {batch!r} is "
                    f"the last; ", Parameter("policy='refit'", "--policy refit"), " fits the others "
                    "together.",
                )  # fmt: skip
            after = None
            if others and policy == "refit":
                after = copy.copy(model).fit_moments(model.fit_.moments.drop(batch))
            elif others:
                after = copy.copy(model).forget(batch)
            return self._commit("forget", after, removed=gone, policy=policy)

    def rollback(self, version: int) -> int:
        """Return to a version, by a new version with the same file; returns the new number."""
        with self._writing():
            old = self._record.entry(versions.as_version(version))
            model = versions.load(self.path, old)
            # From the log, not from the current file, which may be damaged.
            added, removed = self._record.changes(self.version, old.number)
            return self._commit(
                "rollback", model, same_as=old, to=old.number, added=added, removed=removed
            )

    def apply_file(self, path: str | Path, batch_key: str | Sequence[str], **options: Any) -> None:
        """Refine the cells of a file with the current version, as :func:`scbatchprox.apply_file`."""
        model = with_batches(self.model)
        record = {
            "atlas": self.path.resolve().name,
            "atlas_version": self.version,
            "version": __version__,
            "batch_key": as_keys(batch_key),
        }
        apply_file(path, model.adapter_, batch_key, **{"record": record} | options)

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
    def batches(self) -> dict[Any, int]:
        """The batches of the current version, sorted, and their numbers of cells; reads no model."""
        return dict(sorted(self._record.batches(self.version).items()))

    @property
    def model(self) -> BatchProx | None:
        """The current model, read from disk; ``None`` if the atlas has no batches."""
        return self.model_at(self.version)

    def model_at(self, version: int) -> BatchProx | None:
        """Return the model of any version."""
        return versions.load(self.path, self._record.entry(versions.as_version(version)))

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
        return Diff(added, removed, changed_rows(old, new), changed)

    @contextmanager
    def _writing(self, dry_run: bool = False) -> Iterator[None]:
        """Hold the lock, and read the list of versions again: it may be newer than the one opened."""
        latest = versions.read(
            self.path, self._record
        )  # an error, before a lock is created elsewhere
        with nullcontext() if dry_run else versions.locked(self.path):
            self._record = versions.read(self.path, latest)
            yield

    def _add(
        self,
        before: BatchProx | None,
        moments: Moments,
        policy: str,
        force: bool,
        dry_run: bool,
        source: dict[str, Any] | None = None,
        far_cells: list[int] | None = None,
    ) -> Arrival:
        after = after_adding(before or self._record.blank, moments, policy)
        judgement = judge_arrival(before, moments, after)
        if far_cells is not None:
            judgement.insert(1, "far_cells", far_cells)
        if dry_run:
            return Arrival(judgement, None)
        forced = refuse(judgement, force)
        added = _counts(moments.by_batch)
        version = self._commit(
            "add", after, added=added, policy=policy, source=source, forced=forced
        )
        return Arrival(judgement, version)

    def _commit(
        self, action: str, model: BatchProx | None, same_as: Entry | None = None, **facts: Any
    ) -> int:
        entry = versions.next_entry(self._record, action, **facts)
        if model is not None:
            seen = model.moments_
            entry = replace(entry, n_batches=int(seen.batches.size), n_cells=seen.n_cells)
        if same_as is not None:
            entry, model = replace(entry, file=same_as.file, sha256=same_as.sha256), None
        self._record = versions.commit(self.path, self._record, entry, model)
        return self.version

    def _params_of(self, model: BatchProx | None) -> dict[str, Any]:
        # By way of a model: the list of an atlas may leave parameters at their defaults.
        return params_as_json((model or self._record.blank).get_params(deep=False))


def _counts(moments: Moments) -> Counts:
    pairs = zip(moments.batches.tolist(), moments.n.tolist(), strict=True)
    return [{"batch": batch, "n_cells": n} for batch, n in pairs]


def with_batches(model: BatchProx | None) -> BatchProx:
    """Return the model, or raise an error if the atlas has no batches."""
    if model is None:
        raise BadValue("Expected an atlas with batches, found one without any; add some first.")
    return model
