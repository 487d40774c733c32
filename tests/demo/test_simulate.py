"""Tests of the count tables and of the simulator."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox.demo.compositions import COMPOSITIONS, Composition, get_composition
from scbatchprox.demo.simulation import simulate, type_programmes

SMALL = Composition("small", ("x", "y"), ("a", "b", "c", "d"), [[40, 0, 30, 0], [25, 60, 0, 0]])


def small(**kwargs):
    return simulate(SMALL, **{"n_genes": 150, "n_components": 8, **kwargs})


def table(adata):
    return pd.crosstab(adata.obs["batch"], adata.obs["cell_type"])


@pytest.mark.parametrize("name", ["pbmc4", "hpms2"])
def test_tables_add_up_to_the_printed_totals(name):
    composition = get_composition(name)
    assert tuple(composition.counts.sum(axis=1)) == composition.printed_totals


def test_mhd_table_disagrees_with_its_printed_totals():
    composition = get_composition("mhd6")
    assert composition.counts.shape == (6, 19)
    assert composition.counts.sum(axis=1).tolist() == [6784, 2598, 2286, 8423, 5198, 2947]
    assert composition.printed_totals == (5496, 5103, 6606, 7725, 5460, 3730)


def frame(composition):
    return pd.DataFrame(
        composition.counts,
        index=pd.Index(composition.batches, name="batch"),
        columns=pd.Index(composition.cell_types, name="cell_type"),
    )


def test_table_spot_checks():
    assert {c.name: c.n_cells for c in COMPOSITIONS.values()} == {
        "pbmc4": 8047,
        "mhd6": 28236,
        "hpms2": 15681,
        "balanced2": 2400,
    }
    assert frame(get_composition("pbmc4")).loc["SeqWell", "CD14+ mono"] == 1255
    assert frame(get_composition("mhd6")).loc["E14_sce27998", "Gliogenic progenitors"] == 1739
    assert frame(get_composition("hpms2")).loc["1", "Gamma"] == 219
    assert (get_composition("balanced2").counts == np.full((2, 6), 200)).all()


@pytest.mark.parametrize("lookup", [get_composition, simulate])
def test_unknown_name_lists_the_available_ones(lookup):
    with pytest.raises(ValueError, match=r"'pbmc3'.*pbmc4, mhd6, hpms2, balanced2"):
        lookup("pbmc3")


@pytest.mark.parametrize(
    ("batches", "types", "counts", "message"),
    [
        (("x",), ("a", "b"), [[1, 2], [3, 4]], "shape"),
        (("x", "x"), ("a",), [[1], [2]], "unique"),
        ("xy", ("a",), [[1], [2]], "string"),
        (("x",), ("a",), [[-1]], "non-negative integers"),
        (("x",), ("a",), [[1.5]], "non-negative integers"),
    ],
)
def test_invalid_compositions(batches, types, counts, message):
    with pytest.raises(ValueError, match=message):
        Composition("bad", batches, types, counts)


def test_composition_copies_and_freezes_its_counts():
    counts = np.ones((1, 1), dtype=int)
    composition = Composition("one", ("x",), ("a",), counts)
    counts[0, 0] = 5
    assert composition.n_cells == 1
    with pytest.raises(ValueError, match="read-only"):
        composition.counts[0, 0] = 2


@pytest.mark.parametrize("name", list(COMPOSITIONS))
def test_simulated_counts_match_the_table(name):
    expected = frame(get_composition(name))
    # Few genes: only the labels matter here.
    adata = simulate(name, n_genes=12, n_components=2)
    found = table(adata).reindex_like(expected)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, check_categorical=False)


def test_layout():
    adata = small()
    assert adata.X.format == "csr"
    assert adata.X.dtype == np.float32
    assert (adata.X.data > 0).all()
    assert (adata.X.data == np.round(adata.X.data)).all()
    assert adata.obsm["X_pca"].shape == (155, 8)
    assert adata.obsm["X_pca"].dtype == np.float32
    # A type without cells is not a category; the others keep the order of the table.
    assert list(adata.obs["cell_type"].cat.categories) == ["a", "b", "c"]
    assert list(adata.obs["batch"].cat.categories) == ["x", "y"]
    codes = adata.obs["batch"].cat.codes.to_numpy()
    assert (np.diff(codes) != 0).sum() > 20, "cells are not shuffled"


def test_seed_determines_the_result():
    first, again, other = small(seed=3), small(seed=3), small(seed=4)
    assert (first.X != again.X).nnz == 0
    np.testing.assert_array_equal(first.obsm["X_pca"], again.obsm["X_pca"])
    pd.testing.assert_frame_equal(first.obs, again.obs)
    assert (first.X != other.X).nnz > 1000


def test_removing_a_group_leaves_the_others_as_they_are():
    counts = SMALL.counts.copy()
    counts[0, 0] = 0
    ablated = simulate(
        Composition("ablated", SMALL.batches, SMALL.cell_types, counts), n_genes=150, n_components=8
    )
    full = small()
    full = full[~((full.obs["batch"] == "x") & (full.obs["cell_type"] == "a"))]

    def by_library(adata):
        return adata.X[np.argsort(adata.obs["library_size"].to_numpy())].toarray()

    np.testing.assert_array_equal(by_library(ablated), by_library(full))


def test_counts_are_gamma_poisson():
    one = Composition("one", ("x",), ("a",), [[3000]])
    adata = simulate(one, n_genes=200, n_components=2, batch_strength=0)
    counts = adata.X.toarray().astype(float)
    # One type and no batch effect: the profile is the baseline.
    mean = np.outer(adata.obs["library_size"], adata.var["baseline"])
    variance = mean + adata.var["dispersion"].to_numpy() * mean**2

    z = (counts - mean).sum(axis=0) / np.sqrt(variance.sum(axis=0))
    assert abs(z.mean()) < 0.3
    assert 0.7 < z.std() < 1.3
    ratio = ((counts - mean) ** 2).sum(axis=0) / variance.sum(axis=0)
    assert abs(np.median(ratio) - 1) < 0.03
    assert ((ratio > 0.7) & (ratio < 1.4)).all()
    # Well beyond a Poisson of the same means, gene by gene.
    assert (((counts - mean) ** 2).mean(axis=0) > mean.mean(axis=0)).mean() > 0.99


def batch_offset(adata):
    """Return the mean squared z-score of the batch difference per type and component; 1 if there is none."""
    scores, squares = adata.obsm["X_pca"].astype(float), []
    for t in adata.obs["cell_type"].cat.categories:
        x, y = (
            scores[((adata.obs["cell_type"] == t) & (adata.obs["batch"] == b)).to_numpy()]
            for b in adata.obs["batch"].cat.categories
        )
        noise = x.var(axis=0, ddof=1) / len(x) + y.var(axis=0, ddof=1) / len(y)
        squares.append((x.mean(axis=0) - y.mean(axis=0)) ** 2 / noise)
    return np.mean(squares)


def test_batch_strength_zero_means_no_batch_offset():
    both = Composition("both", ("x", "y"), ("a", "b", "c"), [[150, 80, 200], [60, 150, 100]])
    options = {"n_genes": 400, "n_components": 15}
    # One value averages 45 squared z-scores; five of them have a standard error of 0.1.
    null = [batch_offset(simulate(both, batch_strength=0, seed=s, **options)) for s in range(5)]
    assert 0.7 < np.mean(null) < 1.3
    assert batch_offset(simulate(both, **options)) > 10


def test_batches_differ_in_depth_unless_strength_is_zero():
    def log_ratio(strength):
        obs = small(batch_strength=strength).obs
        x, y = (np.log(obs.loc[obs["batch"] == b, "library_size"]).mean() for b in "xy")
        return abs(x - y)

    assert log_ratio(0.0) < 0.15 < log_ratio(1.0)


@pytest.mark.parametrize("n_types", [1, 2, 3, 7, 8])
def test_programmes_relate_neighbouring_types(n_types):
    programmes = type_programmes(n_types, 4000, np.random.default_rng(0))
    assert programmes.shape == (n_types, 4000)
    if n_types == 1:
        assert (programmes == 0).all()
    else:
        assert len(np.unique(programmes, axis=0)) == n_types
    if n_types == 8:
        distance = np.linalg.norm(programmes[0] - programmes, axis=1)
        assert 0 < distance[1] < distance[2:4].min() < distance[2:4].max() < distance[4:].min()


def test_pca_equals_a_dense_svd():
    adata = small()
    counts = adata.X.toarray().astype(float)
    logged = np.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4)
    u, s, _ = np.linalg.svd(logged - logged.mean(axis=0), full_matrices=False)
    expected = u[:, :8] * s[:8]
    found = adata.obsm["X_pca"]
    expected *= np.sign((expected * found).sum(axis=0))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_h5ad_round_trip(tmp_path: Path):
    adata = small(seed=5, batch_strength=0.5)
    adata.write_h5ad(tmp_path / "simulated.h5ad")
    read = ad.read_h5ad(tmp_path / "simulated.h5ad")
    assert (read.X != adata.X).nnz == 0
    pd.testing.assert_frame_equal(read.obs, adata.obs)
    np.testing.assert_array_equal(read.obsm["X_pca"], adata.obsm["X_pca"])
    assert read.uns["simulation"] == adata.uns["simulation"]
    assert read.uns["simulation"]["batch_strength"] == 0.5


@pytest.mark.parametrize(
    "options",
    [{"n_components": 150}, {"n_components": 0}, {"batch_strength": -1.0}, {"depth": 0.0}],
)
def test_invalid_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        small(**options)
