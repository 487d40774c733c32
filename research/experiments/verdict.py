"""Sentences that follow from numbers: how often a method is better, and whether that supports a claim."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

__all__ = ["MARGIN", "Comparison", "compare", "pairs", "variants"]

#: Smaller differences are not clear: scores are printed with three digits, and depend on the split.
MARGIN = 0.005


@dataclass(frozen=True)
class Comparison:
    """How often one method's score is clearly higher or lower than another's.

    Attributes
    ----------
    method, baseline, metric
        The methods that are compared, and the score.
    better, worse, even
        Number of comparisons in which the method is clearly higher, clearly lower, or neither.
    """

    method: str
    baseline: str
    metric: str
    better: int
    worse: int
    even: int

    @property
    def n(self) -> int:
        """Number of comparisons."""
        return self.better + self.worse + self.even

    def sentence(self, of: str = "pairs of data set and upstream") -> str:
        """Return the counts as a sentence."""
        if not self.n:
            return f"{self.metric}: {self.method} and {self.baseline} share no {of}."
        return (
            f"{self.metric}: {self.method} is above {self.baseline} on {self.better} of {self.n} "
            f"{of}, below on {self.worse}, not clearly different on {self.even}."
        )

    def on(self, claim: str) -> str:
        """Return a sentence on the paper's claim that the method is better everywhere."""
        if not self.n:
            return f"There is no data on the paper's claim that {claim}."
        if self.better == self.n:
            word = "supports"
        elif self.better > self.worse and 2 * self.better >= self.n:
            word = "partly supports"
        else:
            word = "does not support"
        return f"This {word} the paper's claim that {claim}."


def variants(rows: pd.DataFrame) -> list[str]:
    """Return the variants of scBatchProx in the rows, in their order."""
    return [name for name in dict.fromkeys(rows["method"]) if name.startswith("batchprox")]


def pairs(rows: pd.DataFrame, metric: str, method: str, baseline: str) -> pd.DataFrame:
    """Return a table of both methods' values, in rows where everything else is the same."""
    chosen = rows[(rows["metric"] == metric) & rows["method"].isin([method, baseline])]
    others = ["dataset", "upstream", "condition", "step", "run"]
    wide = chosen.pivot_table(index=others, columns="method", values="value", observed=True)
    wide = wide.reindex(columns=[method, baseline]).dropna()
    return pd.DataFrame(wide).reset_index()


def compare(
    rows: pd.DataFrame,
    metric: str,
    method: str,
    baseline: str,
    by: tuple[str, ...] = ("dataset", "upstream"),
    names: dict[str, str] | None = None,
) -> Comparison:
    """Compare two methods within each group of rows.

    A difference is clear if its mean is further from 0 than both :data:`MARGIN` and twice its
    standard error over the pairs of a group.
    """
    better = worse = even = 0
    both = pairs(rows, metric, method, baseline)
    for _, group in both.groupby(list(by), observed=True):
        difference = (group[method] - group[baseline]).to_numpy()
        error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
        clear = abs(difference.mean()) > max(MARGIN, 2 * error)
        better += clear and difference.mean() > 0
        worse += clear and difference.mean() < 0
        even += not clear
    say = names or {}
    return Comparison(
        say.get(method, method),
        say.get(baseline, baseline),
        say.get(metric, metric),
        int(better),
        int(worse),
        int(even),
    )
