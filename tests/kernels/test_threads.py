"""One BLAS thread inside the context, and the previous number after all threads have left it."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from scbatchprox.kernels.threads import one_blas_thread


def blas_threads():
    np.ones((4, 4)) @ np.ones((4, 4))  # loads the library
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def two():
    with threadpool_limits(limits=2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("this linear algebra has one thread only")
        yield


def test_one_inside_and_the_same_as_before_outside(two):
    with one_blas_thread():
        assert blas_threads() == {1}
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}  # still inside the outer context
    assert blas_threads() == {2}


def test_an_error_inside_restores_the_number(two):
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        1 / 0  # noqa: B018
    assert blas_threads() == {2}


def test_threads_may_leave_in_any_order(two):
    """If each restored the number that it found, one thread would remain in the end."""
    came, leave = threading.Event(), threading.Event()

    def later():
        with one_blas_thread():
            came.set()
            leave.wait(30)

    thread = threading.Thread(target=later)
    with one_blas_thread():
        thread.start()
        assert came.wait(30)
        assert blas_threads() == {1}
    leave.set()
    thread.join()
    assert blas_threads() == {2}
