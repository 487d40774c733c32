"""The atlas door: batches arrive, batches leave, and any version can be had again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._version import __version__
from ..api.estimator import BatchProx
from ..api.files import apply_file
from ..cells import dask as lazy
from ..cells.keys import as_keys
from ..core.checks import check_embedding, one_of, some_of
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.solvers import solver_of
from ..errors import BadKey, BadValue
from ..io.model_file import params_as_json, params_from_json
from ..progress import Progress, silent
from ..upstream import Upstream
from . import cells, folder
from .arrival import Arrival, check_arrival
from .folder import Counts, Entry, Record
from .judging import grown, judged, refuse, shrunk
from .provenance import check_upstream, fingerprint
from .reading import Reading, held

__all__ = ["Atlas"]


class Atlas(Reading):
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

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        model: BatchProx | None = None,
        upstream: str | Path | Upstream | None = None,
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
            What the embedding comes from: a :mod:`scbatchprox.upstream` or its file (kept as its
            fingerprint), another file or folder (kept as a checksum), or any text. Cells that are said
            to come from another one will be refused.
        """
        blank = BatchProx(**(model.get_params(deep=False) if model else {}) | params)
        blank._method()  # says which parameter makes no sense
        if solver_of(blank.solver).needs_cells:
            raise BadValue(
                f"Expected a solver that needs only moments (solver='exact'), found "
                f"{blank.solver!r}, which would have to visit cells that the atlas does not hold."
            )
        record = Record(
            params_as_json(blank.get_params(deep=False)),
            None if upstream is None else fingerprint(upstream),
            (),
        )
        path = Path(path)
        folder.check_place(path)
        path.mkdir(exist_ok=True)
        with folder.locked(path):
            if (path / folder.LIST).exists():
                raise BadValue(
                    f"Expected a new or empty folder for the atlas, found one in {path}."
                )
            folder.commit(path, record, folder.next_entry(record, "init"))
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
            check_upstream(self._record, upstream)
            if isinstance(X, Moments):
                if batch is not None:
                    raise BadValue("Expected no labels beside Moments, found some.")
                moments, labels = X, Labels(np.empty(0, np.int32), X.batches)
            else:
                Z = X if lazy.is_lazy(X) else check_embedding(X)
                labels = Labels.of(lazy.in_memory(batch), Z.shape[0])
                moments = None
            before = self.model
            n_dims = X.n_dims if moments is not None else Z.shape[1]
            check_arrival(before, labels.batches, n_dims, merge)
            if moments is None:
                moments = (before or self._blank()).describe_apart(lazy.cells_of(Z, labels))
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
        upstream: str | Path | Upstream | None = None,
        dry_run: bool = False,
        scores: bool = False,
        scores_out: str | Path | None = None,
        mark: bool = False,
        progress: Progress = silent,
    ) -> Arrival:
        """Take in the batches of a file, which is read in pieces; as :meth:`add` and ``refine_file``.

        An embedding whose file says which upstream it comes from is refused if it is another one than
        that of the atlas, or than that of cells which came before.

        Parameters
        ----------
        path, batch_key, use_rep, labels, progress
            As for :func:`scbatchprox.refine_file`.
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
            check_upstream(self._record, upstream)
            cells.check_marks(path, scores_out, mark)
            before = self.model
            with cells.opened(path, batch_key, use_rep, labels) as source:
                check_upstream(self._record, None, source.upstream)
                check_arrival(before, source.batches, source.n_dims, merge, Path(path).name)
                moments = source.describe(before or self._blank(), progress)
                wanted = scores or scores_out is not None or mark
                found = source.scores(held(before), progress) if wanted else None
                far = None if found is None else source.far_cells(found)
                record = {
                    "name": Path(path).name, "batch_key": as_keys(batch_key), "use_rep": source.use_rep,
                }  # fmt: skip
                if source.upstream is not None:
                    record["upstream"] = source.upstream
            if found is not None:
                cells.write_marks(path, found, scores_out, mark)
            arrival = self._take_in(before, moments, policy, force, record, far, dry_run)
            return replace(arrival, scores=found)

    def judge(self, X: Any, batch: Any = None, *, policy: str = "frozen") -> pd.DataFrame:
        """Judge new batches without adding them; see :func:`scbatchprox.atlas.judge`."""
        return self.add(X, batch, policy=policy, merge=True, dry_run=True).judgement

    def forget(self, batch: Hashable, *, policy: str = "frozen") -> int:
        """Be as if a batch had never been seen, as :meth:`BatchProx.forget`; returns the new version.

        ``policy="refit"`` also fits the others together anew. Earlier versions still hold the moments of
        the batch.
        """
        with self._writing():
            model = held(self.model)
            gone = [count for count in _counts(model.moments_) if count["batch"] == batch]
            if not gone:
                raise BadKey(
                    f"Expected a batch to forget, found {batch!r}; "
                    f"available: {some_of(model.batches_.tolist())}."
                )
            one_of("policy", policy, ("frozen", "refit"))
            others = model.batches_.size > 1
            if others and policy == "frozen" and model.fit_.reference.batches.tolist() == [batch]:
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
        """Refine the cells of a file with the current version, as :func:`scbatchprox.apply_file`."""
        model = held(self.model)
        record = {
            "atlas": self.path.resolve().name,
            "atlas_version": self.version,
            "version": __version__,
            "batch_key": as_keys(batch_key),
        }
        apply_file(path, model.adapter_, batch_key, **{"record": record} | options)

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
        n = moments.by_batch.n
        if not n.size or not n.all():
            empty = moments.batches[n == 0].tolist()
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
        added = _counts(moments.by_batch)
        version = self._commit(
            "add", after, added=added, policy=policy, source=source, forced=forced
        )
        return Arrival(judgement, version)

    def _commit(
        self, action: str, model: BatchProx | None, same_as: Entry | None = None, **facts: Any
    ) -> int:
        entry = folder.next_entry(self._record, action, **facts)
        if model is not None:
            seen = model.moments_
            entry = replace(entry, n_batches=int(seen.batches.size), n_cells=seen.n_cells)
        if same_as is not None:
            entry, model = replace(entry, file=same_as.file, sha256=same_as.sha256), None
        self._record = folder.commit(self.path, self._record, entry, model)
        return self.version

    def _blank(self) -> BatchProx:
        return BatchProx(**params_from_json(self.params))


def _counts(moments: Moments) -> Counts:
    pairs = zip(moments.batches.tolist(), moments.n.tolist(), strict=True)
    return [{"batch": batch, "n_cells": n} for batch, n in pairs]
