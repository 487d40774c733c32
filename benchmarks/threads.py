"""Results are equal to the bit for any number of threads; measures the gain of a second thread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scbatchprox import BatchProx, set_num_threads

from .measure import Row, cells, fastest


def run() -> Iterator[Row]:
    Z, batch = cells(1_000_000, 50, 20)
    model = BatchProx(target="moment")
    results, times = [], []
    try:
        for n in (1, 2, 3, 8):
            set_num_threads(n)
            times += fastest(lambda: model.fit_transform(Z, batch=batch), repeat=7)
            results.append(model.fit_transform(Z, batch=batch))
    finally:
        set_num_threads(None)
    different = sum(not np.array_equal(results[0], other) for other in results[1:])
    yield Row("thread counts of 1, 2, 3, 8 whose result differs in any bit", different, "", most=0)
    yield Row("1 thread / 2 threads", times[0] / times[1])
