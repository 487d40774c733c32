import pytest

from population_models import five_batches
from scbatchprox import set_num_threads


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


@pytest.fixture
def grow():
    return five_batches()
