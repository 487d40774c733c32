"""fit_transform against a copy of the matrix. At best 1.5: read, read, write against read, write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scbatchprox import BatchProx

from .measure import Row, cells, fastest


def run() -> Iterator[Row]:
    model = BatchProx(target="moment")
    for order in ("shuffled", "sorted by batch"):
        Z, batch = cells(1_000_000, 50, 20, shuffled=order == "shuffled")
        out = np.empty_like(Z)

        copied, fresh, given, copy = fastest(
            lambda Z=Z, out=out: np.copyto(out, Z),
            lambda Z=Z, batch=batch: model.fit_transform(Z, batch=batch),
            lambda Z=Z, batch=batch, out=out: model.fit_transform(Z, batch=batch, out=out),
            lambda Z=Z: Z.copy(),
        )
        size = f"1,000,000 x 50 float32, 20 batches, {order}"
        note = f"{given * 1e3:.1f} ms / {copied * 1e3:.1f} ms"
        yield Row(f"fit_transform(out=) / np.copyto, {size}", given / copied, most=2.5, note=note)
        # A new array costs page faults; copyto into an existing array does not.
        note = f"{fresh * 1e3:.1f} ms / {copy * 1e3:.1f} ms"
        yield Row(
            "    fit_transform() / Z.copy(): both allocate", fresh / copy, most=2.5, note=note
        )
        yield Row("    fit_transform() / np.copyto: one allocates", fresh / copied)
    times = []
    for n in (250_000, 1_000_000, 4_000_000):
        Z, batch = cells(n, 50, 20)
        times += fastest(lambda Z=Z, batch=batch: model.fit_transform(Z, batch=batch), repeat=7)
    yield Row("time per cell at 4,000,000 / at 250,000 cells", times[2] / times[0] / 16, most=1.5)
