"""Displacements turn, shift and scale along with the cells, and do not depend on order or names."""

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

import population_oracles as oracles
from data import in_memory, labels_of
from scbatchprox import BatchProx
from scbatchprox.targets.population.find import anchors_for

DATA = Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere"))
#: Batches with more cells are sampled.
CELLS = 3_000
TYPES = {"shared": [[0, 1, 2, 3]] * 3, "private": [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]]}


def simulated(name, n=90, seed=4):
    rng = np.random.default_rng(seed)
    shifts = [oracles.direction(rng, 8, 4.0) for _ in range(3)]
    return oracles.typed_cells(rng, TYPES[name], shifts, n=n, d=8, sep=8.0)[:2]


def real(name, cells=CELLS):
    """At most some cells of a real set: its embedding, or principal components of log counts."""
    path = DATA / f"{name}.h5ad"
    if not path.exists():
        pytest.skip(f"needs {path.name} in the folder that SCBATCHPROX_DATA names")
    adata = ad.read_h5ad(path)
    some = np.random.default_rng(0).permutation(adata.n_obs)[:cells]
    batch = adata.obs["batch"].astype(str).to_numpy()[some]
    if adata.obsm:
        return np.asarray(next(iter(adata.obsm.values())), float)[some], batch
    X = np.asarray(adata.X[some].todense(), float)
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


#: Sets with batches that are sampled. With seed 4, a cell of the first one is on the border of two
#: populations: rounding decides, and the result changes by 4 %, which leaves little room.
LARGE = {
    "shared, large": lambda: simulated("shared", 1_500, seed=5),
    "private, large": lambda: simulated("private", 1_500, seed=5),
    "cytof8": lambda: real("cytof8", 20_000),
    "kang_ifnb, large": lambda: real("kang_ifnb", 14_000),
}


@pytest.fixture(params=SETS, scope="module")
def data(request):
    Z, batch = SETS[request.param]()
    return Z, batch, moved(Z, batch)


@pytest.fixture(params=LARGE, scope="module")
def large(request):
    Z, batch = LARGE[request.param]()
    assert np.unique(batch, return_counts=True)[1].max() > CELLS
    return Z, batch, moved(Z, batch)


def turned(Z, batch):
    """Displacements of turned cells, turned back."""
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(Z.shape[1],) * 2))[0]
    return moved(Z @ Q, batch) @ Q.T


def reordered(Z, batch):
    """Displacements of cells whose coordinates have another order, in the first order."""
    order = np.random.default_rng(2).permutation(Z.shape[1])
    return moved(Z[:, order], batch)[:, np.argsort(order)]


@pytest.mark.parametrize("again", [turned, reordered])
def test_turns(data, again):
    Z, batch, expected = data
    assert rms(expected) > 0
    assert rms(again(Z, batch) - expected) <= 0.05 * rms(expected)


@pytest.mark.parametrize("again", [turned, reordered])
def test_turns_of_batches_that_are_sampled(large, again):
    Z, batch, expected = large
    assert rms(expected) > 0
    assert rms(again(Z, batch) - expected) <= 0.05 * rms(expected)


@pytest.mark.parametrize("seed", range(10))
def test_populations_turn(seed):
    """k-means must not leave it to rounding which of two centres is the nearest to a cell."""
    Z, batch = simulated("shared", 1_500, seed)
    labels = labels_of(batch)
    expected = anchors_for(labels, in_memory(Z, labels).sample).center
    for again in (1, 2):
        Q = np.linalg.qr(np.random.default_rng(again).normal(size=(8, 8)))[0]
        found = anchors_for(labels, in_memory(Z @ Q, labels).sample).center
        np.testing.assert_allclose(found @ Q.T, expected, rtol=0, atol=1e-5)


def test_the_order_of_float32_coordinates():
    """A turn rounds such coordinates, and another order does not."""
    Z, batch = simulated("shared", 1_500)
    Z = Z.astype(np.float32)
    expected = moved(Z, batch)
    assert rms(reordered(Z, batch) - expected) <= 0.05 * rms(expected)


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
