"""Sums over all batches, wherever they are: in this process, or at other sites too.

A computation that needs such sums is given an exchange: a function that takes the sums of its own batches,
and returns those of all. With all batches in one process the two are the same. So there is one code for both
cases. An exchange may raise to stop the computation. Started again and given the same sums, it goes the same
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ..kernels.arrays import Floats
from ..kernels.threads import one_numpy_thread

__all__ = ["Exchange", "itself", "one_thread_between"]

#: Takes (n,) sums over own batches and returns the sums over all batches; it may raise to stop.
Exchange = Callable[[Floats], Floats]


def itself(own: Floats) -> Floats:
    """The exchange of a process that holds all batches."""
    return own


@contextmanager
def one_thread_between(exchange: Exchange) -> Iterator[Exchange]:
    """One thread for numpy's matrix products inside; the exchange to use there.

    Not during an exchange: it may wait for other sites, and other fits of this process may end meanwhile.
    """
    with ExitStack() as inside:
        inside.enter_context(one_numpy_thread())

        def outside(own: Floats) -> Floats:
            inside.close()
            try:
                return exchange(own)
            finally:
                inside.enter_context(one_numpy_thread())

        yield outside
