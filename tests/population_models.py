"""Data with known cell types, models of it, and checks for tests of the population target."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import pdist

import population_oracles as oracles
from scbatchprox import BatchProx, PopulationTarget

BOTH = pytest.mark.parametrize(
    "target",
    [PopulationTarget(), PopulationTarget(conditioned=False)],
    ids=["conditioned", "per batch"],
)
#: Types of two batches: three shared ones, and one that only this batch has.
SHARED = [[0, 1, 2, 3], [0, 1, 2, 4]]
#: Shared types as ``(type, one batch, other batch)``, and private types as ``(type, batch)``.
PAIR = [(0, 0, 1), (1, 0, 1), (2, 0, 1)]
PRIVATE = [(3, 0), (4, 1)]


def refined(Z, batch, population=None, **options):
    options = {"target": "population"} | options
    return BatchProx(**{"target": "moment"} | options).fit_transform(
        Z, batch=batch, population=population
    )


def shared_and_private(seed, length=4.0, d=12, **options):
    """Two batches with a known shift, three shared types, and one unmatched type in each."""
    rng = np.random.default_rng(seed)
    shift = oracles.direction(rng, d, length)
    return oracles.typed_cells(rng, SHARED, [0 * shift, shift], d=d, **options)


def check_stay(Z, result, kind, types, unit, part=0.03):
    for t in types:
        assert oracles.moved(Z, result, kind == t) < part * unit, f"type {t}"


def check_meet(Z, result, batch, kind, pairs, part):
    """The distance between the same type in two batches is less than ``part`` of what it was.

    ``pairs`` holds ``(type, one batch, other batch)``.
    """
    for t, a, b in pairs:
        before, after = (oracles.gap(X, batch, kind, t, a, b) for X in (Z, result))
        assert after < part * before, f"type {t}"


def check_follow(Z, result, batch, kind, private, part=0.35):
    """Unmatched types are displaced like the rest of their batch, and stay separate from all others.

    ``private`` holds pairs of a type and its batch. The displacements differ by less than ``part`` of that
    of the rest.
    """
    unmatched = [t for t, _ in private]
    for t, b in private:
        own, rest = (
            (result - Z)[(batch == b) & rows].mean(0)
            for rows in (kind == t, ~np.isin(kind, unmatched))
        )
        assert np.linalg.norm(rest) > 0
        assert np.linalg.norm(own - rest) < part * np.linalg.norm(rest), f"type {t}"
        types = np.unique(kind[batch == b])
        before, after = (
            pdist([X[(batch == b) & (kind == u)].mean(0) for u in types]) for X in (Z, result)
        )
        np.testing.assert_allclose(after, before, rtol=0.1, err_msg=f"batch {b}")
    check_apart(result, kind)


def check_apart(result, kind):
    """The nearest type centre of every cell, among refined cells, is that of its own type."""
    types, code = np.unique(kind, return_inverse=True)
    C = np.stack([result[kind == t].mean(0) for t in types])
    assert (oracles.squared_distances(result, C).argmin(1) == code).mean() > 0.999


def five_batches():
    """Cells of five batches that share most of their types."""
    rng = np.random.default_rng(11)
    types = [[0, 1, 2], [0, 1, 3], [1, 2, 3], [0, 2, 3], [0, 1, 2]]
    shifts = [oracles.direction(rng, 6, 2.5) for _ in range(5)]
    n = [[m // 3] * 3 for m in [160, 90, 60, 200, 35]]
    Z, codes, _ = oracles.typed_cells(rng, types, shifts, n=n, d=6, sep=9.0)
    return Z, codes


def some_of(data, *batches):
    Z, codes = data
    rows = np.isin(codes, batches)
    return Z[rows], codes[rows]


def grown(data, target, start, *arrivals, policy="frozen", **options):
    Z, codes = some_of(data, *start)
    model = BatchProx(target=target, **options).fit(Z, batch=codes)
    for batches in arrivals:
        Z, codes = some_of(data, *batches)
        model.partial_fit(Z, batch=codes, policy=policy)
    return model


def parts(model):
    """All arrays of a fitted model, by name."""
    found = {"scale": model.scale_, "shift": model.shift_, "batches": model.batches_}
    if model.adapter_.anchors is not None:
        found["bandwidth"] = model.adapter_.bandwidth
        found["anchor"] = model.adapter_.anchors
        found["anchor_batch"] = model.adapter_.batch
    for name in ("reference", "added", "moments"):
        summary = getattr(model.fit_, name)
        found[f"{name}.batches"] = summary.batches
        for field in ("batch", "n", "mean", "m2", "anchors"):
            found[f"{name}.{field}"] = getattr(summary, field)
    for name in ("history", "evidence"):
        found |= {f"{name}.{field}": x for field, x in vars(getattr(model.fit_, name)).items()}
    if (consensus := model.fit_.consensus) is not None:
        fields = {k: v for k, v in vars(consensus).items() if k not in ("settings", "turning")}
        for field, value in (fields | consensus.turning._asdict()).items():
            found[f"consensus.{field}"] = np.asarray(value)
    return found


def assert_bits(a, b):
    one, two = parts(a), parts(b)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def assert_same(a, b):
    one, two = parts(a), parts(b)
    assert one.keys() == two.keys()
    for name in one:
        if one[name].dtype.kind == "f":
            np.testing.assert_allclose(one[name], two[name], rtol=1e-10, atol=1e-10, err_msg=name)
        else:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def rows_of(model, batch):
    """Rows of the adapter that belong to a batch."""
    b = model.batches_.tolist().index(batch)
    mine = model.adapter_.batch == b
    return model.scale_[mine], model.shift_[mine]


def write_h5ad(path, Z, batch, **obs):
    frame = pd.DataFrame({"batch": batch} | obs, index=[f"c{i}" for i in range(len(Z))])
    adata = ad.AnnData(obs=frame, obsm={"X_pca": Z})
    adata.write_h5ad(path)
    return adata
