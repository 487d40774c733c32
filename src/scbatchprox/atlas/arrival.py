"""New batches of an atlas: checks before they are added, and the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..core.checks import some_of
from ..core.labels import union
from ..core.shown import count
from ..core.tables import Tabled
from ..diagnosis.table import verdict_lines
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats

__all__ = ["Arrival", "check_arrival"]


@dataclass(frozen=True, eq=False, repr=False)
class Arrival(Tabled):
    """The judgement on new batches, and the number of the version they were added as, if any.

    ``scores`` are those of :func:`scbatchprox.atlas.cell_scores`, if they were computed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from scbatchprox import Atlas
    >>> atlas = Atlas.create(tempfile.mkdtemp())
    >>> Z = np.random.default_rng(0).normal(size=(100, 5))
    >>> arrival = atlas.add(Z, batch=["a"] * 100)
    >>> arrival.version, arrival.judgement["level"].tolist()
    (2, ['first'])
    """

    judgement: pd.DataFrame
    version: int | None
    scores: Floats | None = None

    def _facts(self) -> str:
        batches = count(len(self.judgement), "batch", "batches")
        size = f"{batches}, {count(int(self.judgement['n_cells'].sum()), 'cell')}"
        return f"{size}, " + (
            "judged but not added" if self.version is None else f"added as version {self.version}"
        )

    def _table(self) -> pd.DataFrame:
        words = ["nearest", "verdict", "advice_level", "reasons", "advice"]
        return self.judgement.drop(columns=words)

    def _below(self, width: int) -> list[str]:
        table = self.judgement
        table = table.assign(level=table["advice_level"], verdict=table["advice"])
        return verdict_lines(table, width)


def check_arrival(
    before: BatchProx | None,
    batches: np.ndarray,
    n_dims: int,
    merge: bool,
    name: str | None = None,
) -> None:
    """Raise an error if new cells cannot be added, before they are read."""
    if before is None:
        return
    if n_dims != before.n_features_in_:
        where = "" if name is None else f" in {name}"
        raise BadValue(
            f"Expected an embedding of {before.n_features_in_} coordinates, as the atlas has, found "
            f"{n_dims}{where}."
        )
    union(before.batches_, batches)  # labels of another type are an error
    known = set(before.batches_.tolist())
    if not merge and (repeated := [b for b in batches.tolist() if b in known]):
        raise BadValue(
            f"Expected new batches, found {some_of(repeated)} in the atlas already; ",
            Parameter("merge=True", "--merge"), " adds more cells of a known batch.",
        )  # fmt: skip
