"""Two coordinates for each cell, before and after: principal axes, chosen coordinates, or a UMAP.

A UMAP needs umap-learn (extra ``report``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.checks import some_of
from ..errors import BadKey, BadValue, MissingExtra
from ..kernels.arrays import Floats, Ints

if TYPE_CHECKING:
    from .inputs import Pair

__all__ = ["MAX_UMAP_CELLS", "NEIGHBOURS", "Positions", "dense", "principal", "umaps", "views"]

#: A UMAP is made of at most this many cells, a sample of them: the picture is the same, and it takes seconds.
MAX_UMAP_CELLS = 10_000
#: Neighbours of a cell in the UMAP (scanpy's number), and how close cells may be in the picture.
NEIGHBOURS, MIN_DIST = 15, 0.5
#: Rounds of the UMAP: what umap-learn does for many cells; it starts from a good layout.
EPOCHS = 200
#: Range of the first positions of a UMAP, which are the principal axes.
INIT_RANGE = 10.0
#: The smallest range that is stretched to it.
TINY = 1e-30


def umaps(
    before: Floats, after: Floats, starts: tuple[Floats, Floats], seed: int
) -> tuple[Floats, Floats]:
    """Return a UMAP of each; both start from the same principal axes, ``starts``, so that they are alike."""
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


#: Principal axes are those of about this many cells.
AXES_CELLS = 100_000


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of some cells before and after, and what the axes are.

    ``rows`` are the cells that are drawn; ``shared`` tells whether a position means the same in both.
    """

    before: Floats
    after: Floats
    rows: Ints
    axes: str
    shared: bool


def views(cells: Pair, basis: Any, seed: int) -> Positions:
    """Return positions for two embeddings of the same cells; ``basis`` is as for :func:`.before_after`."""
    if isinstance(basis, str):
        return _by_word(cells, basis, seed)
    if isinstance(basis, Sequence) and len(basis) == 2:
        if all(isinstance(one, int | np.integer) for one in basis):
            return _coordinates(cells, basis)
        return _stored(cells, (basis[0], basis[1]))
    raise _unknown(basis)


def _by_word(cells: Pair, basis: str, seed: int) -> Positions:
    umap = _refined_too(cells, "X_umap")
    if basis in ("auto", "umap") and set(umap) <= set(cells.obsm):
        return _stored(cells, umap)
    if basis == "umap" or (basis == "auto" and _can_have_umap(cells.before)):
        return _new_umaps(cells, seed)
    if basis in ("auto", "pca"):
        pair = principal(dense(cells.before), dense(cells.after))
        return _all_cells(pair, f"PC1 × PC2 of {cells.names[0]}", True)
    key = basis if basis in cells.obsm else f"X_{basis}"  # scanpy leaves out the X_
    if key not in cells.obsm:
        raise _unknown(basis, cells.obsm)
    _, other = both = _refined_too(cells, key)
    if other not in cells.obsm:
        raise BadKey(
            f"Expected {key!r} of the refined embedding in obsm[{other!r}], found none; "
            f"available: {some_of(cells.obsm, most=20)}; basis=(before, after) names two keys."
        )
    return _stored(cells, both)


def _refined_too(cells: Pair, key: str) -> tuple[str, str]:
    """Return a key, and the key of the same made of the refined embedding: it ends alike."""
    before, after = cells.names
    return key, f"{key}{after.removeprefix(before)}"


def _can_have_umap(Z: Any) -> bool:
    """Whether a UMAP can be made, and would show more than two coordinates do."""
    return find_spec("umap") is not None and Z.shape[0] > NEIGHBOURS and Z.shape[1] > 2


def _new_umaps(cells: Pair, seed: int) -> Positions:
    n = cells.before.shape[0]
    rows: Ints = np.arange(n)
    axes = "UMAP1 × UMAP2"
    if n > MAX_UMAP_CELLS:
        rows = np.sort(np.random.default_rng(seed).choice(n, MAX_UMAP_CELLS, replace=False))
        axes += f"\n{rows.size:,} of {n:,} cells"
    before, after = (dense(Z[rows]) for Z in (cells.before, cells.after))
    return Positions(*umaps(before, after, principal(before, after), seed), rows, axes, False)


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


def _coordinates(cells: Pair, basis: Sequence[int]) -> Positions:
    d = cells.before.shape[1]
    if not all(0 <= i < d for i in basis):
        raise BadValue(f"Expected coordinates from 0 to {d - 1} as basis, found {some_of(basis)}.")
    one, two = (dense(Z[:, list(basis)]) for Z in (cells.before, cells.after))
    axes = " × ".join(f"{cells.names[0]} {i + 1}" for i in basis)
    return _all_cells((one, two), axes, True)


def _stored(cells: Pair, names: tuple[Any, Any]) -> Positions:
    """Return positions that the user has computed: keys of ``obsm``, or arrays."""
    one, two = (_named(name, cells) for name in names)
    axes = ""
    if isinstance(names[0], str):
        name = names[0].removeprefix("X_")
        axes = f"{name} 1 × {name} 2"
    # The embeddings themselves have the same coordinates; two UMAPs have not.
    return _all_cells((one, two), axes, names == cells.names)


def _named(name: Any, cells: Pair) -> Floats:
    """Return the first two columns of ``obsm[name]``, or of an array."""
    if isinstance(name, str):
        if name not in cells.obsm:
            raise BadKey(
                f"Expected basis in obsm, found no {name!r}; available: "
                f"{some_of(cells.obsm, most=20)}."
            )
        name = cells.obsm[name]
    found, n = dense(name), cells.before.shape[0]
    if found.ndim != 2 or len(found) != n or found.shape[1] < 2:
        raise BadValue(
            f"Expected two coordinates for each of {n} cells as basis, found shape {found.shape}."
        )
    return found[:, :2]


def _all_cells(pair: tuple[Floats, Floats], axes: str, shared: bool) -> Positions:
    return Positions(*pair, np.arange(len(pair[0])), axes, shared)


def _unknown(basis: Any, obsm: Any = ()) -> BadValue:
    return BadValue(
        f"Expected basis to be 'auto', 'pca', 'umap', a key of obsm, two of them (before, after), or two "
        f"numbers of coordinates, found {basis!r}; available in obsm: {some_of(obsm, most=20)}."
    )
