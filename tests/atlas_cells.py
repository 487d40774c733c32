"""Cells of five batches for tests of atlases, and what counts in the folder of an atlas."""

import numpy as np

from scbatchprox import BatchProx

NAMES = np.array(["a", "b", "c", "d", "e"])
SIZES = [60, 40, 25, 90, 15]


def of(c, *names):
    """Cells and labels of some batches."""
    some = np.isin(NAMES[c.codes], names)
    return c.Z[some], NAMES[c.codes[some]]


def fitted(c, *names, **options):
    Z, batch = of(c, *names)
    return BatchProx(**{"target": "moment"} | options).fit(Z, batch=batch)


def content(path):
    """The files of a folder, except the lock."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def assert_same_model(a, b):
    assert a.batches_.tolist() == b.batches_.tolist()
    np.testing.assert_array_equal(a.scale_, b.scale_)
    np.testing.assert_array_equal(a.shift_, b.shift_)
    for part in ("reference", "added", "moments"):
        one, two = getattr(a.fit_, part), getattr(b.fit_, part)
        assert one.batches.tolist() == two.batches.tolist()
        for name in ("n", "mean", "m2"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
