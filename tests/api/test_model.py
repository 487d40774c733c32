import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from data import cells, make_cells
from scbatchprox import Adam, BatchProx, Exact


@pytest.mark.filterwarnings("ignore:Expected labels as batch")
@parametrize_with_checks(
    [BatchProx(target="moment"), BatchProx(solver="adam", rounds=2, target="moment")]
)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@given(cells(min_size=10))
def test_inverse_returns_the_cells(c):
    model = BatchProx(rounds=5, target="moment").fit(c.Z, batch=c.codes)
    refined = model.transform(c.Z, batch=c.codes)
    np.testing.assert_allclose(model.inverse_transform(refined, batch=c.codes), c.Z, atol=1e-7)


@given(cells(min_size=10))
def test_fit_transform_is_fit_then_transform(c):
    np.testing.assert_array_equal(
        BatchProx(target="moment").fit_transform(c.Z, batch=c.codes),
        BatchProx(target="moment").fit(c.Z, batch=c.codes).transform(c.Z, batch=c.codes),
    )


@given(cells(min_size=10, max_batches=3))
def test_names_and_order_of_cells_do_not_matter(c):
    plain = BatchProx(target="moment").fit_transform(c.Z, batch=c.codes)
    named = BatchProx(target="moment").fit_transform(c.Z, batch=np.array(["x", "m", "a"])[c.codes])
    np.testing.assert_allclose(plain, named, rtol=1e-9, atol=1e-9)
    order = np.random.default_rng(0).permutation(len(c.Z))
    shuffled = BatchProx(target="moment").fit_transform(c.Z[order], batch=c.codes[order])
    np.testing.assert_allclose(plain[order], shuffled, rtol=1e-9, atol=1e-9)


def test_defaults_are_the_documented_ones():
    assert BatchProx(target="moment").get_params() == dict(
        target="moment", solver="exact", rounds="auto", lambda_target=0.5, mu=1e-3, lambda_id=1e-3,
        strength=1.0,
    )  # fmt: skip


@given(cells(min_size=10), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([3, None]))
def test_strength_scales_every_displacement(c, strength, rounds):
    full = BatchProx(rounds=rounds, target="moment").fit_transform(c.Z, batch=c.codes)
    part = BatchProx(rounds=rounds, strength=strength, target="moment").fit_transform(
        c.Z, batch=c.codes
    )
    np.testing.assert_allclose(part - c.Z, strength * (full - c.Z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_strength_moves_no_cell(rng, dtype):
    c = make_cells(rng, [50, 30, 20], 4, offset=1e3)
    Z = c.Z.astype(dtype)
    model = BatchProx(strength=0.0, target="moment")
    np.testing.assert_array_equal(model.fit_transform(Z[:80], batch=c.codes[:80]), Z[:80])
    # The same holds for added batches and for rows that are fitted again.
    model.partial_fit(Z, batch=c.codes + 10).forget(c.codes[0])
    np.testing.assert_array_equal(model.transform(Z, batch=c.codes + 10), Z)


def test_fitted_attributes(rng):
    c = make_cells(rng, [50, 30, 20], 4)
    model = BatchProx(target="moment").fit(c.Z, batch=np.array(["x", "y", "z"])[c.codes])
    assert model.batches_.tolist() == ["x", "y", "z"]
    assert model.scale_.shape == model.shift_.shape == (3, 4)
    assert model.moments_.n.tolist() == [50, 30, 20]
    assert len(model.history_.objective) == 4
    assert model.n_features_in_ == 4
    assert model.movement().index.tolist() == ["x", "y", "z"]


def test_solver_objects(rng):
    c = make_cells(rng, [300, 200], 3)
    exact = BatchProx(solver=Exact(), target="moment").fit(c.Z, batch=c.codes)
    np.testing.assert_array_equal(
        exact.scale_, BatchProx(target="moment").fit(c.Z, batch=c.codes).scale_
    )
    model = BatchProx(solver=Adam(seed=3), target="moment")
    assert clone(model).get_params() == model.get_params()
    adam = model.fit(c.Z, batch=c.codes).scale_
    assert (adam != BatchProx(solver="adam", target="moment").fit(c.Z, batch=c.codes).scale_).any()


def test_some_batches_in_another_order_and_type(rng):
    c = make_cells(rng, [50, 30, 20], 4)
    model = BatchProx(target="moment").fit(c.Z, batch=c.codes)
    whole = model.transform(c.Z, batch=c.codes)
    some = c.codes == 2
    one = model.transform(c.Z[some], batch=pd.array(c.codes[some], dtype="Int64"))
    np.testing.assert_array_equal(one, whole[some])


def test_transform_into_an_array(rng):
    c = make_cells(rng, [50, 30], 4)
    model = BatchProx(target="moment").fit(c.Z, batch=c.codes)
    expected = model.transform(c.Z, batch=c.codes)
    Z = c.Z.copy()
    assert model.transform(Z, batch=c.codes, out=Z) is Z
    np.testing.assert_array_equal(Z, expected)
    Z = c.Z.copy()
    BatchProx(target="moment").fit_transform(Z, batch=c.codes, out=Z)
    np.testing.assert_array_equal(Z, expected)
    model.inverse_transform(Z, batch=c.codes, out=Z)
    np.testing.assert_allclose(Z, c.Z)


def test_fingerprints(rng):
    """0/1 fingerprints with 2,048 columns, most of them constant in the smallest batch."""
    density = rng.beta(0.3, 6, 2048)
    bits = rng.random((400, 2048)) < density
    batch = rng.permutation(np.repeat(["few", "some", "many"], [17, 83, 300]))
    dense = BatchProx(target="moment").fit_transform(bits, batch=batch)
    assert np.isfinite(dense).all()
    np.testing.assert_allclose(
        BatchProx(target="moment").fit_transform(sp.csr_matrix(bits.astype(np.int8)), batch=batch),
        dense,
    )
    np.testing.assert_allclose(
        BatchProx(target="moment").fit_transform(bits.astype(np.float32), batch=batch),
        dense,
        atol=1e-6,
    )


def test_pipeline_and_frames(rng):
    c = make_cells(rng, [50, 30], 3)
    frame = pd.DataFrame(c.Z, columns=["PC1", "PC2", "PC3"])
    model = BatchProx(target="moment").set_output(transform="pandas")
    refined = model.fit_transform(frame, batch=c.codes)
    assert list(model.feature_names_in_) == ["PC1", "PC2", "PC3"]
    assert list(model.get_feature_names_out()) == ["PC1", "PC2", "PC3"]
    assert list(refined.columns) == ["PC1", "PC2", "PC3"]
    pipeline = make_pipeline(StandardScaler(), BatchProx(target="moment"))
    through = pipeline.fit_transform(c.Z, batchprox__batch=c.codes)
    scaled = StandardScaler().fit_transform(c.Z)
    np.testing.assert_array_equal(
        through, BatchProx(target="moment").fit_transform(scaled, batch=c.codes)
    )


@pytest.mark.parametrize("solver", ["exact", "adam", Exact(), Adam(seed=4, betas=(0.8, 0.9))])
@pytest.mark.parametrize("batches", [["p", "q"], [3, 11]])
def test_save_and_load(rng, tmp_path, solver, batches):
    c = make_cells(rng, [50, 30], 3)
    batch = np.array(batches)[c.codes]
    frame = pd.DataFrame(c.Z, columns=["PC1", "PC2", "PC3"])
    model = BatchProx(solver=solver, rounds=2, mu=0.01, target="moment").fit(frame, batch=batch)
    model.save(tmp_path / "model.safetensors")
    back = BatchProx.load(tmp_path / "model.safetensors")
    assert back.get_params() == model.get_params()
    assert back.batches_.tolist() == batches
    assert back.converged_ == model.converged_
    assert list(back.feature_names_in_) == ["PC1", "PC2", "PC3"]
    for name in ("n", "mean", "m2"):
        np.testing.assert_array_equal(getattr(back.moments_, name), getattr(model.moments_, name))
    for name, value in vars(model.history_).items():
        np.testing.assert_array_equal(getattr(back.history_, name), value)
    np.testing.assert_array_equal(
        back.transform(frame, batch=batch), model.transform(frame, batch=batch)
    )


def test_a_custom_solver_cannot_be_saved(rng, tmp_path):
    class Mine(Exact):
        pass

    model = BatchProx(solver=Mine(), target="moment").fit(rng.normal(size=(30, 2)))
    with pytest.raises(TypeError, match="Expected a solver that can be saved"):
        model.save(tmp_path / "m")


def test_a_failed_fit_keeps_the_earlier_one(rng):
    c = make_cells(rng, [50, 30], 3)
    model = BatchProx(target="moment").fit(c.Z, batch=c.codes)
    scale = model.scale_
    with pytest.raises(ValueError, match="Expected finite values"):
        model.fit(np.full((10, 2), np.nan))
    huge = np.r_[np.full((20, 2), 1e160), np.full((20, 2), -1e160)]
    with pytest.raises(ValueError, match="Expected"):
        model.fit(huge, batch=[0] * 20 + [1] * 20)
    with pytest.raises(ValueError, match="Expected a writeable"):
        model.fit_transform(c.Z[:, :2], batch=c.codes, out=np.empty((3, 3)))
    assert model.scale_ is scale
    assert model.n_features_in_ == 3
    assert model.moments_.n_dims == 3


def test_labels_passed_as_y_give_a_warning(rng):
    c = make_cells(rng, [50, 30], 3)
    with pytest.warns(UserWarning, match="found only y, which is ignored"):
        BatchProx(target="moment").fit_transform(c.Z, c.codes)


def test_provenance_is_saved(rng, tmp_path):
    model = BatchProx(solver=Adam(seed=np.int64(3), lr=np.float32(0.5)), target="moment").fit(
        rng.normal(size=(30, 2))
    )
    model.provenance_["source"] = "cells.h5ad"
    model.save(tmp_path / "m.safetensors")
    assert BatchProx.load(tmp_path / "m.safetensors").provenance_ == {"source": "cells.h5ad"}


def test_pickle_copy_and_routing(rng):
    import copy
    import pickle

    import sklearn

    c = make_cells(rng, [50, 30], 3)
    model = BatchProx(target="moment").fit(c.Z, batch=c.codes)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.scale_, model.scale_)
    with sklearn.config_context(enable_metadata_routing=True):
        step = (
            BatchProx(target="moment").set_fit_request(batch=True).set_transform_request(batch=True)
        )
        pipeline = make_pipeline(StandardScaler(), step).fit(c.Z, batch=c.codes)
        through = pipeline.transform(c.Z, batch=c.codes)
    scaled = StandardScaler().fit_transform(c.Z)
    np.testing.assert_array_equal(
        through, BatchProx(target="moment").fit_transform(scaled, batch=c.codes)
    )


@pytest.mark.parametrize("layout", ["strided", "reversed", "readonly", "fortran", "memmap"])
def test_memory_layouts(rng, tmp_path, layout):
    c = make_cells(rng, [5000, 3000], 6)
    wide = np.zeros((16_000, 12))
    wide[::2, ::2] = c.Z
    Z = {
        "strided": wide[::2, ::2],
        "reversed": c.Z[::-1].copy()[::-1],
        "readonly": c.Z.copy(),
        "fortran": np.asfortranarray(c.Z),
        "memmap": np.memmap(tmp_path / "z", "f8", "w+", shape=c.Z.shape),
    }[layout]
    if layout == "memmap":
        Z[:] = c.Z
    Z.flags.writeable = layout == "memmap"
    np.testing.assert_allclose(
        BatchProx(target="moment").fit_transform(Z, batch=c.codes),
        BatchProx(target="moment").fit_transform(c.Z, batch=c.codes),
        rtol=1e-12,
    )


def test_overflow_of_float32_results_raises():
    wide = np.tile([3.3e38, -3.3e38, 3.3e38], 10)
    outlier = np.r_[
        np.zeros(29), 1e30
    ]  # scaled up a lot, because the variance of its batch is small
    Z = np.r_[wide, outlier].astype(np.float32)[:, None]
    model = BatchProx(rounds=None, mu=0, lambda_id=0, target="moment")
    with pytest.raises(ValueError, match="their refined values overflow"):
        model.fit_transform(Z, batch=["a"] * 30 + ["b"] * 30)
