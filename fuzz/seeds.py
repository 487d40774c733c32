"""Small valid files of every kind, from which damaged ones are made."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from anndata.io import write_elem

from scbatchprox import BatchProx
from scbatchprox.api.files import refine_file
from scbatchprox.atlas import Atlas
from scbatchprox.io.formats import journal
from scbatchprox.targets.population.target import PopulationTarget
from scbatchprox.upstream import PCAUpstream

from .target import SECRET

__all__ = ["N", "make_seeds"]

N, D = 60, 3
GENES = 12
#: Columns of the files with counts, and how many values they have.
_COLUMNS = {"site": 2, "type": 3, "kept": 2}


def make_seeds(folder: Path) -> None:
    """Write all of them; the same files each time."""
    rng = np.random.default_rng(0)
    batch = np.repeat(["s1", "s2"], N // 2)
    Z = rng.normal(size=(N, D)) + (batch == "s2")[:, None]
    site = np.where(rng.random(N) < 0.5, "here", "there")
    names = [f"PC{j}" for j in range(D)]
    frame = pd.DataFrame({"cell": [f"c{i}" for i in range(N)], "batch": batch, "site": site})
    table = frame.join(pd.DataFrame(Z, columns=names))
    table.to_parquet(folder / "cells.parquet")
    for kind in ("csv", "tsv", "csv.gz", "tsv.gz"):
        table.to_csv(folder / f"cells.{kind}", sep="\t" if "tsv" in kind else ",", index=False)
    np.save(folder / "cells.npy", Z)
    np.savez(folder / "cells.npz", X_pca=Z, batch=batch, site=site)
    np.savez_compressed(folder / "packed.npz", X_pca=Z.astype("f4"), batch=batch == "s1", site=site)
    (folder / "labels.txt").write_text("\n".join(batch) + "\n")
    np.save(folder / "labels.npy", batch)
    frame.to_csv(folder / "labels.csv", index=False)
    _anndata(folder, Z, batch, site)
    model = BatchProx(target="moment").fit(Z, batch=batch)
    model.provenance_ = {"batch_key": ["batch"], "use_rep": "X_pca", "key_added": "X_pca_batchprox"}
    model.save(folder / "model.safetensors")
    population = BatchProx(target=PopulationTarget()).fit(Z, batch=batch, population=site)
    population.save(folder / "population.safetensors")
    atlas = Atlas.create(folder / "atlas", model=BatchProx(target="moment"))
    atlas.add_file(folder / "cells.h5ad", "batch", use_rep="X_pca")
    atlas.add(Z + 0.5, np.repeat(["s3", "s4"], N // 2), force=True)
    atlas.forget("s4")
    atlas.rollback(2)
    _interrupted(folder)
    _counts(folder, "counts", "")
    _counts(folder, "sentinel", SECRET)
    _counts(folder, "sentinel-plain", "", 7)
    # Another one, of the same shape: what a command does must not depend on which of them is there.
    _counts(folder, "other", f"{SECRET} too ", 5)
    PCAUpstream.fit(ad.read_h5ad(folder / "counts.h5ad"), n_components=D, genes="all").save(
        folder / "pca.safetensors"
    )
    shutil.copyfile(folder / "counts.h5ad", folder / "refined.h5ad")
    refine_file(folder / "refined.h5ad", "batch", keep="kept", diagnose=True)


def _counts(folder: Path, name: str, word: str, seed: int = 1) -> None:
    """Write counts as .h5ad and .zarr; all texts begin with a word."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(2.0, size=(N, GENES)).astype(np.float32) + np.eye(N, GENES, dtype="f4")
    texts = {name: [f"{word}{name}{i % n}" for i in range(N)] for name, n in _COLUMNS.items()}
    batch = [f"{word}s{1 + 2 * i // N}" for i in range(N)]
    index = pd.Index([f"{word}c{i}" for i in range(N)])
    obs = pd.DataFrame({"batch": pd.Categorical(batch), **texts}, index=index)
    var = pd.DataFrame({"highly_variable": np.arange(GENES) % 4 < 3})
    cells = ad.AnnData(
        sp.csr_matrix(counts), obs, var.set_axis([f"{word}g{i}" for i in range(GENES)]),
        obsm={"X_pca": rng.normal(size=(N, D)), "frame": pd.DataFrame(counts[:, :2], index, ["a", "b"])},
        uns={"deep": {"er": {"text": f"{word}deep", "x": np.arange(3.0)}}, "word": f"{word}word"},
        layers={"column": sp.csc_matrix(counts), "dense": counts},
    )  # fmt: skip
    cells.write_h5ad(folder / f"{name}.h5ad")
    with h5py.File(folder / f"{name}.h5ad", "r+") as file:
        _as_anndata_0_7(file["obs"], word)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for version in (2, 3):
            place = folder / f"{name}{version}.zarr"
            write_elem(zarr.open_group(place, mode="w", zarr_format=version), "/", cells)


def _anndata(folder: Path, Z: np.ndarray, batch: np.ndarray, site: np.ndarray) -> None:
    index = [f"c{i}" for i in range(N)]
    whole = pd.array(np.arange(N) % 3, dtype="Int64")
    obs = pd.DataFrame(
        {"batch": pd.Categorical(batch), "site": site, "whole": whole, "number": np.arange(N) % 2},
        index=index,
    )
    obsm = {
        "X_pca": Z.astype(np.float32), "sparse": sp.csr_matrix(np.round(Z)),
        "column": sp.csc_matrix(np.round(Z)), "frame": pd.DataFrame(Z, index).add_prefix("PC"),
    }  # fmt: skip
    cells = ad.AnnData(obs=obs, obsm=obsm, uns={"X_pca": {"upstream": "0" * 8}})
    cells.write_h5ad(folder / "cells.h5ad")
    with h5py.File(folder / "cells.h5ad", "r+") as file:
        _as_anndata_0_7(file["obs"])
    with h5py.File(folder / "latest.h5ad", "w", libver="latest") as file:
        write_elem(file, "/", cells)
    cells.write_h5ad(folder / "packed.h5ad", compression="gzip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for version in (2, 3):
            path = folder / f"cells{version}.zarr"
            write_elem(zarr.open_group(path, mode="w", zarr_format=version), "/", cells)
            zarr.consolidate_metadata(path)


def _as_anndata_0_7(obs: h5py.Group, word: str = "") -> None:
    """Add a column as anndata 0.7 stored it: codes with a reference to the categories."""
    obs["__categories/old"] = np.array([f"{word}a", f"{word}b"], h5py.string_dtype())
    obs["old"] = np.arange(N, dtype="i1") % 2
    obs["old"].attrs["categories"] = obs["__categories/old"].ref
    obs.attrs["column-order"] = [*obs.attrs["column-order"], "old"]


def _interrupted(folder: Path) -> None:
    """Leave a file as a process does that is killed while it commits: a journal, and some new bytes."""
    path = folder / "killed.h5ad"
    path.write_bytes((folder / "cells.h5ad").read_bytes())
    pid = os.fork()
    if pid == 0:
        journal.sync_folder = lambda _: None
        undone = Path.unlink

        def stop(self: Path, missing_ok: bool = False) -> None:
            if self.name.endswith(".journal"):
                os._exit(0)
            undone(self, missing_ok)

        Path.unlink = stop  # type: ignore[method-assign]
        refine_file(path, "batch", model=BatchProx(target="moment"))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert journal.journal_of(path).exists()
