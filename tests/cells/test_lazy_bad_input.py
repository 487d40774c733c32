"""Dask arrays with bad input: one clear sentence, before anything is read if possible."""

import numpy as np
import pandas as pd
import pytest

from lazy_cells import D, counted, reads
from scbatchprox import Adam, BatchProx, InputError

da = pytest.importorskip("dask.array")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(cells, batch, bad):
    cells.Z[412, 3] = cells.Z[455, 1] = bad
    Z = da.from_array(cells.Z, chunks=(100, D))
    found = "2 NaN and 0" if np.isnan(bad) else "0 NaN and 2"
    message = f"found {found} infinite .* in rows 400 to 499, the first at row 412, column 3"
    with pytest.raises(InputError, match=message):
        BatchProx(target="moment").fit(Z, batch=batch)
    model = BatchProx(target="moment").fit(Z[:400], batch=batch[:400])
    later = model.transform(Z, batch=batch)
    with pytest.raises(InputError, match=message):
        later.compute()


def test_not_finite_on_a_cluster(cells, batch, client):
    cells.Z[412, 3] = np.nan
    Z = da.from_array(cells.Z, chunks=(100, D))
    with client.as_current(), pytest.raises(InputError, match="the first at row 412, column 3"):
        BatchProx(target="moment").fit(Z, batch=batch)


def test_finite_but_too_large(cells, batch):
    cells.Z[3] = 1e200
    with pytest.raises(InputError, match="their refined values overflow"):
        BatchProx(target="moment").fit(da.from_array(cells.Z, chunks=(100, D)), batch=batch)


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
    fitted = BatchProx(target="moment").fit(cells.Z, batch=batch)
    Z = change(counted(cells.Z, (100, 3), tmp_path))
    for verb in (
        BatchProx(target="moment").fit,
        BatchProx(target="moment").fit_transform,
        fitted.transform,
    ):
        with pytest.raises(InputError, match=message):
            verb(Z, batch=batch)
    assert reads(tmp_path) == 0


def test_other_bad_input(cells, batch, tmp_path):
    Z = counted(cells.Z, (100, D), tmp_path)
    fitted = BatchProx(target="moment").fit(cells.Z, batch=batch)
    for solver in ("adam", Adam(seed=3)):
        with pytest.raises(InputError, match=r"solver='exact' works lazily\), found Adam\("):
            BatchProx(solver=solver, target="moment").fit(Z, batch=batch)
    with pytest.raises(InputError, match="Expected no `out` for a Dask array"):
        BatchProx(target="moment").fit_transform(Z, batch=batch, out=np.empty_like(cells.Z))
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
        BatchProx(rounds=-1, target="moment").fit(Z, batch=batch)
    missing = pd.Series(batch).where(np.arange(611) != 9)
    with pytest.raises(InputError, match="1 missing of 611, the first at row 9"):
        BatchProx(target="moment").fit(Z, batch=missing)
    assert reads(tmp_path) == 0


def test_a_failed_fit_leaves_the_earlier_one(cells, batch):
    model = BatchProx(target="moment").fit(da.from_array(cells.Z, chunks=(100, D)), batch=batch)
    before = model.scale_.copy()
    cells.Z[0, 0] = np.nan
    with pytest.raises(InputError):
        model.fit(da.from_array(cells.Z, chunks=(100, D)), batch=batch)
    np.testing.assert_array_equal(model.scale_, before)
