"""The scores of scIB and their means, as defined in the paper's appendix."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ..choices import Profiles
from ..core.checks import one_of
from ..core.labels import Labels
from ..errors import BadValue, MissingExtra
from .cells import ScoredCells, mean, sample
from .clusters import Silhouettes, isolated_f1, nmi_ari
from .mixing import Neighbours, asw_batch, asw_batch_scib, batch_variance, kbet

__all__ = ["BATCH", "BIO", "BY_LIBRARY", "FAST_CELLS", "NEAREST", "PROFILES", "scib"]

#: The scores whose means are Bio and Batch.
BIO = ("nmi", "ari", "asw_cell", "isolated_f1", "clisi")
BATCH = ("asw_batch", "ilisi", "kbet", "graph_connectivity", "pcr")
#: The scores that scib-metrics computes, and the means that contain them.
BY_LIBRARY = ("clisi", "ilisi", "graph_connectivity", "bio", "batch", "overall")
PROFILES = tuple(profile.value for profile in Profiles)
#: Approximate number of cells that the fast profile scores.
FAST_CELLS = 5_000
#: Number of neighbours for LISI (90 with the cell itself), and for the graph with the cell itself, as in
#: scib-metrics' own benchmark.
NEAREST = 89
_GRAPH = 15
#: With fewer cells, LISI is not defined.
_FEWEST = 10


def scib(
    Z: Any,
    batch: Any,
    cell_type: Any,
    *,
    before: Any = None,
    profile: str = "full",
    seed: int = 0,
) -> dict[str, float]:
    r"""Score an integration: conservation of biology, and removal of batch effects.

    Parameters
    ----------
    Z
        (N, d) embedding.
    batch, cell_type
        One label of each kind per cell.
    before
        The embedding before integration; only ``pcr_comparison`` uses it.
    profile
        ``"full"``, or ``"fast"``: on about 5,000 cells, the same share of every type in every batch.
        A sample has larger neighbourhoods: do not compare its scores with full ones.
    seed
        Seed of the sample and of k-means.

    Returns
    -------
    dict
        All 0 to 1, higher is better (``ari`` is below 0 where clusters agree less than by chance);
        NaN if a score is not defined.

        ``nmi``, ``ari``
            of k-means with the types (:func:`.clusters.nmi_ari`);
        ``asw_cell``
            :math:`(\mathrm{ASW} + 1) / 2` of the types, equal to ``scib_metrics.silhouette_label``;
        ``isolated_f1``
            of types in the fewest batches (:func:`.clusters.isolated_f1`);
        ``clisi``
            ``scib_metrics.clisi_knn``, :math:`(T - \mathrm{cLISI}) / (T - 1)` for T types;
        ``asw_batch``
            the paper's (:func:`.mixing.asw_batch`);
        ``ilisi``
            ``scib_metrics.ilisi_knn``, :math:`(\mathrm{iLISI} - 1) / (B - 1)` for B batches;
        ``kbet``
            per type (:func:`.mixing.kbet`);
        ``graph_connectivity``
            ``scib_metrics.graph_connectivity``;
        ``pcr``
            :math:`1 - R^2`, with the share of variance that batches explain
            (:func:`.mixing.batch_variance`);
        ``bio``, ``batch``
            the means of the first five and of the second five scores, without NaN;
        ``overall``
            0.6 Bio + 0.4 Batch.

        Not part of these means: ``asw_batch_scib``, batch ASW within types
        (:func:`.mixing.asw_batch_scib`), and with ``before`` ``pcr_comparison``, scIB's
        :math:`1 - R^2 / R^2_{\mathrm{before}}`, at least 0 (and so 0 for ``before`` itself).

    Notes
    -----
    With one batch, the scores of batch removal, ``batch`` and ``overall`` are NaN. With one cell type, the
    scores of conservation, ``bio`` and ``overall`` are NaN.

    LISI weights the 89 nearest neighbours by a Gaussian kernel of perplexity 30 and takes the median over
    cells; :func:`.ilisi` takes unweighted shares, as in the paper's formula, and the mean.

    Examples
    --------
    Needs the extra ``scib``.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import scib
    >>> scib(Z, batch, cell_type)["asw_cell"] > 0.9
    True
    """
    cells = chosen(Z, batch, cell_type, before, profile, seed)
    library = scib_library()  # before anything is computed
    return scib_of(cells, Neighbours.of(cells.Z, NEAREST), seed, library)


def chosen(Z: Any, batch: Any, cell_type: Any, before: Any, profile: str, seed: int) -> ScoredCells:
    """Check the input and return the cells that the profile scores."""
    one_of("profile", profile, PROFILES)
    cells = ScoredCells.of(Z, batch, cell_type, before)
    if len(cells.Z) < _FEWEST:
        raise BadValue(f"Expected at least {_FEWEST} cells to score, found {len(cells.Z)}.")
    if profile == "full":
        return cells
    return cells.at(sample(cells.batch, cells.cell_type, FAST_CELLS, seed))


def scib_of(cells: ScoredCells, near: Neighbours, seed: int, library: Any) -> dict[str, float]:
    """:func:`scib` from cells and their 89 nearest neighbours; without a library, not ``BY_LIBRARY``."""
    batch, cell_type, before = cells.batch, cells.cell_type, cells.before
    silhouettes = Silhouettes.of(cells.Z, cell_type, batch)
    compared = ["pcr_comparison"] * (before is not None)
    names = (*BIO, *BATCH, "bio", "batch", "overall", "asw_batch_scib", *compared)
    found = dict.fromkeys(names, float("nan"))
    if cell_type.batches.size > 1:
        found["nmi"], found["ari"] = nmi_ari(cells.Z, cell_type, seed)
        found["asw_cell"] = float((silhouettes.types.mean() + 1) / 2)
        found["isolated_f1"] = isolated_f1(near.indices, cell_type, batch)
    if batch.batches.size > 1:
        found["asw_batch"] = asw_batch(silhouettes)
        found["kbet"] = kbet(cells)
        now = batch_variance(cells.Z, batch)
        found["pcr"] = 1 - now
        found["asw_batch_scib"] = asw_batch_scib(silhouettes, cell_type)
        if before is not None:
            was = batch_variance(before, batch)
            found["pcr_comparison"] = max(0.0, (was - now) / was) if was > 0 else float("nan")
    if library is None:
        return {name: value for name, value in found.items() if name not in BY_LIBRARY}
    found |= _by_library(library, near, batch, cell_type)
    bio, mixing = (mean([found[name] for name in part]) for part in (BIO, BATCH))
    return found | {"bio": bio, "batch": mixing, "overall": 0.6 * bio + 0.4 * mixing}


def _by_library(
    library: Any, near: Neighbours, batch: Labels, cell_type: Labels
) -> dict[str, float]:
    n = len(near.indices)
    around = library.nearest_neighbors.NeighborsResults(  # each cell is its own first neighbour
        indices=np.column_stack([np.arange(n), near.indices]),
        distances=np.column_stack([np.zeros(n), near.distances]),
    )
    graph = around.subset_neighbors(min(_GRAPH, around.n_neighbors))
    found = {}
    if cell_type.batches.size > 1:
        found["clisi"] = float(library.clisi_knn(around, cell_type.codes))
    if batch.batches.size > 1:
        found["ilisi"] = float(library.ilisi_knn(around, batch.codes))
        found["graph_connectivity"] = float(library.graph_connectivity(graph, cell_type.codes))
    return found


def scib_library(partial: bool = False) -> Any:
    """Import scib-metrics; if it is missing, return ``None`` if ``partial``, else name the extra."""
    try:
        with warnings.catch_warnings():
            # umap warns on import about its own missing extras.
            warnings.simplefilter("ignore", ImportWarning)
            import scib_metrics
    except ImportError:
        if partial:
            return None
        raise MissingExtra("scib-metrics for the scores of scIB", "scib") from None
    return scib_metrics
