"""Embeddings that methods start from, by name in :data:`UPSTREAMS`, and two controls.

The controls need no method: random coordinates mix batches perfectly and know nothing of cells, and
coordinates made of the cell types themselves are as good as an embedding of them can be.
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

from ...core.checks import some_of
from ...errors import BadKey, BadValue
from ...upstream import PCAUpstream, ScviUpstream
from ..datasets import Dataset

__all__ = [
    *("CONTROLS", "UPSTREAMS", "Embedding", "Recipe"),
    *("embed", "fit_pca", "fit_scvi", "operate", "query_cells"),
]

#: Spread of the cells of a type about their corner in the control made of cell types.
_LABEL_NOISE = 0.1


@dataclass(frozen=True)
class Recipe:
    """What an embedding depends on besides the cells.

    Attributes
    ----------
    n_components, n_hvgs
        Of the PCA (paper: 40 and 2,500).
    scvi_epochs
        Epochs of scVI and of scArches' surgery; ``None`` is the library's heuristic.
    reference
        Batches that scArches trains on before the others are mapped to them by surgery; by default
        all but the smallest.
    seed
        Of training, and of the controls.
    """

    n_components: int = 40
    n_hvgs: int = 2500
    scvi_epochs: int | None = None
    reference: tuple[Hashable, ...] | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Embedding:
    """Coordinates and what they cost.

    Attributes
    ----------
    Z
        (N, d) coordinates in the order of the cells.
    seconds
        Time of the embedding itself, if it took any; for scArches, of the surgery.
    before
        Time of what had to be there first; for scArches, the reference.
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
    """Fit a PCA; a small panel of genes, or a handful of cells, has fewer components."""
    width = min(recipe.n_components, counts.n_obs - 1, counts.n_vars - 1)
    return PCAUpstream.fit(counts, n_components=width, n_hvgs=recipe.n_hvgs)


def fit_scvi(counts: ad.AnnData, recipe: Recipe, *, for_surgery: bool) -> ScviUpstream:
    """Train scVI with its own defaults, or with those that scArches recommends for references."""
    return ScviUpstream.fit(
        counts,
        "batch",
        for_surgery=for_surgery,
        n_hvgs=recipe.n_hvgs,
        max_epochs=recipe.scvi_epochs,
        seed=recipe.seed,
    )


def operate(reference: ScviUpstream, counts: ad.AnnData, recipe: Recipe) -> ScviUpstream:
    """Map the cells of new batches by surgery, which trains weights for them alone."""
    return reference.surgery(counts, max_epochs=recipe.scvi_epochs, seed=recipe.seed)


def random(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Control: normal coordinates that know nothing of cells or batches."""
    rng = np.random.default_rng(recipe.seed)
    return Embedding(rng.normal(size=(dataset.adata.n_obs, recipe.n_components)))


def labels(dataset: Dataset, recipe: Recipe) -> Embedding:
    """Control: every cell at the corner of its own type, with a little noise."""
    rng = np.random.default_rng(recipe.seed)
    corners = pd.get_dummies(dataset.adata.obs["cell_type"]).to_numpy(float)
    return Embedding(corners + rng.normal(0.0, _LABEL_NOISE, corners.shape))


def query_cells(batch: pd.Series, reference: tuple[Hashable, ...] | None) -> np.ndarray:
    """Return which cells are query: of batches not in the reference, by default of the smallest."""
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
    """Import scvi-tools, which takes long, before the clock starts; where it is missing, fitting says so."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")
        import_module("scvi")


def _counts(dataset: Dataset) -> ad.AnnData:
    if not dataset.counts:
        raise BadValue(f"Expected counts in {dataset.name}, found an embedding only.")
    return dataset.adata


UPSTREAMS: dict[str, Upstream] = {"pca": pca, "scvi": scvi, "scarches": scarches, "stored": stored}
CONTROLS: dict[str, Upstream] = {"random": random, "labels": labels}
