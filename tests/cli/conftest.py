import anndata as ad
import numpy as np
import pandas as pd
import pytest

from data import make_cells


@pytest.fixture
def adata(rng):
    c = make_cells(rng, [80, 60, 40], 5)
    adata = ad.AnnData(
        rng.poisson(1.0, (180, 4)).astype(np.float32),
        pd.DataFrame(
            {
                "batch": pd.Categorical(np.array(["s1", "s2", "s3"])[c.codes]),
                "site": rng.choice(["x", "y"], 180),
            },
            index=[f"cell{i}" for i in range(180)],
        ),
    )
    adata.obsm["X_pca"] = c.Z
    return adata


@pytest.fixture
def path(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path / "cells.h5ad"
