"""Which cells are drawn, and where in the picture they are."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from ..choices import Views
from ..core.checks import one_of
from ..core.labels import Labels
from ..errors import MissingExtra, Parameter
from ..kernels.arrays import Floats, Ints
from ..plots.layout import NEIGHBOURS, principal, umaps

__all__ = ["AXES", "VIEWS", "chosen_rows", "chosen_view", "placed"]

#: Ways to place cells in a picture; ``auto`` is the best that is there.
VIEWS = tuple(Views)
#: What the axes of a picture are.
AXES = {
    "stored": "two UMAPs from the data, one made before and one made after",
    "umap": "a UMAP of each embedding, which start alike",
    "pca": "the first two principal axes of the unrefined embedding",
}
#: Cells in the pictures, and fewer if a UMAP has to be computed, which takes about a millisecond per cell.
MAX_CELLS, MAX_UMAP_CELLS = 12_000, 5_000
#: This part of the drawn cells is shared equally by the batches, the rest by their sizes.
EQUAL_PART = 0.25


def chosen_rows(labels: Labels, most: int, seed: int = 0) -> Ints:
    """Sorted rows of about ``most`` cells, drawn at random: small batches give more than their share."""
    n = labels.n
    if n.sum() <= most:
        return np.arange(labels.codes.size)
    fewest = np.minimum(n, max(1, int(EQUAL_PART * most / n.size)))
    share = max(most - int(fewest.sum()), 0) / max(int((n - fewest).sum()), 1)
    wanted = fewest + np.floor((n - fewest) * share).astype(np.int64)
    rng = np.random.default_rng(seed)
    drawn = [
        rng.choice(own, size, replace=False, shuffle=False)
        for own, size in zip(labels.rows(), wanted.tolist(), strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def chosen_view(view: str, stored: bool, n_cells: int) -> str:
    """Return ``stored``, ``umap`` or ``pca``; ``stored`` says whether the data have both UMAPs."""
    one_of("view", view, VIEWS)
    if view == "pca" or stored:
        return "pca" if view == "pca" else "stored"
    there = find_spec("umap") is not None
    if view == "umap" and not there:
        raise MissingExtra("umap-learn for ", Parameter("view='umap'"), "report")
    few = view == "auto" and n_cells <= NEIGHBOURS
    return "umap" if there and not few else "pca"


def placed(before: Floats, after: Floats, view: str, seed: int = 0) -> tuple[Floats, Floats]:
    """(m, 2) positions before and after, by ``umap`` or ``pca``."""
    axes = principal(before, after)
    return umaps(before, after, axes, seed) if view == "umap" else axes
