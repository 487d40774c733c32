"""One data set in one experiment: its embeddings, stored on disk, and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import nan
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from scbatchprox import __version__
from scbatchprox.evaluate import macro_f1
from scbatchprox.io.atomic import replacing

from ..baselines import CONTROLS, Embedding, Method, embed, unrefined
from ..datasets import Dataset
from .journal import Job, Key, digest
from .settings import Settings

__all__ = [
    "EmbeddingStore",
    "Trial",
    "both_splits",
    "fingerprint_of",
    "one_thread",
    "sample",
    "subset",
]

#: Upstreams that are fast to compute, or are in the data.
_NOT_KEPT = {"stored", *CONTROLS}


@dataclass(frozen=True)
class EmbeddingStore:
    """Embeddings on disk, by a checksum of their input, so that none is computed twice.

    Attributes
    ----------
    folder
        Folder of the files.
    note
        Called with a sentence before an embedding is computed.
    """

    folder: Path
    note: Callable[[str], None] = lambda sentence: None
    _failed: dict[str, Exception] = field(default_factory=dict)

    def get(
        self, name: str, parts: tuple[Any, ...], make: Callable[[], Embedding], what: str = ""
    ) -> Embedding:
        """Return the stored embedding of these parts, or compute and store it; ``what`` is for the note."""
        key = digest(name, *parts, __version__)
        path = self.folder / f"{name}-{key}.npz"
        if path.is_file():
            with np.load(path) as kept:
                return Embedding(kept["Z"], float(kept["seconds"]), float(kept["before"]))
        if key in self._failed:  # it would fail again for every method
            raise self._failed[key]
        if what:
            self.note(what)
        try:
            made = make()
        except Exception as error:
            self._failed[key] = error
            raise
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, Z=made.Z, seconds=made.seconds, before=made.before)
        return made


@dataclass(frozen=True, eq=False)
class Trial:
    """A data set, and the settings of an experiment."""

    experiment: str
    dataset: Dataset
    settings: Settings
    store: EmbeddingStore

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the cells."""
        return fingerprint_of(self.dataset)

    @property
    def obs(self) -> pd.DataFrame:
        """Table of the cells."""
        return self.dataset.adata.obs

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Upstreams of this data set: for its counts, or the embedding in the data."""
        rep = self.dataset.rep
        if rep is not None and (self.settings.use_rep is not None or not self.dataset.counts):
            return (rep,)
        return self.settings.upstreams

    def embed(self, upstream: str, run: int = 0) -> Embedding:
        """Return an embedding of the cells; ``run`` is for the random controls."""
        return self._embed(self.dataset, self.fingerprint, upstream, run)

    def embed_some(self, cells: np.ndarray, upstream: str, run: int = 0) -> Embedding:
        """Return an embedding of the cells in a mask, computed without the other cells."""
        if cells.all():
            return self.embed(upstream, run)
        mark = digest(self.fingerprint, np.packbits(cells))
        return self._embed(subset(self.dataset, cells), mark, upstream, run)

    def _embed(self, dataset: Dataset, mark: str, upstream: str, run: int) -> Embedding:
        name = "stored" if upstream == self.dataset.rep else upstream
        recipe = self.settings.recipe
        if name in _NOT_KEPT:
            return embed(dataset, name, replace(recipe, seed=recipe.seed + run))
        slow = name in ("scvi", "scarches")
        what = f"{self.experiment}: {name} of {dataset.name} ({dataset.adata.n_obs:,} cells)"
        parts = (mark, asdict(recipe))
        return self.store.get(
            name, parts, lambda: embed(dataset, name, recipe), what if slow else ""
        )

    def methods_on(self, upstream: str) -> tuple[str, ...]:
        """Return the methods to run on an embedding, "unrefined" first.

        Controls only show the range of a score, and scArches is already integrated: they are not refined.
        """
        if upstream in CONTROLS or upstream == "scarches":
            return ("unrefined",)
        return tuple(dict.fromkeys(("unrefined", *self.settings.methods)))

    def refine(
        self, method: Method, Z: np.ndarray, run: int, batch: Any = None
    ) -> tuple[np.ndarray, float]:
        """Return the refined embedding and the seconds of the method; NaN for "unrefined"."""
        if method is unrefined:
            return Z, nan
        batch = self.obs["batch"] if batch is None else batch
        started = perf_counter()
        refined = method(Z, batch, self.settings.seed + run)
        return refined, perf_counter() - started

    def job(
        self,
        upstream: str,
        method: str,
        work: Callable[[], Mapping[str, float]],
        *,
        condition: str = "",
        step: str = "",
        run: int = 0,
    ) -> Job:
        """Return a job on this data set."""
        key = Key(self.experiment, self.dataset.name, upstream, method, condition, step, run)
        mark = digest(self.fingerprint, self.settings.of_a_row(), __version__)
        return Job(key, mark, work)


def both_splits(Z: np.ndarray, classes: Any, seed: int, run: int) -> dict[str, float]:
    """Return the macro-F1 of the split that all runs share, and of the split of this run."""
    shared = macro_f1(Z, classes, seed=seed)
    own = shared if run == 0 else macro_f1(Z, classes, seed=seed + run)
    return {"macro_f1": shared, "macro_f1_split": own}


def fingerprint_of(dataset: Dataset) -> str:
    """Return a fingerprint of the cells: counts, embedding, batches and types."""
    adata = dataset.adata
    parts: list[Any] = [dataset.name]
    for key in ("batch", "cell_type"):
        parts += [adata.obs[key].astype(str).tolist()]
    if dataset.rep is not None:
        parts.append(np.asarray(adata.obsm[dataset.rep]))
    if dataset.counts:
        X = sp.csr_matrix(adata.X)
        parts += [X.data, X.indices, X.indptr]
    return digest(*parts)


def subset(dataset: Dataset, cells: np.ndarray) -> Dataset:
    """Return a data set of these cells, without unused batches and types."""
    adata = dataset.adata[cells].copy()
    for key in ("batch", "cell_type"):
        adata.obs[key] = adata.obs[key].cat.remove_unused_categories()
    return replace(dataset, adata=adata)


def sample(dataset: Dataset, max_cells: int | None, seed: int) -> Dataset:
    """Return a sample with the same share of every type in every batch, but at least five cells.

    So rare types stay in the data, and a sample may have a few more cells than ``max_cells``.
    """
    obs = dataset.adata.obs.reset_index(drop=True)
    if max_cells is None or len(obs) <= max_cells:
        return dataset
    order = pd.Series(np.random.default_rng(seed).permutation(len(obs)))
    groups = [obs["batch"], obs["cell_type"]]
    rank = order.groupby(groups, observed=True).rank(method="first")
    size = order.groupby(groups, observed=True).transform("size")
    keep = rank <= np.maximum(5, np.round(size * max_cells / len(obs)))
    return subset(dataset, keep.to_numpy())


def one_thread() -> Any:
    """Return a context in which linear algebra and scikit-learn's loops use one thread.

    For many searches among a few hundred cells: on a busy machine the neighbours of 400 cells took 37 ms
    with two threads and 2 ms with one.
    """
    return threadpool_limits(limits=1)
