"""A fit with exchanged sums: it may be stopped and started again, and limits no threads while it waits."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from data import make_cells
from scbatchprox import BatchProx
from scbatchprox.core.target import one_thread_between


class Stopped(Exception):
    """No more sums are known."""


def test_a_stopped_fit_goes_the_same_way_again(rng):
    c = make_cells(rng, [200, 150, 120], 4)
    own = BatchProx().fit(c.Z, batch=c.codes).fit_.moments
    pooled = own.by_batch.pooled()
    sums = []

    def fit(exchange):
        return BatchProx(target="population").fit_pooled(own, pooled, exchange)

    def remembered(some):
        sums.append(some.copy())
        return some

    def known(number):
        """An exchange that knows so many sums."""
        asked = iter(range(len(sums)))

        def replayed(some):
            at = next(asked)
            np.testing.assert_array_equal(some, sums[at])
            if at == number:
                raise Stopped
            return sums[at]

        return replayed

    whole = fit(remembered)
    for number in (0, 7, len(sums) - 1):
        with pytest.raises(Stopped):
            fit(known(number))
    np.testing.assert_array_equal(fit(known(len(sums))).shift_, whole.shift_)


def blas_threads():
    np.ones((4, 4)) @ np.ones((4, 4))  # loads the library
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_between_exchanges_only():
    with threadpool_limits(limits=2, user_api="blas"):
        if blas_threads() != {2}:
            pytest.skip("this linear algebra has one thread only")

        def waiting(own):
            assert blas_threads() == {2}
            if not own.size:
                raise Stopped
            return own

        with one_thread_between(waiting) as between:
            assert blas_threads() == {1}
            between(np.ones(3))
            assert blas_threads() == {1}
        assert blas_threads() == {2}
        with pytest.raises(Stopped), one_thread_between(waiting) as between:
            between(np.zeros(0))
        assert blas_threads() == {2}
