import signal
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# Derandomised, so that a test that fails here fails everywhere.
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


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts this process and those it starts, even if the tests were told to ignore it.

    A background job of a script is started with SIGINT ignored, and its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


#: Packages that tests with a marker need; `make test-heavy` installs all of them.
NEEDED = {
    "bench": ("harmonypy", "rdkit", "scanpy", "scib_metrics"),
    "interop": ("harmonypy", "igraph", "mudata", "scanpy"),
    "scvi": ("scvi",),
    "torch": ("torch",),
    "flower": ("flwr",),
    "browser": ("playwright",),
}
#: Tests that run only if their marker is asked for, and why.
ASKED = {"memory": "takes minutes: make test-heavy", "browser": "needs Chromium: make test-browser"}

#: Examples in docstrings that need the packages of a marker.
EXAMPLES = {
    "scbatchprox.evaluate.comparison.scores": "bench",
    "scbatchprox.evaluate.scib_scores.scib": "bench",
    "scbatchprox.upstream.scvi.ScviUpstream": "scvi",
}

#: Files with tests that start, kill, signal and lock whole processes, or run whole pages of the docs. They
#: take half of the time, and one version of Python is enough for them: `make test-slow`.
SLOW = {
    "atlas/test_atlas_crash.py", "cli/test_cli_cluster.py", "cli/test_cli_streams.py",
    "demo/test_demo.py", "federated/test_demo.py", "federated/test_ledger.py",
    "io/formats/test_failing_disk.py", "io/formats/test_files_killed.py",
    "io/formats/test_h5ad_readers.py", "io/formats/test_zarr_killed.py", "kernels/test_compiled.py",
    "test_documents.py", "test_interrupts.py", "test_page_commands.py", "test_page_pipelines.py",
}  # fmt: skip
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.is_relative_to(TESTS) and str(item.path.relative_to(TESTS)) in SLOW:
            item.add_marker("slow")
        if item.name in EXAMPLES:
            item.add_marker(EXAMPLES[item.name])
            item.add_marker(pytest.mark.filterwarnings("default"))  # warnings of other packages
    for name, reason in ASKED.items():
        for item in items:
            if name not in config.option.markexpr and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
    for name, packages in NEEDED.items():
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            skip = pytest.mark.skip(reason=f"needs {', '.join(missing)}: make test-heavy")
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(skip)
