import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn

from data import make_cells
from scbatchprox import Adam, BatchProx, InputError, refine

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

NAMES = np.array(["s1", "s2", "s3"])
D = 5


@pytest.fixture
def cells(rng):
    return make_cells(rng, [300, 200, 111], D, offset=10.0)


@pytest.fixture
def batch(cells):
    return NAMES[cells.codes]


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.admin.log-length": 0}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["synchronous", "threads", "cluster"])
def scheduler(request):
    """A context in which Dask computes one way or another."""
    if request.param == "cluster":
        return request.getfixturevalue("client").as_current
    return partial(dask.config.set, scheduler=request.param)


def counted(Z, chunks, folder, seconds=0.0):
    """``Z`` lazily; every read of a block leaves a file in ``folder``, as it starts."""

    def read(block, block_info=None):
        first = block_info[0]["array-location"][0][0]
        (folder / f"{first}-{time.time_ns()}-{os.getpid()}").touch()
        time.sleep(seconds)
        return block

    lazy = da.from_array(Z, chunks=chunks)
    return lazy.map_blocks(read, dtype=Z.dtype, meta=lazy._meta)


def reads(folder):
    return len(list(folder.iterdir()))


CHUNKS = [
    (611, D),
    (100, D),
    ((1, 10, 400, 200), D),
    ((200, 0, 411), D),  # a block that a filter left empty
    (97, 2),  # cut into columns too
    (7, D),  # 88 blocks: more than one level of the tree
]


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_equals_memory(cells, batch, chunks, scheduler):
    Z = da.from_array(cells.Z, chunks=chunks)
    expected = BatchProx(rounds=None).fit(cells.Z, batch=batch)
    with scheduler():
        model = BatchProx(rounds=None).fit(Z, batch=batch)
        result = model.transform(Z, batch=batch)
        whole = BatchProx(rounds=None).fit_transform(Z, batch=batch)
        assert isinstance(result, da.Array)
        assert result.chunks == (Z.chunks[0], (D,))
        assert result.dtype == np.float64
        back = model.inverse_transform(result, batch=batch)
        computed, whole, back = dask.compute(result, whole, back)
    refined = expected.transform(cells.Z, batch=batch)
    np.testing.assert_allclose(model.scale_, expected.scale_, rtol=1e-10)
    np.testing.assert_allclose(model.shift_, expected.shift_, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(computed, refined, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(whole, computed)
    np.testing.assert_allclose(back, cells.Z, rtol=1e-10, atol=1e-10)
    assert model.batches_.tolist() == expected.batches_.tolist()
    assert model.moments_.n.tolist() == [300, 200, 111]
    assert model.n_features_in_ == D


def test_schedulers_agree_to_the_bit(cells, batch, client):
    Z = da.from_array(cells.Z, chunks=(13, D))
    results = []
    for context in (
        partial(dask.config.set, scheduler="synchronous"),
        partial(dask.config.set, scheduler="threads", num_workers=7),
        client.as_current,
    ):
        with context():
            results.append(BatchProx().fit_transform(Z, batch=batch).compute())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_nothing_is_read_before_it_is_asked_for(cells, batch, tmp_path):
    Z = counted(cells.Z, (100, D), tmp_path)
    model = BatchProx().fit(Z, batch=batch)
    assert reads(tmp_path) == 7  # the moments, once
    result = model.transform(Z, batch=batch)
    back = model.inverse_transform(result, batch=batch)
    assert reads(tmp_path) == 7
    result[:50].compute()
    assert reads(tmp_path) == 8  # only what was asked for
    back.compute()
    assert reads(tmp_path) == 15


@pytest.mark.parametrize("verb", ["fit", "transform"])
def test_a_killed_worker_changes_nothing(cells, batch, client, tmp_path, verb):
    calm = BatchProx().fit(da.from_array(cells.Z, chunks=(10, D)), batch=batch)
    expected = calm.transform(da.from_array(cells.Z, chunks=(10, D)), batch=batch).compute()
    Z = counted(cells.Z, (10, D), tmp_path, seconds=0.05)
    blocks = Z.numblocks[0]
    client.wait_for_workers(2, timeout=60)

    def work():
        with client.as_current():
            if verb == "fit":
                return BatchProx().fit(Z, batch=batch)
            return calm.transform(Z, batch=batch).compute()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        deadline = time.time() + 60
        while reads(tmp_path) < blocks // 3 and time.time() < deadline:
            time.sleep(0.01)
        victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
        at_kill = reads(tmp_path)
        assert not future.done()
        result = future.result(timeout=120)
    assert blocks // 3 <= at_kill < blocks
    assert reads(tmp_path) > blocks  # what the victim was doing was done again
    if verb == "fit":
        np.testing.assert_array_equal(result.scale_, calm.scale_)
        np.testing.assert_array_equal(result.shift_, calm.shift_)
        np.testing.assert_array_equal(result.moments_.m2, calm.moments_.m2)
    else:
        np.testing.assert_array_equal(result, expected)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("i4", "f8"), (">f4", "f4"), ("bool", "f8")],
)
def test_dtypes(cells, batch, dtype, expected):
    Z = cells.Z.astype(dtype)
    result = BatchProx().fit_transform(da.from_array(Z, chunks=(100, 3)), batch=batch)
    assert result.dtype == expected
    assert result.compute().dtype == expected
    rtol = 1e-5 if expected == "f4" else 1e-10
    whole = BatchProx().fit_transform(Z, batch=batch)
    np.testing.assert_allclose(result.compute(), whole, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array, sp.csc_matrix])
def test_sparse_blocks(cells, batch, kind):
    Z = np.where(cells.Z > 10, cells.Z, 0.0)
    lazy = da.from_array(Z, chunks=(100, D)).map_blocks(kind)
    result = BatchProx().fit_transform(lazy, batch=batch)
    assert isinstance(result._meta, np.ndarray)
    whole = BatchProx().fit_transform(Z, batch=batch)
    np.testing.assert_allclose(result.compute(), whole, rtol=1e-10, atol=1e-10)


def test_lazy_labels(cells, batch):
    Z = da.from_array(cells.Z, chunks=(100, D))
    expected = BatchProx().fit_transform(Z, batch=batch).compute()
    kinds = [da.from_array(batch, chunks=50), pd.Categorical(batch), batch.tolist()]
    dd = pytest.importorskip("dask.dataframe")
    kinds.append(dd.from_pandas(pd.Series(batch), npartitions=3))
    kinds.append(dd.from_pandas(pd.Series(pd.Categorical(batch)), npartitions=3))
    xarray = pytest.importorskip("xarray")
    kinds.append(xarray.DataArray(da.from_array(batch, chunks=50)))
    for labels in kinds:
        lazy = BatchProx().fit_transform(Z, batch=labels)
        np.testing.assert_array_equal(lazy.compute(), expected)
        memory = BatchProx().fit(cells.Z, batch=labels).transform(cells.Z, batch=labels)
        np.testing.assert_allclose(memory, expected, rtol=1e-10)


def test_one_batch_and_some_batches(cells, batch):
    Z = da.from_array(cells.Z, chunks=(100, D))
    np.testing.assert_array_equal(BatchProx().fit_transform(Z).compute(), cells.Z)
    model = BatchProx().fit(Z, batch=batch)
    some = batch != "s2"
    part = da.from_array(cells.Z[some], chunks=(90, D))
    expected = model.transform(cells.Z, batch=batch)[some]
    np.testing.assert_array_equal(model.transform(part, batch=batch[some]).compute(), expected)


def test_the_graph_carries_no_more_than_it_must(rng):
    cloudpickle = pytest.importorskip("cloudpickle")
    n, rows, n_batches = 200_000, 2_000, 20
    Z = da.zeros((n, 50), chunks=(rows, 50), dtype="f4")
    batch = rng.permutation(np.repeat(np.arange(n_batches), n // n_batches))
    model = BatchProx().fit_moments(_moments(n_batches, 50))
    result = model.transform(Z, batch=batch)
    (result,) = dask.optimize(result)
    sizes = sorted(len(cloudpickle.dumps(task)) for task in dict(result.dask).values())
    adapter = 2 * 8 * n_batches * 50
    assert len(sizes) <= 3 * 100 + 1
    assert adapter < sizes[-1] < 2 * adapter  # once,
    assert sizes[-2] < rows + 4_000  # and with a block no more than the codes of its rows
    assert sum(sizes) < 2 * n + 100 * 6_000


def _moments(n_batches, d):
    from scbatchprox import Moments

    ones = np.ones((n_batches, d))
    return Moments.per_batch(np.arange(n_batches), np.full(n_batches, 100), ones, 100 * ones)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(cells, batch, bad):
    cells.Z[412, 3] = cells.Z[455, 1] = bad
    Z = da.from_array(cells.Z, chunks=(100, D))
    found = "2 NaN and 0" if np.isnan(bad) else "0 NaN and 2"
    message = f"found {found} infinite .* in rows 400 to 499, the first at row 412, column 3"
    with pytest.raises(InputError, match=message):
        BatchProx().fit(Z, batch=batch)
    model = BatchProx().fit(Z[:400], batch=batch[:400])
    later = model.transform(Z, batch=batch)
    with pytest.raises(InputError, match=message):
        later.compute()


def test_not_finite_on_a_cluster(cells, batch, client):
    cells.Z[412, 3] = np.nan
    Z = da.from_array(cells.Z, chunks=(100, D))
    with client.as_current(), pytest.raises(InputError, match="the first at row 412, column 3"):
        BatchProx().fit(Z, batch=batch)


def test_finite_but_too_large(cells, batch):
    cells.Z[3] = 1e200
    with pytest.raises(InputError, match="so large that their variance overflows"):
        BatchProx().fit(da.from_array(cells.Z, chunks=(100, D)), batch=batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda Z: Z[:, 0], r"Expected 2D array .* found 1D array of shape \(611,\)"),
        (lambda Z: Z[None], "found 3D array"),
        (lambda Z: Z[:0], "Expected at least one cell"),
        (lambda Z: Z[:, :0], "Expected at least one coordinate"),
        (lambda Z: Z[Z[:, 0] > 10], r"found unknown \(nan\) ones; call compute_chunk_sizes\(\)"),
        (lambda Z: Z.astype(complex), "Complex data not supported"),
        (lambda Z: Z.astype("U5"), "Expected an array of numbers"),
        (lambda Z: Z[:600], r"Expected one batch label per cell \(600\), found 611"),
    ],
)
def test_bad_arrays(cells, batch, tmp_path, change, message):
    fitted = BatchProx().fit(cells.Z, batch=batch)
    Z = change(counted(cells.Z, (100, 3), tmp_path))
    for verb in (BatchProx().fit, BatchProx().fit_transform, fitted.transform):
        with pytest.raises(InputError, match=message):
            verb(Z, batch=batch)
    assert reads(tmp_path) == 0


def test_other_bad_input(cells, batch, tmp_path):
    Z = counted(cells.Z, (100, D), tmp_path)
    fitted = BatchProx().fit(cells.Z, batch=batch)
    for solver in ("adam", Adam(seed=3)):
        with pytest.raises(InputError, match=r"solver='exact' works lazily\), found Adam\("):
            BatchProx(solver=solver).fit(Z, batch=batch)
    with pytest.raises(InputError, match="Expected no `out` for a Dask array"):
        BatchProx().fit_transform(Z, batch=batch, out=np.empty_like(cells.Z))
    for verb in (fitted.transform, fitted.inverse_transform):
        with pytest.raises(InputError, match="Expected no `out` for a Dask array"):
            verb(Z, batch=batch, out=np.empty_like(cells.Z))
        with pytest.raises(ValueError, match="has 4 features, but BatchProx is expecting 5"):
            verb(Z[:, :4], batch=batch)
        with pytest.raises(InputError, match="Expected a batch label per cell, found none"):
            verb(Z)
        with pytest.raises(InputError, match="found unseen 's9'; available: 's1', 's2', 's3'"):
            verb(Z, batch=np.where(batch == "s1", "s9", batch))
    fitted.adapter_.scale[1, 2] = 0.0
    with pytest.raises(InputError, match="Expected non-zero scales to invert"):
        fitted.inverse_transform(Z, batch=batch)
    with pytest.raises(InputError, match="Expected rounds"):
        BatchProx(rounds=-1).fit(Z, batch=batch)
    missing = pd.Series(batch).where(np.arange(611) != 9)
    with pytest.raises(InputError, match="1 missing of 611, the first at row 9"):
        BatchProx().fit(Z, batch=missing)
    assert reads(tmp_path) == 0


def test_a_failed_fit_leaves_the_earlier_one(cells, batch):
    model = BatchProx().fit(da.from_array(cells.Z, chunks=(100, D)), batch=batch)
    before = model.scale_.copy()
    cells.Z[0, 0] = np.nan
    with pytest.raises(InputError):
        model.fit(da.from_array(cells.Z, chunks=(100, D)), batch=batch)
    np.testing.assert_array_equal(model.scale_, before)


@pytest.fixture
def adata(cells, batch, rng):
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(batch, ["s3", "s1", "s2", "s9"]),
            "donor": rng.integers(1, 3, 611),
            "old": rng.random(611) > 0.5,
            "plate": pd.array(rng.integers(1, 3, 611), dtype="Int64"),
            "site": batch.astype(object),
        },
        index=[f"cell{i}" for i in range(611)],
    )
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(1.0, (611, 7)).astype(np.float32)), obs)
    adata.obsm["X_pca"] = cells.Z.astype(np.float32)
    return adata


def test_refine_with_a_dask_array_in_obsm(adata):
    expected = refine(adata, "batch", inplace=False)
    adata.obsm["X_pca"] = da.from_array(adata.obsm["X_pca"], chunks=(100, 3))
    lazy = refine(adata, "batch", inplace=False)
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == np.float32
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-6)
    assert set(adata.obsm) == {"X_pca"}
    assert refine(adata, "batch") is None
    assert isinstance(adata.obsm["X_pca_batchprox"], da.Array)
    assert adata.uns["X_pca_batchprox"]["movement"]["n_cells"].tolist() == [300, 200, 111]
    with pytest.raises(InputError, match="solver='exact' works lazily"):
        refine(adata, "batch", solver="adam")


@pytest.fixture(params=["h5ad", "zarr"])
def opened(request, adata, tmp_path):
    """The cells again, opened lazily from a file."""
    pytest.importorskip("xarray")
    experimental = pytest.importorskip("anndata.experimental")
    path = tmp_path / f"a.{request.param}"
    getattr(adata, f"write_{request.param}")(path)
    return experimental.read_lazy(path)


@pytest.mark.parametrize(
    "key",
    ["batch", "donor", "old", "plate", "site", ["batch", "donor"], ["site", "plate"]],
    ids=str,
)
def test_refine_opened_lazily(adata, opened, key):
    refine(adata, key)
    assert refine(opened, key) is None
    lazy = opened.obsm["X_pca_batchprox"]
    assert isinstance(lazy, da.Array)
    expected = adata.obsm["X_pca_batchprox"]
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-6, atol=1e-6)
    a, b = adata.uns["X_pca_batchprox"], opened.uns["X_pca_batchprox"]
    np.testing.assert_allclose(a["scale"], b["scale"], rtol=1e-10)
    assert a["batches"].tolist() == b["batches"].tolist()
    assert a["params"] == b["params"]


def test_refine_opened_lazily_on_a_cluster(adata, opened, client):
    expected = refine(adata, "batch", inplace=False)
    with client.as_current():
        result = refine(opened, "batch", inplace=False).compute()
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_opened_lazily_more(adata, opened, tmp_path):
    expected = refine(adata, "batch", use_rep="X", inplace=False)  # sparse blocks
    result = refine(opened, "batch", use_rep="X", inplace=False)
    np.testing.assert_allclose(result.compute(), expected, rtol=1e-6, atol=1e-6)
    column = opened.obs["batch"]
    memory = BatchProx().fit(adata.obsm["X_pca"], batch=column)
    assert memory.batches_.tolist() == ["s1", "s2", "s3"]
    some = np.flatnonzero(adata.obs["donor"] == 1)
    expected = refine(adata[some], "batch", inplace=False)
    result = refine(opened[some], "batch", inplace=False)
    np.testing.assert_allclose(result.compute(), expected, rtol=1e-6, atol=1e-6)
    refine(opened, "batch")
    again = opened.to_memory()
    again.write_h5ad(tmp_path / "again.h5ad")
    assert "X_pca_batchprox" in ad.read_h5ad(tmp_path / "again.h5ad").obsm


def test_refine_stays_lazy_whatever_scikit_learn_returns(adata):
    adata.obsm["X_pca"] = da.from_array(adata.obsm["X_pca"], chunks=(100, D))
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(refine(adata, "batch", inplace=False), da.Array)


def test_opened_lazily_bad_keys(opened):
    columns = "available: 'batch', 'donor', 'old', 'plate', 'site'"
    with pytest.raises(KeyError, match=f"found no column 'assay'; {columns}"):
        refine(opened, "assay")
    with pytest.raises(KeyError, match="found no 'X_umap'; available: 'X_pca'"):
        refine(opened, "batch", use_rep="X_umap")
    assert not opened.uns


def test_a_categorical_column_is_read_as_codes(opened):
    from scbatchprox.cells.dask import in_memory

    labels = in_memory(opened.obs["batch"])
    assert isinstance(labels, pd.Categorical)


def test_arrays_do_without_dask():
    script = (
        # Not installed, as far as imports can tell (anndata imports it where it is).
        "import sys; sys.modules['dask'] = None;"
        "import numpy as np; from scbatchprox import BatchProx;"
        "BatchProx().fit_transform(np.eye(40), batch=np.arange(40) % 2)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
