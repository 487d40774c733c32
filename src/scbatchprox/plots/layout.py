"""Two coordinates for each cell, before and after: principal axes, chosen coordinates, or a UMAP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.checks import some_of
from ..errors import BadKey, BadValue, MissingExtra
from ..kernels.arrays import Floats, Ints

__all__ = ["MAX_UMAP_CELLS", "NEIGHBOURS", "Views", "dense", "principal", "views"]

#: A UMAP is made of at most this many cells, a sample of them: the picture is the same, and it takes seconds.
MAX_UMAP_CELLS = 10_000
#: Neighbours of a cell in the UMAP (scanpy's number), and how close cells may be in the picture.
NEIGHBOURS, MIN_DIST = 15, 0.5
#: Rounds of the UMAP: what umap-learn does for many cells; it starts from a good layout.
EPOCHS = 200
#: Principal axes are those of about this many cells.
AXES_CELLS = 100_000
#: Range of the first positions of a UMAP, which are the principal axes.
INIT_RANGE = 10.0
#: The smallest range that is stretched to it.
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Views:
    """Positions of some cells before and after, and what the axes are.

    ``rows`` are the cells that are drawn; ``shared`` tells whether a position means the same in both.
    """

    before: Floats
    after: Floats
    rows: Ints
    axes: tuple[str, str]
    shared: bool


def views(before: Any, after: Any, basis: Any, name: str, seed: int, adata: Any = None) -> Views:
    """Return positions for two embeddings (N, d) of the same cells.

    ``basis`` is as for :func:`.before_after`, and ``name`` is what the embedding is called.
    """
    every: Ints = np.arange(before.shape[0])
    if isinstance(basis, str) and basis == "pca":
        pair = principal(dense(before), dense(after))
        return Views(*pair, every, (f"PC1 of {name}", f"PC2 of {name}"), True)
    if isinstance(basis, str) and basis == "umap":
        rows = every
        if every.size > MAX_UMAP_CELLS:
            rng = np.random.default_rng(seed)
            rows = np.sort(rng.choice(every.size, MAX_UMAP_CELLS, replace=False))
        pair = _umaps(dense(before[rows]), dense(after[rows]), seed)
        return Views(*pair, rows, ("UMAP1", "UMAP2"), False)
    if isinstance(basis, Sequence) and len(basis) == 2 and not isinstance(basis, str):
        if all(isinstance(one, int | np.integer) for one in basis):
            pair = _coordinates(before, after, basis)
            return Views(*pair, every, (f"{name} {basis[0] + 1}", f"{name} {basis[1] + 1}"), True)
        pair = (_named(basis[0], adata, every.size), _named(basis[1], adata, every.size))
        title = basis[0].removeprefix("X_") if isinstance(basis[0], str) else ""
        return Views(*pair, every, (f"{title} 1".strip(), f"{title} 2".strip()), False)
    raise BadValue(
        f"Expected basis to be 'pca', 'umap', two numbers of coordinates, or two keys of obsm (before, "
        f"after), found {basis!r}."
    )


def dense(Z: Any) -> Floats:
    """Return an embedding as an array in memory."""
    Z = Z.compute() if hasattr(Z, "compute") else Z
    found: Floats = np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z)
    return found


def principal(before: Floats, after: Floats) -> tuple[Floats, Floats]:
    """Both embeddings on the first two principal axes of the first."""
    some = before[:: 1 + len(before) // AXES_CELLS].astype(np.float64)
    mean = some.mean(0)
    spread = np.cov(some, rowvar=False).reshape(before.shape[1], -1)
    two = np.linalg.eigh(spread)[1][:, ::-1][:, :2]
    # The sign is arbitrary: make it the same everywhere.
    two = two * np.where(two.sum(0) < 0, -1.0, 1.0)
    if two.shape[1] < 2:
        two = np.hstack([two, np.zeros_like(two)])
    origin = mean @ two
    if before.dtype.kind == "f":
        two = two.astype(before.dtype)  # or numpy would copy all cells
    return before @ two - origin, after @ two - origin


def _umaps(before: Floats, after: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return a UMAP of each; both start from the same principal axes, so that they are alike."""
    starts = principal(before, after)
    unit = INIT_RANGE / max(float(np.ptp(starts[0])), TINY)
    one, two = (
        _umap(Z, (unit * start).astype(np.float32), seed)
        for Z, start in zip((before, after), starts, strict=True)
    )
    return one, _turned(two, one)


def _umap(Z: Floats, start: Floats, seed: int) -> Floats:
    import warnings

    from sklearn.neighbors import NearestNeighbors

    if len(Z) <= NEIGHBOURS:
        raise BadValue(f"Expected more than {NEIGHBOURS} cells for a UMAP, found {len(Z)}.")
    # Exact neighbours of few cells are quicker than compiling the search for approximate ones.
    distance, near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(Z).kneighbors(Z)
    with warnings.catch_warnings():
        # They say that a neural UMAP needs more packages, that a seed means one thread, and that no new cells
        # can be added.
        warnings.simplefilter("ignore")
        try:
            from umap import UMAP
        except ImportError:
            raise MissingExtra("umap-learn for basis='umap'", "report") from None
        layout = UMAP(
            n_neighbors=NEIGHBOURS, min_dist=MIN_DIST, n_epochs=EPOCHS, init=start,
            precomputed_knn=(near, distance), random_state=seed, n_jobs=1,
        ).fit_transform(Z)  # fmt: skip
    found: Floats = np.asarray(layout, np.float64)
    return found


def _turned(layout: Floats, like: Floats) -> Floats:
    """Turn or mirror a layout so that cells are near their positions in another one; no distance changes."""
    centred = layout - layout.mean(0)
    u, _, vt = np.linalg.svd(centred.T @ (like - like.mean(0)))
    turned: Floats = centred @ (u @ vt)
    return turned


def _coordinates(before: Any, after: Any, basis: Sequence[int]) -> tuple[Floats, Floats]:
    d = before.shape[1]
    if not all(0 <= i < d for i in basis):
        raise BadValue(f"Expected coordinates from 0 to {d - 1} as basis, found {some_of(basis)}.")
    one, two = (dense(Z[:, list(basis)]) for Z in (before, after))
    return one, two


def _named(name: Any, adata: Any, n_cells: int) -> Floats:
    """Return the first two columns of ``obsm[name]``, or of an array."""
    if isinstance(name, str):
        available = {} if adata is None else adata.obsm
        if name not in available:
            raise BadKey(
                f"Expected basis in obsm, found no {name!r}; available: "
                f"{some_of(available, most=20)}."
            )
        name = available[name]
    found = dense(name)
    if found.ndim != 2 or len(found) != n_cells or found.shape[1] < 2:
        raise BadValue(
            f"Expected two coordinates for each of {n_cells} cells as basis, found shape {found.shape}."
        )
    return found[:, :2]
