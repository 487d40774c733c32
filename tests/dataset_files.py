"""Small AnnData files for tests of data sets."""

import anndata as ad
import numpy as np
import pandas as pd


def counts(n=12, genes=5, seed=0):
    return np.random.default_rng(seed).poisson(2.0, (n, genes)).astype(np.float32)


def cells(n=12, genes=5, **obs):
    obs = {"batch": ["a", "b"] * (n // 2), "cell_type": ["T"] * n} | obs
    names = [f"cell{i}" for i in range(n)]
    return ad.AnnData(
        counts(n, genes),
        pd.DataFrame(obs, index=names),
        pd.DataFrame(index=[f"g{j}" for j in range(genes)]),
    )


def written(adata, tmp_path, name="mine.h5ad"):
    path = tmp_path / name
    adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)
    return path
