"""Dask arrays: the same result as in memory, on any scheduler, read only when needed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from lazy_cells import D, counted, reads
from scbatchprox import BatchProx

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")


@pytest.fixture(params=["synchronous", "threads", "cluster"])
def scheduler(request):
    """A context manager that sets the scheduler of Dask."""
    if request.param == "cluster":
        return request.getfixturevalue("client").as_current
    return partial(dask.config.set, scheduler=request.param)


CHUNKS = [
    (611, D),
    (100, D),
    ((1, 10, 400, 200), D),
    ((200, 0, 411), D),  # with an empty block, as after a filter
    (97, 2),  # chunks of columns too
    (7, D),  # 88 blocks: more than one level of the tree
]


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_equals_memory(cells, batch, chunks, scheduler):
    Z = da.from_array(cells.Z, chunks=chunks)
    expected = BatchProx(rounds=None, target="moment").fit(cells.Z, batch=batch)
    with scheduler():
        model = BatchProx(rounds=None, target="moment").fit(Z, batch=batch)
        result = model.transform(Z, batch=batch)
        whole = BatchProx(rounds=None, target="moment").fit_transform(Z, batch=batch)
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
            results.append(BatchProx(target="moment").fit_transform(Z, batch=batch).compute())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_nothing_is_read_before_it_is_needed(cells, batch, tmp_path):
    Z = counted(cells.Z, (100, D), tmp_path)
    model = BatchProx(target="moment").fit(Z, batch=batch)
    assert reads(tmp_path) == 7  # the moments, once
    result = model.transform(Z, batch=batch)
    back = model.inverse_transform(result, batch=batch)
    assert reads(tmp_path) == 7
    result[:50].compute()
    assert reads(tmp_path) == 8  # only the requested block
    back.compute()
    assert reads(tmp_path) == 15


@pytest.mark.parametrize("verb", ["fit", "transform"])
@pytest.mark.slow
def test_a_killed_worker_changes_nothing(cells, batch, client, tmp_path, verb):
    undisturbed = BatchProx(target="moment").fit(
        da.from_array(cells.Z, chunks=(10, D)), batch=batch
    )
    expected = undisturbed.transform(da.from_array(cells.Z, chunks=(10, D)), batch=batch).compute()
    Z = counted(cells.Z, (10, D), tmp_path, seconds=0.05)
    blocks = Z.numblocks[0]
    client.wait_for_workers(2, timeout=60)

    def work():
        with client.as_current():
            if verb == "fit":
                return BatchProx(target="moment").fit(Z, batch=batch)
            return undisturbed.transform(Z, batch=batch).compute()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        deadline = time.time() + 60
        while reads(tmp_path) < blocks // 3 and time.time() < deadline:
            time.sleep(0.01)
        killed = next(iter(client.run(os.getpid).values()))
        os.kill(killed, signal.SIGKILL)
        at_kill = reads(tmp_path)
        assert not future.done()
        result = future.result(timeout=120)
    assert blocks // 3 <= at_kill < blocks
    assert reads(tmp_path) > blocks  # the blocks of the killed worker were computed again
    if verb == "fit":
        np.testing.assert_array_equal(result.scale_, undisturbed.scale_)
        np.testing.assert_array_equal(result.shift_, undisturbed.shift_)
        np.testing.assert_array_equal(result.moments_.m2, undisturbed.moments_.m2)
    else:
        np.testing.assert_array_equal(result, expected)
    client.wait_for_workers(2, timeout=60)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("f4", "f4"), ("f2", "f4"), ("f8", "f8"), ("i4", "f8"), (">f4", "f4"), ("bool", "f8")],
)
def test_dtypes(cells, batch, dtype, expected):
    Z = cells.Z.astype(dtype)
    result = BatchProx(target="moment").fit_transform(
        da.from_array(Z, chunks=(100, 3)), batch=batch
    )
    assert result.dtype == expected
    assert result.compute().dtype == expected
    rtol = 1e-5 if expected == "f4" else 1e-10
    whole = BatchProx(target="moment").fit_transform(Z, batch=batch)
    np.testing.assert_allclose(result.compute(), whole, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array, sp.csc_matrix])
def test_sparse_blocks(cells, batch, kind):
    Z = np.where(cells.Z > 10, cells.Z, 0.0)
    lazy = da.from_array(Z, chunks=(100, D)).map_blocks(kind)
    result = BatchProx(target="moment").fit_transform(lazy, batch=batch)
    assert isinstance(result._meta, np.ndarray)
    whole = BatchProx(target="moment").fit_transform(Z, batch=batch)
    np.testing.assert_allclose(result.compute(), whole, rtol=1e-10, atol=1e-10)


def test_lazy_labels(cells, batch):
    Z = da.from_array(cells.Z, chunks=(100, D))
    expected = BatchProx(target="moment").fit_transform(Z, batch=batch).compute()
    kinds = [da.from_array(batch, chunks=50), pd.Categorical(batch), batch.tolist()]
    dd = pytest.importorskip("dask.dataframe")
    kinds.append(dd.from_pandas(pd.Series(batch), npartitions=3))
    kinds.append(dd.from_pandas(pd.Series(pd.Categorical(batch)), npartitions=3))
    xarray = pytest.importorskip("xarray")
    kinds.append(xarray.DataArray(da.from_array(batch, chunks=50)))
    for labels in kinds:
        lazy = BatchProx(target="moment").fit_transform(Z, batch=labels)
        np.testing.assert_array_equal(lazy.compute(), expected)
        memory = (
            BatchProx(target="moment").fit(cells.Z, batch=labels).transform(cells.Z, batch=labels)
        )
        np.testing.assert_allclose(memory, expected, rtol=1e-10)


def test_one_batch_and_some_batches(cells, batch):
    Z = da.from_array(cells.Z, chunks=(100, D))
    np.testing.assert_array_equal(BatchProx(target="moment").fit_transform(Z).compute(), cells.Z)
    model = BatchProx(target="moment").fit(Z, batch=batch)
    some = batch != "s2"
    part = da.from_array(cells.Z[some], chunks=(90, D))
    expected = model.transform(cells.Z, batch=batch)[some]
    np.testing.assert_array_equal(model.transform(part, batch=batch[some]).compute(), expected)


def test_the_graph_is_small(rng):
    cloudpickle = pytest.importorskip("cloudpickle")
    n, rows, n_batches = 200_000, 2_000, 20
    Z = da.zeros((n, 50), chunks=(rows, 50), dtype="f4")
    batch = rng.permutation(np.repeat(np.arange(n_batches), n // n_batches))
    model = BatchProx(target="moment").fit_moments(_moments(n_batches, 50))
    result = model.transform(Z, batch=batch)
    (result,) = dask.optimize(result)
    sizes = sorted(len(cloudpickle.dumps(task)) for task in dict(result.dask).values())
    adapter = 2 * 8 * n_batches * 50
    assert len(sizes) <= 3 * 100 + 1
    assert adapter < sizes[-1] < 2 * adapter  # the adapter, once
    assert sizes[-2] < rows + 4_000  # a block carries only the codes of its rows
    assert sum(sizes) < 2 * n + 100 * 6_000


def _moments(n_batches, d):
    from scbatchprox import Moments

    ones = np.ones((n_batches, d))
    return Moments.per_batch(np.arange(n_batches), np.full(n_batches, 100), ones, 100 * ones)


def test_arrays_in_memory_do_not_need_dask():
    script = (
        # Imports fail as if it were not installed.
        "import sys; sys.modules['dask'] = None;"
        "import numpy as np; from scbatchprox import BatchProx;"
        "BatchProx().fit_transform(np.eye(40), batch=np.arange(40) % 2)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
