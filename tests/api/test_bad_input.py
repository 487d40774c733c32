"""Bad input gets one clear sentence (expected, found, available) and changes nothing."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from scbatchprox import Adam, Adapter, BatchProx, Moments, MomentTarget, diagnose

CASES = {
    "one dimension": (np.zeros(5), None, r"Expected 2D array .* found 1D array of shape \(5,\)"),
    "three dimensions": (np.zeros((2, 2, 2)), None, "Expected 2D array .* found 3D array"),
    "no cells": (np.zeros((0, 3)), None, r"Expected at least one cell, found 0 .*shape=\(0, 3\)"),
    "no columns": (np.zeros((3, 0)), None, "Expected at least one coordinate, found 0"),
    "NaN": (
        np.where(np.eye(6, 3, -2), np.nan, 1.0),
        None,
        "found 3 NaN and 0 infinite .* of 18, the first at row 2, column 0",
    ),
    "infinite": (
        np.where(np.eye(6, 3), -np.inf, 1.0),
        None,
        "found 0 NaN and 3 infinite .* of 18, the first at row 0, column 0",
    ),
    "overflow": (
        np.array([[1e200], [-1e200]]),
        None,
        "their refined values overflow",
    ),
    "fewer labels": (np.zeros((5, 2)), list("abc"), r"Expected one .* \(5\), found 3 labels"),
    "missing labels": (np.zeros((3, 2)), ["a", None, None], "found 2 missing of 3"),
    "text": (np.array([["a", "b"]]), None, "Expected an array of numbers .* found dtype <U1"),
    "objects": (
        np.array([[1.0, "gene"]], object),
        None,
        "found an object array with entries that are not numbers: .*'gene'",
    ),
    "other objects": (np.array([[1.0, {}]], object), None, "object array .* not numbers: .*dict"),
    "complex": (np.zeros((3, 2), complex), None, "expected real numbers, found complex128"),
    "dates": (np.zeros((3, 2), "M8[D]"), None, "Expected an array of numbers .*datetime64"),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_says_what_is_wrong(case):
    Z, batch, message = CASES[case]
    before = Z.copy()
    model = BatchProx(target="moment")
    with pytest.raises((ValueError, TypeError), match=message) as error:
        model.fit(Z, batch=batch)
    assert "\n" not in str(error.value)
    assert not hasattr(model, "scale_")
    assert not hasattr(model, "n_features_in_")
    np.testing.assert_array_equal(Z, before)


@pytest.mark.parametrize("sparse", [False, True])
def test_nonfinite_values_are_counted_over_all_rows(rng, sparse):
    Z = rng.normal(size=(300_000, 3)).astype(np.float32)
    Z[250_000, 1], Z[299_999, 2] = np.nan, np.inf
    with pytest.raises(ValueError, match="found 1 NaN and 1 infinite .* row 250000, column 1"):
        BatchProx(target="moment").fit(sp.csr_matrix(Z) if sparse else Z)


@pytest.fixture
def fitted(rng):
    return BatchProx(target="moment").fit(rng.normal(size=(40, 3)), batch=["a"] * 20 + ["b"] * 20)


def annotated():
    return ad.AnnData(np.zeros((40, 3)), obsm={"X_pca": np.zeros((40, 3))})


NO_ARRAYS = {
    "AnnData": annotated,
    "dict": lambda: {"X_pca": np.zeros((40, 3))},
    "str": lambda: "cells.h5ad",
    "PosixPath": lambda: Path("cells.h5ad"),
    "list of str": lambda: ["cells.h5ad"] * 40,
    "list of AnnData": lambda: [annotated(), annotated()],
    "generator": lambda: (row for row in np.zeros((40, 3))),
    "NoneType": lambda: None,
}
TAKERS = {
    "fit": lambda Z: BatchProx(target="moment").fit(Z),
    "fit_transform": lambda Z: BatchProx(target="moment").fit_transform(Z),
    "partial_fit": lambda Z: BatchProx(target="moment").partial_fit(Z),
    "transform": lambda Z: BatchProx(target="moment").fit(np.eye(3)).transform(Z),
    "moments": Moments.of,
    "adapter": lambda Z: Adapter.per_batch(["all"], np.ones((1, 3)), np.zeros((1, 3))).apply(Z),
    "diagnose": lambda Z: diagnose(Z, "batch", target="moment"),
}


class TestNoArray:
    @pytest.mark.parametrize(
        ("taker", "kind"), [(t, k) for t in TAKERS for k in NO_ARRAYS if (t, k) != ("diagnose", "AnnData")]
    )  # fmt: skip
    def test_is_refused_without_reading_it(self, taker, kind, monkeypatch):
        monkeypatch.setattr(ad.AnnData, "__getitem__", lambda *_: pytest.fail("read cell by cell"))
        with pytest.raises(TypeError, match=rf"^Expected an array .*, found (an )?{kind}[.;]") as e:
            TAKERS[taker](NO_ARRAYS[kind]())
        assert "\n" not in str(e.value)

    @pytest.mark.parametrize("taker", [taker for taker in TAKERS if taker != "diagnose"])
    def test_an_anndata_has_one_inside(self, taker):
        with pytest.raises(TypeError, match=r'adata\.obsm\["X_pca"\], or .*scbatchprox\.refine'):
            TAKERS[taker](annotated())


LABELS = np.repeat(["a", "b"], 20)


@pytest.mark.parametrize("verb", ["fit", "fit_transform", "partial_fit"])
class TestLabelsAsY:
    @pytest.mark.parametrize(
        "labels",
        [
            LABELS,
            LABELS.tolist(),
            LABELS.astype(object),
            pd.Series(LABELS),
            pd.Series(LABELS, dtype="string"),
            pd.Categorical(LABELS),
            pd.Series([1, 2] * 20, dtype="category"),
            pd.DataFrame({"batch": pd.Categorical([1, 2] * 20)}),
            ["a", 1] * 20,
            [["a"], ["a", "b"]] * 20,
            "batch",
        ],
        ids=lambda labels: type(labels).__name__,
    )
    def test_are_an_error(self, verb, labels):
        model = BatchProx(target="moment")
        with pytest.raises(
            ValueError, match=r"^Expected labels as batch=\.\.\., found them as y\.$"
        ):
            getattr(model, verb)(np.zeros((40, 3)), labels)
        assert not hasattr(model, "scale_")

    def test_numbers_may_be_a_target_that_scikit_learn_passes(self, verb):
        numbers = np.arange(40)
        for y in (numbers, numbers.astype(object), (numbers / 40).tolist(), pd.Series(numbers > 9)):
            with pytest.warns(UserWarning, match=r"batch=\.\.\., found only y, which is ignored"):
                getattr(BatchProx(target="moment"), verb)(np.zeros((40, 3)), y)

    def test_a_y_beside_batch_is_ignored(self, verb, rng):
        Z = rng.normal(size=(40, 3))
        model, expected = (
            BatchProx(target="moment"),
            BatchProx(target="moment").fit(Z, batch=LABELS),
        )
        getattr(model, verb)(Z, LABELS[::-1], batch=LABELS)
        np.testing.assert_array_equal(model.shift_, expected.shift_)


@pytest.mark.parametrize("y", [LABELS, np.repeat([0, 1], 20)], ids=["text", "numbers"])
@pytest.mark.parametrize("policy", ["frozen", "refit"])
def test_labels_as_y_add_no_batch_to_labelled_ones(fitted, rng, y, policy):
    with pytest.raises(ValueError, match="Expected labels as batch"):
        fitted.partial_fit(rng.normal(size=(40, 3)), y, policy=policy)
    assert fitted.batches_.tolist() == ["a", "b"]
    assert fitted.moments_.n_cells == 40


def test_a_pipeline_passes_its_y_to_all_steps(rng):
    Z, kinds = rng.normal(size=(40, 3)), np.tile(["T", "B"], 20)
    pipeline = make_pipeline(BatchProx(target="moment"), LogisticRegression())
    pipeline.fit(Z, kinds, batchprox__batch=LABELS)
    assert pipeline[0].batches_.tolist() == ["a", "b"]


class Tensor:
    """Has only ``__array__``, as a tensor of another library may."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


@pytest.mark.parametrize(
    "container",
    [
        np.ndarray.tolist,
        lambda Z: tuple(map(tuple, Z.tolist())),
        list,
        lambda Z: [Tensor(row) for row in Z],
        Tensor,
        memoryview,
        pd.DataFrame,
        sp.csr_matrix,
        sp.coo_array,
    ],
)
def test_whatever_holds_numbers_is_an_array(rng, container):
    Z, batch = rng.normal(size=(40, 3)), np.repeat(["a", "b"], 20)
    expected = BatchProx(target="moment").fit_transform(Z, batch=batch)
    np.testing.assert_allclose(
        BatchProx(target="moment").fit_transform(container(Z), batch=batch), expected
    )


@pytest.mark.parametrize("verb", ["transform", "inverse_transform"])
class TestTransform:
    def test_unseen_batch(self, fitted, verb):
        with pytest.raises(ValueError, match="found unseen 'c'; available: 'a', 'b'"):
            getattr(fitted, verb)(np.zeros((2, 3)), batch=["a", "c"])

    def test_other_number_of_coordinates(self, fitted, verb):
        with pytest.raises(ValueError, match="X has 4 features, but BatchProx is expecting 3"):
            getattr(fitted, verb)(np.zeros((2, 4)), batch=["a", "b"])

    def test_no_labels(self, fitted, verb):
        with pytest.raises(ValueError, match="found none, and the adapter knows 2 batches"):
            getattr(fitted, verb)(np.zeros((2, 3)))

    def test_other_length(self, fitted, verb):
        with pytest.raises(ValueError, match=r"Expected one batch label per cell \(2\), found 1"):
            getattr(fitted, verb)(np.zeros((2, 3)), batch=["a"])

    def test_not_finite(self, fitted, verb):
        with pytest.raises(ValueError, match="found 6 NaN"):
            getattr(fitted, verb)(np.full((2, 3), np.nan), batch=["a", "b"])

    def test_not_fitted(self, verb):
        with pytest.raises(NotFittedError):
            getattr(BatchProx(target="moment"), verb)(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "median"}, "Expected target to be one of 'moment', 'population' or a target"),
        ({"solver": "sgd"}, "Expected solver to be one of 'exact', 'adam' or a solver object"),
        ({"solver": 3}, "Expected solver to be one of"),
        ({"mu": -1}, "Expected mu to be a finite number >= 0, found -1"),
        ({"lambda_target": 0, "mu": 0, "lambda_id": 0}, "found all three zero"),
        ({"mu": "0.1"}, "Expected mu to be a number, found '0.1'"),
        ({"strength": 1.5}, "Expected strength between 0 and 1, found 1.5"),
        ({"strength": -0.1}, "Expected strength"),
        ({"solver": Adam}, "Expected solver to be one of"),
    ],
)
def test_parameters(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BatchProx(**{"target": "moment"} | options).fit(np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -1}, "Expected eps"),
        ({"eps": None}, "Expected eps to be a number, found None"),
        ({"variance_matching": "False"}, "Expected variance_matching to be True or False"),
    ],
)
def test_options_of_the_moment_target(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MomentTarget(**options)


def test_warnings_point_at_the_callers_line():
    Z, barcodes = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) // 2
    with pytest.warns(UserWarning, match="look like barcodes") as caught:
        BatchProx().fit(Z, batch=barcodes)
    with pytest.warns(UserWarning, match="look like barcodes") as wrapped:
        BatchProx().fit_transform(Z, batch=barcodes)  # scikit-learn wraps it
    assert {warning.filename for warning in [*caught, *wrapped]} == {__file__}
