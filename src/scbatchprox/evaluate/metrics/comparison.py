"""Several embeddings of the same cells, compared with the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ...core.narrow import Tabled
from ...core.shown import count, names
from ...errors import BadValue
from ...progress import Progress, silent
from .overview import scores
from .scib_scores import BY_LIBRARY
from .stability_table import stability

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabled):
    """Scores of embeddings, and how far cells moved from the first to each of the others.

    Attributes
    ----------
    scores
        A row per score, a column per embedding.
    stability
        The rows of :func:`.stability` for every embedding but the first, which ``rep`` names.

    Examples
    --------
    >>> import pandas as pd
    >>> from scbatchprox.evaluate import Comparison
    >>> index = pd.Index(["macro_f1"], name="score")
    >>> scores = pd.DataFrame({"before": [0.8], "after": [0.9]}, index=index)
    >>> found = Comparison(scores, pd.DataFrame())  # as `compare` returns
    >>> found.change.round(2).to_dict("index")
    {'macro_f1': {'after': 0.1}}
    """

    scores: pd.DataFrame
    stability: pd.DataFrame

    def _facts(self) -> str:
        return (
            f"{count(self.scores.shape[1], 'embedding')} ({names(list(self.scores))}), "
            f"{count(len(self.scores), 'score')}; change and stability have more"
        )

    def _table(self) -> pd.DataFrame:
        return self.scores

    @property
    def change(self) -> pd.DataFrame:
        """Differences from the first embedding; the spreads between splits are left out."""
        spread = [name for name in self.scores.index if name.endswith("_sd")]
        scores = self.scores.drop(index=spread)
        first, *others = scores
        return scores[others].sub(scores[first], axis=0)

    @property
    def missing(self) -> list[str]:
        """Scores that need scib-metrics, which is not installed."""
        return [name for name in BY_LIBRARY if name not in self.scores.index]

    def long(self) -> pd.DataFrame:
        """Return one table with a number per row: scores of all cells first, then of groups of cells."""
        value, change = (
            table.reset_index().melt("score", var_name="rep", value_name=name)
            for name, table in (("value", self.scores), ("change", self.change))
        )
        table = value.merge(change, how="left").assign(kind="all cells", name="")
        if len(self.stability):
            by_group = self.stability.melt(["rep", "kind", "name"], var_name="score")
            table = pd.concat([table, by_group], ignore_index=True)
        return table[["rep", "kind", "name", "score", "value", "change"]]


def compare(
    embeddings: Mapping[str, Any],
    batch: Any,
    cell_type: Any,
    *,
    runs: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> Comparison:
    """Score embeddings of the same cells; the first one is the unrefined embedding.

    Scores whose package is not installed are left out; :attr:`Comparison.missing` names them.

    Parameters
    ----------
    embeddings
        (N, d) arrays by name.
    batch, cell_type, runs, seed
        As for :func:`.scores`.
    progress
        Called after each embedding.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import compare
    >>> found = compare({"before": Z, "after": Z - Z.mean(0)}, batch, cell_type, runs=1)
    >>> found.scores.columns.tolist()
    ['before', 'after']
    """
    if not embeddings:
        raise BadValue("Expected at least one embedding to score, found none.")
    before = next(iter(embeddings.values()))
    columns, moved = {}, []
    for done, (name, Z) in enumerate(embeddings.items()):
        columns[name] = scores(
            Z, batch, cell_type, before=before, runs=runs, seed=seed, partial=True
        )
        if done:
            moved.append(stability(before, Z, batch, cell_type).assign(rep=name))
        progress("score", (done + 1) * len(Z), len(embeddings) * len(Z))
    columns_of = ["kind", "name", "n", "moved", "relative", "neighbours_kept", "rep"]
    return Comparison(
        pd.DataFrame(columns).rename_axis(index="score"),
        pd.concat(moved, ignore_index=True) if moved else pd.DataFrame(columns=columns_of),
    )
