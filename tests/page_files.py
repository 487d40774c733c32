"""Small files with the names that pages use."""

import shutil

import anndata as ad
import numpy as np
import pandas as pd

from scbatchprox.demo import Composition, simulate
from scbatchprox.upstream import PCAUpstream

N = 6000


def write_cells():
    """Write cells in all kinds of files to the current folder; return what examples call ``adata``."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, N)
    Z = (rng.normal(size=(N, 10)) + 8.0 * np.eye(3, 10)[kind]).astype(np.float32)
    labels = rng.choice([f"donor{i}" for i in (1, 2, 7)], N)
    obs = pd.DataFrame({"batch": labels, "leiden": kind.astype(str)}, map(str, range(N)))
    obs["donor"] = obs["sample"] = obs["batch"]
    obs["annotation"] = obs["cell_type"] = obs["leiden"]
    obs["condition"] = rng.choice(["ill", "well"], N)
    obs["assay"] = rng.choice(["v2", "v3"], N)
    adata = ad.AnnData(obs=obs, obsm={"X_pca": Z, "X_scVI": Z[:, :5]})
    few = adata[:900].copy()  # commands need no more
    few.write_h5ad("cells.h5ad")
    for name in ("mine", "more", "huge", "part1", "part2", "sample_of_all"):
        shutil.copy("cells.h5ad", f"{name}.h5ad")
    few.write_zarr("huge.zarr")
    np.save("cells.npy", few.obsm["X_pca"])
    few.obs.to_csv("labels.csv")
    table = pd.DataFrame(few.obsm["X_pca"], columns=[f"PC{i}" for i in range(10)])
    table.assign(donor=few.obs["donor"].to_numpy()).to_parquet("cells.parquet")
    return adata


def write_upstream():
    """Write a reference of counts, as ``scbatchprox embed fit`` makes it."""
    table = Composition("lung", ("d1", "d2"), ("T", "B"), np.full((2, 2), 40))
    counts = simulate(table, n_genes=60, n_components=5)
    PCAUpstream.fit(counts, n_components=10).save("pca.safetensors")
