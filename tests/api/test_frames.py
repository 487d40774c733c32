"""Data frames in and out: coordinates and cells keep their names, and the numbers are those of arrays."""

import numpy as np
import pandas as pd
import pytest

from data import make_cells
from scbatchprox import BatchProx


@pytest.fixture
def cells(rng):
    return make_cells(rng, [50, 30], 3)


@pytest.fixture
def frame(cells):
    names = [f"cell{i}" for i in range(80)]
    return pd.DataFrame(cells.Z, columns=["PC1", "PC2", "PC3"], index=names)


@pytest.mark.parametrize("target", ["moment", "population"])
def test_frames_keep_names_of_cells_and_coordinates(cells, frame, target):
    model = BatchProx(target=target).set_output(transform="pandas")
    refined = model.fit_transform(frame, batch=cells.codes)
    expected = BatchProx(target=target).fit_transform(cells.Z, batch=cells.codes)
    pd.testing.assert_frame_equal(refined, pd.DataFrame(expected, frame.index, frame.columns))
    # A second frame has its own cells.
    some = model.transform(frame.iloc[40:60], batch=cells.codes[40:60])
    pd.testing.assert_frame_equal(some, refined.iloc[40:60])


def test_labels_of_a_frame_are_in_the_order_of_its_rows(cells, frame):
    """As everywhere in scikit-learn; the index of a series is not matched with that of a frame."""
    batch = pd.Series(cells.codes, frame.index[::-1])
    found = BatchProx(target="moment").fit_transform(frame, batch=batch)
    expected = BatchProx(target="moment").fit_transform(frame, batch=cells.codes)
    np.testing.assert_array_equal(found, expected)
    assert isinstance(found, np.ndarray)  # unless set_output asks for a frame


def test_arrays_can_become_frames(cells):
    model = BatchProx(target="moment").set_output(transform="pandas")
    refined = model.fit_transform(cells.Z, batch=cells.codes)
    assert list(refined.columns) == ["x0", "x1", "x2"]


def test_other_coordinates_are_an_error(cells, frame):
    model = BatchProx(target="moment").fit(frame, batch=cells.codes)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[["PC2", "PC1", "PC3"]], batch=cells.codes)


@pytest.mark.interop
def test_polars(cells, frame):
    pl = pytest.importorskip("polars")
    model = BatchProx(target="moment").set_output(transform="polars")
    labels = pl.Series(np.array(["p", "q"])[cells.codes])
    refined = model.fit_transform(pl.DataFrame(cells.Z, schema=list(frame)), batch=labels)
    assert isinstance(refined, pl.DataFrame)
    assert refined.columns == list(model.feature_names_in_) == list(frame)
    assert model.batches_.tolist() == ["p", "q"]
    expected = BatchProx(target="moment").fit_transform(frame, batch=cells.codes)
    np.testing.assert_array_equal(refined.to_numpy(), expected)
