"""When loops are compiled, and what is logged: in separate processes, since numba keeps compiled code."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from scbatchprox.kernels import loops

SAID = "scbatchprox: compiling its loops, once after an installation (a few seconds)"

FIT = """
import numpy as np
from scbatchprox import BatchProx
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    Z = rng.normal(size=(500, 3)).astype(dtype)
    BatchProx(target='moment').fit_transform(Z, batch=rng.integers(0, 3, 500))
"""


def fresh(script, cache):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def cold_and_warm(tmp_path_factory):
    """The same work twice, without and with cached code."""
    cache = tmp_path_factory.mktemp("numba")
    return fresh(FIT, cache), fresh(FIT, cache)


def test_compiling_logs_one_line(cold_and_warm):
    cold, _ = cold_and_warm
    assert cold.stderr.splitlines().count(SAID) == 1


def test_cached_code_logs_nothing(cold_and_warm):
    _, warm = cold_and_warm
    assert SAID not in warm.stderr


def test_code_of_other_packages_logs_nothing(tmp_path):
    script = (
        "import numpy as np, numba\n"
        "from scbatchprox.kernels.loops import affine\n"
        "affine._compile()\n"  # registers the listener
        "numba.njit(lambda x: x + 1)(1)\n"
    )
    assert SAID not in fresh(script, tmp_path).stderr


def test_numba_is_imported_by_the_first_call():
    script = (
        "import sys, numpy as np\n"
        "from scbatchprox import Adam, Atlas, BatchProx, diagnose, refine, refine_file\n"
        "assert 'numba' not in sys.modules\n"
        "BatchProx(target='moment').fit(np.eye(4))\n"
        "assert 'numba' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_threads_may_make_the_first_call_at_once(tmp_path):
    script = """
import threading, numpy as np
from scbatchprox.kernels import loops
rng = np.random.default_rng(0)
Z, codes = rng.normal(size=(500, 3)), rng.integers(0, 4, 500).astype(np.int32)
ready, results = threading.Barrier(6), []
def work():
    n, sums = np.zeros(4, np.int64), np.zeros((4, 2, 3))
    ready.wait()
    loops.add_sums(Z, codes, np.zeros((4, 3)), n, sums, 64)
    results.append(sums)
threads = [threading.Thread(target=work) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(results) == 6 and all((found == results[0]).all() for found in results)
expected = [[Z[codes == b].sum(0), (Z[codes == b] ** 2).sum(0)] for b in range(4)]
np.testing.assert_allclose(results[0], expected)
assert len(loops._add_sums._compile().signatures) == 1
"""
    assert fresh(script, tmp_path).stderr.count(SAID) == 1


@pytest.mark.parametrize("name", ["_add_sums", "affine", "first_rows"])
def test_loops_are_pickled_by_name(name):
    cloudpickle = pytest.importorskip("cloudpickle")
    loop = getattr(loops, name)
    for tool in (pickle, cloudpickle):
        assert tool.loads(tool.dumps(loop)) is loop


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_version_for_writeable_and_read_only_arrays(rng, dtype):
    Z, codes = rng.normal(size=(50, 3)).astype(dtype), np.zeros(50, np.int32)
    scale, shift = np.full((1, 3), 2.0), np.ones((1, 3))
    found, kept = [], []
    for locked in (False, True):
        for array in (Z, codes, scale, shift):
            array.flags.writeable = not locked
        sums, out = np.zeros((1, 2, 3)), np.empty_like(Z)
        loops.add_sums(Z, codes, shift, np.zeros(1, np.int64), sums, 16)
        assert loops.affine(Z, codes, scale, shift, out)
        found.append(np.concatenate([sums.ravel(), out.ravel()]))
        kept.append([len(loop._compile().signatures) for loop in (loops._add_sums, loops.affine)])
    np.testing.assert_array_equal(*found)
    assert kept[0] == kept[1]
