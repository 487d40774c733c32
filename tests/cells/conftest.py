import numpy as np
import pytest

from data import make_cells
from lazy_cells import D

NAMES = np.array(["s1", "s2", "s3"])


@pytest.fixture
def cells(rng):
    return make_cells(rng, [300, 200, 111], D, offset=10.0)


@pytest.fixture
def batch(cells):
    return NAMES[cells.codes]


@pytest.fixture(scope="module")
def client():
    """A Dask cluster of two processes."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.admin.log-length": 0}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
