import hypothesis
import numpy as np
import pytest

# Derandomised: a red run here is red everywhere, and reproducible from the printed example.
hypothesis.settings.register_profile(
    "scbatchprox",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("scbatchprox")


@pytest.fixture
def rng():
    return np.random.default_rng(7)
