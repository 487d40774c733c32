"""Counts of sites of unequal sizes, which together are one table of cells."""

import numpy as np

from scbatchprox.demo import Composition, simulate
from scbatchprox.upstream.counts import Counts

BATCHES = ("a", "b", "c")
TABLE = Composition("t", BATCHES, ("T", "B", "NK"), np.full((3, 3), 70))
#: The public list of genes.
GENES = np.array([f"gene{i}" for i in range(90)], dtype=object)


def simulated():
    """Return three batches of 210 cells; some genes have counts in few cells."""
    cells = simulate(TABLE, n_genes=90, n_components=6, seed=4)
    cells.obs["batch"] = cells.obs["batch"].astype(str).str.replace("batch", "")
    cells.var_names = GENES.tolist()
    rng = np.random.default_rng(0)
    X = cells.X.tolil()
    for gene, kept in zip(range(5, 90, 9), (3, 8, 15, 19, 25, 30, 40, 50, 55, 100), strict=True):
        X[rng.permutation(cells.n_obs)[kept:], gene] = 0
    cells.X = X.tocsr()
    cells.X.eliminate_zeros()
    return cells


def sites(cells, n_sites):
    """Return the cells of each site, at random; the last site has about half of them."""
    rng = np.random.default_rng(n_sites)
    share = np.r_[np.ones(n_sites - 1), n_sites - 1]
    site = np.r_[
        np.repeat(np.arange(n_sites), 21), rng.choice(n_sites, cells.n_obs, p=share / share.sum())
    ]
    site = rng.permutation(site[: cells.n_obs])
    return [cells[site == i].copy() for i in range(n_sites)]


def counts(part):
    return Counts.of(part, batch_key="batch")
