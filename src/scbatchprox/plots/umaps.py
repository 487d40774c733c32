"""A UMAP of each of two embeddings; needs umap-learn (extra ``report``)."""

from __future__ import annotations

import numpy as np

from ..errors import BadValue, MissingExtra
from ..kernels.arrays import Floats

__all__ = ["MAX_UMAP_CELLS", "NEIGHBOURS", "umaps"]

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
