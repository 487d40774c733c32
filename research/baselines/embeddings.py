"""Embeddings that methods refine, by name in :data:`UPSTREAMS`, and two controls.

The controls show the range of the scores. Random coordinates mix batches perfectly and hold no information
on cells. Coordinates made from the cell types separate the types perfectly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from math import nan
from time import perf_counter

import anndata as ad
import numpy as np
import pandas as pd

from scbatchprox.core.checks import some_of
from scbatchprox.errors import BadKey, BadValue
from scbatchprox.upstream import PCAUpstream, ScviUpstream
from scbatchprox.upstream.components import N_COMPONENTS, N_HVGS

from ..datasets import Dataset

__all__ = [
    *("CONTROLS", "UPSTREAMS", "Embedding", "Recipe"),
    *("embed", "fit_pca", "fit_scvi", "operate", "query_cells"),
]

#: Standard deviation of the noise in the control made from cell types.
_LABEL_NOISE = 0.1


@dataclass(frozen=True)
class Recipe:
    """Options of an embedding.

    Attributes
    ----------
    n_components, n_hvgs
        Numbers of components and of genes of the PCA (paper: 40 and 2,500).
    scvi_epochs
        Epochs of scVI and of scArches' surgery; ``None`` is the library's own number.
    reference
        Batches that scArches is trained on; the others are added by surgery. By default all but the
        smallest.
    seed
        Seed of the training and of the controls.
    """

    n_components: int = N_COMPONENTS
    n_hvgs: int = N_HVGS
    scvi_epochs: int | None = None
    reference: tuple[Hashable, ...] | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Embedding:
    """Coordinates, and the time that they took.

    Attributes
    ----------
    Z
        (N, d) coordinates in the order of the cells.
    seconds
        Time of the embedding, if it was computed; for scArches, time of the surgery.
    before
        Time of earlier steps; for scArches, time of the reference.
    """

    Z: np.ndarray
    seconds: float = nan
    before: float = nan


Upstream = Callable[[Dataset, Recipe], Embedding]


def embed(dataset: Dataset, name: str, recipe: Recipe) -> Embedding:
    """Embed the cells of a data set by the upstream of this name."""
    try:
        upstream = (UPSTREAMS | CONTROLS)[name]
    except KeyError:
        raise BadKey(
            f"Expected an upstream, found {name!r}; available: {some_of(UPSTREAMS | CONTROLS)}."
        ) from None
    return upstream(dataset, recipe)


def stored(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Return the embedding that came with the data."""
    if dataset.rep is None:
        raise BadValue(f"Expected an embedding in {dataset.name}, found none.")
    return Embedding(np.asarray(dataset.adata.obsm[dataset.rep]))


def pca(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Principal components of the log-normalised highly variable genes, of all cells."""
    counts = _counts(dataset)
    started = perf_counter()
    return Embedding(fit_pca(counts, recipe).embed(counts).Z, perf_counter() - started)


def scvi(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Embed all cells by scVI (Lopez et al. 2018), with its library's default settings."""
    counts = _counts(dataset)
    _import_scvi()
    started = perf_counter()
    model = fit_scvi(counts, recipe, for_surgery=False)
    return Embedding(model.embed(counts).Z, perf_counter() - started)


def scarches(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Embed by scArches (Lotfollahi et al. 2022): scVI of a reference, then surgery for other batches."""
    counts = _counts(dataset)
    in_query = query_cells(counts.obs["batch"], recipe.reference)
    _import_scvi()
    started = perf_counter()
    reference = fit_scvi(counts[~in_query].copy(), recipe, for_surgery=True)
    trained = perf_counter()
    Z = operate(reference, counts[in_query].copy(), recipe).embed(counts).Z
    return Embedding(Z, perf_counter() - trained, trained - started)


def fit_pca(counts: ad.AnnData, recipe: Recipe) -> PCAUpstream:
    """Fit a PCA, with fewer components if there are few genes or cells."""
    n_components = min(recipe.n_components, counts.n_obs - 1, counts.n_vars - 1)
    return PCAUpstream.fit(counts, n_components=n_components, n_hvgs=recipe.n_hvgs)


def fit_scvi(counts: ad.AnnData, recipe: Recipe, *, for_surgery: bool) -> ScviUpstream:
    """Train scVI with its own defaults, or with those that scArches recommends (``for_surgery``)."""
    return ScviUpstream.fit(
        counts,
        "batch",
        for_surgery=for_surgery,
        n_hvgs=recipe.n_hvgs,
        max_epochs=recipe.scvi_epochs,
        seed=recipe.seed,
    )


def operate(reference: ScviUpstream, counts: ad.AnnData, recipe: Recipe) -> ScviUpstream:
    """Add the cells of new batches by surgery, which trains only the weights of these batches."""
    return reference.surgery(counts, max_epochs=recipe.scvi_epochs, seed=recipe.seed)


def random(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Control: normal random coordinates, independent of cells and batches."""
    rng = np.random.default_rng(recipe.seed)
    return Embedding(rng.normal(size=(dataset.adata.n_obs, recipe.n_components)))


def labels(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Control: one coordinate per cell type, 1 for cells of that type and 0 for others, with noise."""
    rng = np.random.default_rng(recipe.seed)
    one_hot = pd.get_dummies(dataset.adata.obs["cell_type"]).to_numpy(float)
    return Embedding(one_hot + rng.normal(0.0, _LABEL_NOISE, one_hot.shape))


def query_cells(batch: pd.Series, reference: tuple[Hashable, ...] | None) -> np.ndarray:
    """Return a mask of the query: cells of batches not in the reference, by default of the smallest batch."""
    sizes = batch.value_counts(sort=False)
    sizes = sizes[sizes > 0]
    if reference is None:
        reference = tuple(name for name in sizes.index if name != sizes.idxmin())
    unknown = [name for name in reference if name not in sizes.index]
    if unknown or not 0 < len(set(reference)) < len(sizes):
        raise BadValue(
            f"Expected some but not all batches as scArches' reference, found "
            f"{some_of(reference)}; available: {some_of(sizes.index)}."
        )
    return np.asarray(~batch.isin(reference))


def _import_scvi() -> None:
    """Import scvi-tools before the time is taken; the import is slow. Fitting raises if it is missing."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        import_module("scvi")


def _counts(dataset: Dataset) -> ad.AnnData:
    if not dataset.counts:
        raise BadValue(f"Expected counts in {dataset.name}, found only an embedding.")
    return dataset.adata


UPSTREAMS: dict[str, Upstream] = {"pca": pca, "scvi": scvi, "scarches": scarches, "stored": stored}
CONTROLS: dict[str, Upstream] = {"random": random, "labels": labels}
