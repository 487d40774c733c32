import json
import multiprocessing
import os

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from safetensors.numpy import load_file, save_file

import scbatchprox
from data import cells, make_cells
from scbatchprox import Adapter, BatchProx, Moments, get_num_threads, set_num_threads


def some_adapter(rng, B=3, d=4, batches=None):
    return Adapter.per_batch(
        np.array(batches or list("abcdefgh")[:B]),
        rng.uniform(0.5, 2.0, (B, d)),
        rng.normal(size=(B, d)),
    )


@given(cells(min_size=1))
def test_apply_is_the_formula_and_inverse_undoes_it(c):
    rng = np.random.default_rng(0)
    adapter = some_adapter(rng, c.B, c.d, list(range(c.B)))
    refined = adapter.apply(c.Z, c.codes)
    np.testing.assert_allclose(
        refined, adapter.scale[c.codes] * c.Z + adapter.shift[c.codes], rtol=1e-12, atol=1e-10
    )
    np.testing.assert_allclose(adapter.inverse(refined, c.codes), c.Z, rtol=1e-9, atol=1e-9)


def test_identity_moves_nothing(rng):
    Z = rng.normal(size=(20, 3)).astype(np.float32)
    adapter = Adapter.identity(["b", "a"], 3)
    assert adapter.batches.tolist() == ["a", "b"]
    np.testing.assert_array_equal(adapter.apply(Z, list("ab") * 10), Z)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("?", "f8"), (">f4", "f4")],
)
def test_result_type(rng, dtype, result):
    Z = (rng.normal(size=(50, 4)) > 0).astype(dtype)
    adapter, batch = some_adapter(rng), rng.choice(list("abc"), 50)
    refined = adapter.apply(Z, batch)
    assert refined.dtype == np.dtype(result)
    np.testing.assert_allclose(refined, adapter.apply(Z.astype(float), batch), rtol=1e-6)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "csr_array"])
def test_sparse_in_dense_out(rng, kind):
    Z = rng.poisson(0.3, (90, 4)).astype(np.float32)
    adapter, batch = some_adapter(rng), rng.choice(list("abc"), 90)
    refined = adapter.apply(getattr(sp, kind)(Z), batch)
    assert isinstance(refined, np.ndarray)
    np.testing.assert_array_equal(refined, adapter.apply(Z, batch))


class TestOut:
    def test_takes_the_result(self, rng):
        adapter, batch = some_adapter(rng), rng.choice(list("abc"), 90)
        Z = rng.normal(size=(90, 4))
        for out in (np.empty_like(Z), np.empty((90, 4), order="F"), np.empty((180, 8))[::2, ::2]):
            assert adapter.apply(Z, batch, out=out) is out
            np.testing.assert_array_equal(out, adapter.apply(Z, batch))

    def test_may_be_the_input(self, rng):
        adapter, batch = some_adapter(rng), rng.choice(list("abc"), 90)
        for Z in (rng.normal(size=(90, 4)), np.asfortranarray(rng.normal(size=(90, 4)))):
            expected = adapter.apply(Z, batch)
            adapter.apply(Z, batch, out=Z)
            np.testing.assert_array_equal(Z, expected)

    @pytest.mark.parametrize("what", ["shape", "dtype", "readonly", "overlap"])
    def test_must_fit(self, rng, what):
        store = rng.normal(size=(91, 4))
        Z, before = store[:90], store.copy()
        out = {
            "shape": np.empty((90, 3)),
            "dtype": np.empty((90, 4), int),
            "readonly": np.empty((90, 4)),
            "overlap": store[1:],
        }[what]
        if what == "readonly":
            out.flags.writeable = False
        with pytest.raises(
            (ValueError, TypeError), match="Expected a writeable float32 or float64"
        ):
            some_adapter(rng).apply(Z, ["a"] * 90, out=out)
        np.testing.assert_array_equal(store, before)

    def test_is_untouched_by_bad_input(self, rng):
        Z = rng.normal(size=(90, 4))
        Z[70, 2] = np.nan
        out = np.full((90, 4), 7.0)
        with pytest.raises(ValueError, match="1 NaN and 0 infinite .* row 70, column 2"):
            some_adapter(rng).apply(Z, ["a"] * 90, out=out)
        assert (out == 7.0).all()


def test_threads_change_no_bit(rng):
    adapter, batch = some_adapter(rng), rng.choice(list("abc"), 10_001)
    Z = rng.normal(size=(10_001, 4)).astype(np.float32)
    results = []
    try:
        for threads in (1, 2, 7):
            set_num_threads(threads)
            results.append(adapter.apply(Z, batch))
    finally:
        set_num_threads(None)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_movement_is_that_of_the_cells(rng):
    c = make_cells(rng, [50, 30, 1], 4)
    adapter = some_adapter(rng, batches=[0, 1, 2])
    table = adapter.movement(Moments.of(c.Z, c.codes))
    refined = adapter.apply(c.Z, c.codes)
    for b in range(3):
        before, after = c.rows(b), refined[c.codes == b]
        moved = np.sqrt(((after - before) ** 2).sum(1).mean())
        assert table.loc[b, "moved"] == pytest.approx(moved)
        center = np.linalg.norm(after.mean(0) - before.mean(0))
        assert table.loc[b, "mean_moved"] == pytest.approx(center)
        spread = np.sqrt(before.var(0).sum())
        assert table.loc[b, "relative"] == pytest.approx(moved / spread if spread else 0)
        assert table.loc[b, "scale_max"] == adapter.scale[b].max()
    assert table["n_cells"].tolist() == [50, 30, 1]


def test_zero_scale_cannot_be_inverted(rng):
    adapter = Adapter.per_batch(np.array(["a"]), np.array([[1.0, 0.0]]), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="found 0 for batch 'a', column 1"):
        adapter.inverse(rng.normal(size=(3, 2)))


class TestFile:
    @pytest.mark.parametrize(
        "batches", [["a", "ü | b"], [1, 20], [False, True], [0.5, 2.0]], ids=str
    )
    def test_comes_back_to_the_bit(self, rng, tmp_path, batches):
        adapter = some_adapter(rng, 2, 5, batches)
        adapter.save(tmp_path / "a.safetensors")
        back = Adapter.load(tmp_path / "a.safetensors")
        assert back.batches.tolist() == batches
        assert back.batches.dtype == adapter.batches.dtype
        np.testing.assert_array_equal(back.scale, adapter.scale)
        np.testing.assert_array_equal(back.shift, adapter.shift)
        assert os.listdir(tmp_path) == ["a.safetensors"]

    def test_layout_is_the_documented_one(self, rng, tmp_path):
        adapter = some_adapter(rng, 2, 5)
        adapter.save(tmp_path / "a.safetensors")
        assert set(load_file(tmp_path / "a.safetensors")) == {"batch", "scale", "shift"}
        raw = (tmp_path / "a.safetensors").read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
        assert header["format"] == "scbatchprox"
        assert header["format_version"] == "2"
        assert header["kind"] == "adapter"
        assert header["scbatchprox_version"] == scbatchprox.__version__
        assert json.loads(header["batches"]) == ["a", "b"]

    def test_model_files_contain_an_adapter(self, rng, tmp_path):
        c = make_cells(rng, [50, 30], 3)
        model = BatchProx(target="moment").fit(c.Z, batch=c.codes)
        model.save(tmp_path / "m.safetensors")
        np.testing.assert_array_equal(Adapter.load(tmp_path / "m.safetensors").scale, model.scale_)

    def test_failed_save_leaves_the_old_file(self, rng, tmp_path, monkeypatch):
        path = tmp_path / "a.safetensors"
        some_adapter(rng).save(path)
        old = path.read_bytes()

        def full(*_):
            raise OSError("No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            some_adapter(rng).save(path)
        assert path.read_bytes() == old
        assert os.listdir(tmp_path) == ["a.safetensors"]

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("absent", "found no file at"),
            ("truncated", "damaged or of another kind"),
            ("foreign", "Expected a file written by scbatchprox"),
            ("newer", "Expected file format 2 or older, found '3'.*upgrade"),
            ("kind", "Expected a saved model, found a saved 'adapter'"),
        ],
    )
    def test_bad_files_are_named(self, rng, tmp_path, damage, message):
        path = tmp_path / "a.safetensors"
        some_adapter(rng).save(path)
        raw = path.read_bytes()
        if damage == "absent":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(raw[:60])
        elif damage == "foreign":
            save_file({"scale": np.ones((1, 1))}, path)
        elif damage == "newer":
            path.write_bytes(raw.replace(b'"format_version":"2"', b'"format_version":"3"'))
        load = BatchProx.load if damage == "kind" else Adapter.load
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            load(path)


def _apply_in_child(queue, adapter, Z, batch):
    queue.put(adapter.apply(Z, batch).sum())


def test_survives_a_fork_and_concurrent_callers(rng):
    """Data loaders fork and Dask calls from several threads: numba's thread pools would abort here."""
    from concurrent.futures import ThreadPoolExecutor

    adapter, batch = some_adapter(rng), rng.choice(list("abc"), 20_000)
    Z = rng.normal(size=(20_000, 4))
    expected = adapter.apply(Z, batch)
    assert get_num_threads() >= 1
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: adapter.apply(Z, batch), range(8)):
            np.testing.assert_array_equal(result, expected)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_apply_in_child, args=(queue, adapter, Z, batch))
    child.start()
    assert queue.get(timeout=60) == expected.sum()
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("bad", [np.ones((2, 4)), np.ones((3, 5)), np.ones(3)])
def test_shapes_must_agree(bad):
    with pytest.raises(ValueError, match=r"Expected scale and shift of one shape \(3, d\)"):
        Adapter.per_batch(np.array(list("abc")), bad, np.ones((3, 4)))


def test_entries_must_be_finite():
    with pytest.raises(ValueError, match="Expected finite shift"):
        Adapter.per_batch(np.array(["a"]), np.ones((1, 2)), np.array([[0.0, np.inf]]))
