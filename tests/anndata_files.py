"""AnnData files for tests: made, written, read, and compared object by object."""

import hashlib

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from anndata.io import write_elem

from data import make_cells

KINDS = ["h5ad", "zarr2", "zarr3"]


def make(rng, n=900):
    c = make_cells(rng, [n // 2, n // 3, n - n // 2 - n // 3], 6)
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(np.array(["s1", "s2", "s3"])[c.codes]),
            "donor": rng.integers(1, 3, n),
            "site": np.where(rng.random(n) < 0.5, "here", "there"),
        },
        index=[f"cell{i}" for i in range(n)],
    )
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(1.0, (n, 7)).astype(np.float32)), obs)
    adata.obsm["X_pca"] = c.Z.astype(np.float32)
    adata.obsm["double"] = c.Z
    adata.obsm["frame"] = pd.DataFrame(c.Z, index=adata.obs_names).add_prefix("PC")
    adata.obsm["sparse"] = sp.csr_matrix(np.round(c.Z))
    adata.layers["raw"] = adata.X.copy()
    adata.uns["colours"] = np.array(["#000000", "#ffffff"])
    return adata


def write(adata, path, kind, **options):
    if kind == "h5ad":
        adata.write_h5ad(path, **options)
    else:
        write_elem(zarr.open_group(path, mode="w", zarr_format=int(kind[-1])), "/", adata)
        zarr.consolidate_metadata(path)


def journal_of(path):
    """The journal of a file during a commit: beside the file itself, not beside a link."""
    path = path.resolve()
    return path.with_name(f".{path.name}.journal")


def read(path):
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)


def contents(path):
    """Return every object and attribute of a file by name, to see any change."""
    found = {}
    if path.suffix == ".zarr":
        return {
            str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(path.rglob("*"))
            if p.is_file()
        }

    def note(name, item):
        found[f"{name} attributes"] = {key: str(value) for key, value in item.attrs.items()}
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item[()]).tolist()

    with h5py.File(path) as file:
        file.visititems(note)
    return found
