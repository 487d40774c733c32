import datetime

import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx
from scbatchprox.core.labels import Labels

NAMES = ["b", "a", "b", "c", "a"]


@pytest.mark.parametrize(
    "labels",
    [
        NAMES,
        tuple(NAMES),
        np.array(NAMES),
        np.array(NAMES, object),
        pd.Series(NAMES, index=list("vwxyz")),
        pd.Series(NAMES, dtype="string"),
        pd.Index(NAMES),
        pd.Categorical(NAMES),
        pd.Categorical(NAMES, categories=["c", "unused", "b", "a"]),
        pd.Series(NAMES, dtype="category"),
    ],
    ids=lambda labels: f"{type(labels).__name__}-{getattr(labels, 'dtype', '')}",
)
def test_containers_do_not_matter(labels):
    found = Labels.of(labels, 5)
    assert found.batches.tolist() == ["a", "b", "c"]
    assert found.codes.tolist() == [1, 0, 1, 2, 0]
    assert found.n.tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("labels", "batches"),
    [
        ([10, 9, 10], [9, 10]),
        (np.array([2, 1, 2], np.int8), [1, 2]),
        ([True, False, True], [False, True]),
        (pd.array([2, 1, 2], dtype="Int64"), [1, 2]),
        (pd.array([True, False, True], dtype="boolean"), [False, True]),
        ([0.5, -1.0, 0.5], [-1.0, 0.5]),
        ([datetime.date(2024, 2, 1), datetime.date(2024, 1, 1), datetime.date(2024, 2, 1)],
         ["2024-01-01", "2024-02-01"]),
    ],
)  # fmt: skip
def test_types(labels, batches):
    found = Labels.of(labels, 3)
    assert found.batches.tolist() == batches
    assert found.codes.tolist() == [1, 0, 1]
    assert [type(x) for x in found.batches.tolist()] == [type(x) for x in batches]


@pytest.mark.parametrize(
    "labels",
    [
        ["a", None, "b", np.nan],
        [1.0, np.nan, 2.0, np.nan],
        pd.array([1, None, 2, None], dtype="Int64"),
        pd.array([True, None, False, None], dtype="boolean"),
        pd.array(["a", None, "b", None], dtype="string"),
        pd.Categorical(["a", None, "b", None]),
    ],
    ids=str,
)
def test_missing_labels_are_counted(labels):
    with pytest.raises(ValueError, match="found 2 missing of 4, the first at row 1"):
        Labels.of(labels, 4)


def test_strings_and_numbers_are_not_mixed():
    with pytest.raises(TypeError, match="found int, str: 1, '1'"):
        Labels.of(np.array([1, "1"], object), 2)


@pytest.mark.parametrize("labels", ["batch", 3])
def test_one_value_is_not_a_label_per_cell(labels):
    with pytest.raises(
        TypeError, match="Expected one batch label per cell, found the single value"
    ):
        Labels.of(labels, 5)


def test_two_dimensional_labels():
    with pytest.raises(ValueError, match=r"Expected a one-dimensional .* found shape \(5, 2\)"):
        Labels.of(np.zeros((5, 2)), 5)


@pytest.mark.parametrize("labels", [[True, 2], [1, None, "a"], [datetime.date(2024, 1, 1), 5]])
def test_other_mixtures(labels):
    with pytest.raises((TypeError, ValueError), match="of one type|missing"):
        Labels.of(np.array(labels, object), len(labels))


def test_integers_and_floats_are_one_type():
    found = Labels.of(np.array([1, 2.5, 1], object), 3)
    assert found.batches.tolist() == [1.0, 2.5]
    assert Labels.of([1, 1], 2).within(found.batches).codes.tolist() == [0, 0]


def test_bytes_are_text():
    assert Labels.of(np.array([b"a", b"b"]), 2).batches.tolist() == ["a", "b"]


def test_nan_among_nullable_floats_is_missing():
    zero = pd.array([0.0, 1.0, 0.0], dtype="Float64")
    with pytest.raises(ValueError, match="found 2 missing of 3"):
        Labels.of(zero / zero, 3)


def test_flags_are_not_numbers():
    seen = Labels.of([0, 1], 2).batches
    with pytest.raises(ValueError, match="found unseen False, True; available: 0, 1"):
        Labels.of([True, False], 2).within(seen)


def test_unseen_batches_are_named():
    seen = Labels.of(["a", "b"], 2).batches
    with pytest.raises(ValueError, match="found unseen 'c', 'd'; available: 'a', 'b'"):
        Labels.of(["d", "a", "c"], 3).within(seen)


def test_a_thousand_batches_stay_one_sentence():
    seen = Labels.of(range(1000), 1000).batches
    with pytest.raises(ValueError, match=r"7, \.\.\. \(1000 in all\)") as error:
        Labels.of([5000], 1).within(seen)
    assert len(str(error.value)) < 200


def test_barcodes_warn(rng):
    Z = rng.normal(size=(60, 2))
    with pytest.warns(UserWarning, match="60 batches with a median of 1 cells.*barcodes"):
        BatchProx(target="moment").fit(Z, batch=[f"ACGT-{i}" for i in range(60)])


def test_barcodes_begin_below_ten_cells(rng):
    with pytest.warns(UserWarning, match="median of 9 cells"):
        BatchProx(target="moment").fit(rng.normal(size=(27, 2)), batch=np.repeat([1, 2, 3], 9))
    BatchProx(target="moment").fit(rng.normal(size=(30, 2)), batch=np.repeat([1, 2, 3], 10))


def test_real_batches_do_not_warn(rng):
    BatchProx(target="moment").fit(rng.normal(size=(60, 2)), batch=["a"] * 25 + ["b"] * 35)
    BatchProx(target="moment").fit(rng.normal(size=(5, 2)))
