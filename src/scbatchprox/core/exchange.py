"""Sums over all batches, wherever they are: in this process, or at other sites too.

A computation that needs such sums is a generator: it yields the sums of its own batches, and is sent those of
all. With all batches in one process the two are the same. So there is one code for both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ..kernels.arrays import Floats
from ..kernels.threads import one_numpy_thread, parallel_map

__all__ = ["Exchange", "Rounds", "alone", "driven", "itself", "joined", "on_one_blas_thread"]

T = TypeVar("T")

#: Yields (n,) sums over own batches, is sent the sums over all batches, and returns its result.
Rounds = Generator[Floats, Floats, T]
#: Takes (n,) sums over own batches and returns the sums over all batches; it may raise to stop.
Exchange = Callable[[Floats], Floats]


def driven(rounds: Rounds[T], exchange: Exchange) -> T:
    """The result of a computation whose sums are added up by ``exchange``."""
    try:
        own = next(rounds)
        while True:
            own = rounds.send(exchange(own))
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        rounds.close()


def alone(rounds: Rounds[T]) -> T:
    """The result of a computation whose own batches are all batches."""
    return driven(rounds, itself)


def itself(own: Floats) -> Floats:
    """The exchange of a process that holds all batches."""
    return own


def joined(several: Sequence[Rounds[T]], on_threads: bool) -> Rounds[list[T]]:
    """Several computations with equally many rounds; their sums are added up at once."""
    each = parallel_map if on_threads else _map
    steps = each(_step, [(one, None) for one in several])
    while not all(step.done for step in steps):
        ends = np.cumsum([step.own.size for step in steps])
        totals = np.split((yield np.concatenate([step.own for step in steps])), ends[:-1])
        steps = each(_step, list(zip(several, totals, strict=True)))
    return [step.result for step in steps]


def on_one_blas_thread(rounds: Rounds[T]) -> Rounds[T]:
    """The same computation, with one thread for numpy's matrix products while it runs.

    Not while it waits: several may be under way at once, and end in any order.
    """
    totals: Floats | None = None
    while True:
        with one_numpy_thread():
            step: _Step[T] = _step((rounds, totals))
        if step.done:
            result: T = step.result
            return result
        totals = yield step.own


def _map(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return [work(item) for item in items]


@dataclass(frozen=True, eq=False)
class _Step(Generic[T]):
    """What a computation yields, or its result if it is done."""

    own: Any = None
    result: Any = None
    done: bool = False


def _step(given: tuple[Rounds[T], Floats | None]) -> _Step[T]:
    rounds, totals = given
    try:
        return _Step(next(rounds) if totals is None else rounds.send(totals))
    except StopIteration as end:
        return _Step(result=end.value, done=True)
