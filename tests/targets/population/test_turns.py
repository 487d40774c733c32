"""Displacements turn, shift and scale along with the cells, and do not depend on order or names."""

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

import population_oracles as oracles
from scbatchprox import BatchProx

DATA = Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere"))
CELLS = 3_000
TYPES = {"shared": [[0, 1, 2, 3]] * 3, "private": [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]]}


def simulated(name):
    rng = np.random.default_rng(4)
    shifts = [oracles.direction(rng, 8, 4.0) for _ in range(3)]
    return oracles.typed_cells(rng, TYPES[name], shifts, n=90, d=8, sep=8.0)[:2]


def real(name):
    """At most 3,000 cells of a real set: its embedding, or principal components of log counts."""
    path = DATA / f"{name}.h5ad"
    if not path.exists():
        pytest.skip(f"needs {path.name} in the folder that SCBATCHPROX_DATA names")
    adata = ad.read_h5ad(path)
    some = np.random.default_rng(0).permutation(adata.n_obs)[:CELLS]
    batch = adata.obs["batch"].astype(str).to_numpy()[some]
    if "X_scvi" in adata.obsm:
        return np.asarray(adata.obsm["X_scvi"], float)[some], batch
    X = adata.X[some]
    X = np.asarray(X.todense() if hasattr(X, "todense") else X, float)
    X = np.log1p(1e4 * X / X.sum(1, keepdims=True))
    X = X[:, np.argsort(-X.var(0))[:1000]]
    U, S, _ = np.linalg.svd(X - X.mean(0), full_matrices=False)
    return U[:, :20] * S[:20], batch


def moved(Z, batch):
    return BatchProx().fit_transform(Z, batch=batch) - Z


def rms(v):
    return np.sqrt((v**2).sum(1).mean())


SETS = {
    "shared": lambda: simulated("shared"),
    "private": lambda: simulated("private"),
    "pancreas_scvi": lambda: real("pancreas_scvi"),
    "kang_ifnb": lambda: real("kang_ifnb"),
}


@pytest.fixture(params=SETS, scope="module")
def data(request):
    Z, batch = SETS[request.param]()
    return Z, batch, moved(Z, batch)


def test_turns(data):
    Z, batch, expected = data
    assert rms(expected) > 0
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(Z.shape[1],) * 2))[0]
    assert rms(moved(Z @ Q, batch) @ Q.T - expected) <= 0.05 * rms(expected)


def test_the_order_of_coordinates(data):
    Z, batch, expected = data
    order = np.random.default_rng(2).permutation(Z.shape[1])
    found = moved(Z[:, order], batch)[:, np.argsort(order)]
    assert rms(found - expected) <= 0.05 * rms(expected)


def test_the_order_of_cells(data):
    Z, batch, expected = data
    order = np.random.default_rng(3).permutation(len(Z))
    found = moved(Z[order], batch[order])
    np.testing.assert_allclose(found, expected[order], rtol=0, atol=1e-9 * np.abs(Z).max())


def test_the_names_of_batches(data):
    Z, batch, expected = data
    names, code = np.unique(batch, return_inverse=True)
    other = np.roll(np.arange(names.size), 1)[code]
    np.testing.assert_allclose(moved(Z, other), expected, rtol=0, atol=1e-9 * np.abs(Z).max())


def test_the_origin_and_the_scale(data):
    Z, batch, expected = data
    size = np.abs(Z).max()
    for scale in (2.0**-20, 8.0):
        found = moved(scale * Z, batch) / scale
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * size)
    # Shifts by powers of two: the cells are rounded, by far less than the tolerance.
    found = moved(Z + 256.0, batch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * size)


def test_a_far_origin():
    Z, batch = simulated("shared")
    expected = moved(Z, batch)
    found = moved(Z + 1e6, batch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(Z).max())
