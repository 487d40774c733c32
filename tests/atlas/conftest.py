import anndata as ad
import pandas as pd
import pytest

from atlas_cells import NAMES, SIZES, of
from data import make_cells
from scbatchprox import Atlas


@pytest.fixture
def c(rng):
    """Five batches that are close enough to each other to be added without force."""
    cells = make_cells(rng, SIZES, 4)
    cells.Z *= 0.2
    cells.Z += rng.normal(size=cells.Z.shape)
    return cells


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lung"


@pytest.fixture
def atlas(path, c):
    """An atlas with the batches a and b, as version 2."""
    atlas = Atlas.create(path, upstream="PCA", target="moment")
    atlas.add(*of(c, "a", "b"))
    return atlas


@pytest.fixture
def files(c, tmp_path, rng):
    """One .h5ad per batch."""
    for name in NAMES:
        Z, batch = of(c, name)
        adata = ad.AnnData(
            obs=pd.DataFrame(
                {"donor": batch, "age": 3}, index=[f"{name}{i}" for i in range(len(Z))]
            ),
            obsm={"X_pca": Z, "narrow": Z[:, :2]},
        )
        adata.write_h5ad(tmp_path / f"{name}.h5ad")
    return tmp_path
