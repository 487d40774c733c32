"""Scores of several embeddings as a table of circles, as scIB draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd

from ..errors import BadType, BadValue
from .canvas import Shown, label, panels, picture, titles_above, unset

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["scores"]

#: Scores in the order of the columns, with their groups and headings; others come last.
GROUPS = {
    "cell types": {
        "macro_f1": "macro-F1",
        "f1_given_batch": "F1 given\nbatch",
        "lobo_f1": "leave-one-\nbatch-out F1",
        "silhouette": "silhouette",
        "nmi": "NMI",
        "ari": "ARI",
        "asw_cell": "ASW\ncell",
        "isolated_f1": "isolated\nF1",
        "clisi": "cLISI",
    },
    "mixing of batches": {
        "ilisi_30": "iLISI\n(30)",
        "mixing_within_types": "mixing\nwithin types",
        "asw_batch": "ASW\nbatch",
        "asw_batch_scib": "ASW batch\n(scIB)",
        "ilisi": "iLISI",
        "kbet": "kBET",
        "graph_connectivity": "graph con-\nnectivity",
        "pcr": "PCR",
        "pcr_comparison": "PCR com-\nparison",
    },
    "what is kept": {
        "over_correction": "over-\ncorrection ↓",
        "variance_kept": "variance\nkept",
        "neighbours_kept_in_batch": "neighbours\nkept",
    },
    "means": {"bio": "Bio", "batch": "Batch", "overall": "overall"},
}
#: Scores of which less is better.
LOWER = {"over_correction"}
#: Scores that differ less are equal as printed.
ROUNDING = 0.005
#: Colours of the groups' circles, from light to dark.
MAPS = ("Blues", "Greens", "Purples", "Greys")
OTHERS = "other scores"


@picture
def scores(data: Any, *, unrefined: str | None = None, **shown: Unpack[Shown]) -> Any:
    """Draw scores of embeddings: a row per embedding, a circle and a number per score.

    A larger and darker circle is better: its area grows with the score, from 0 to 1. Bold numbers are the
    best of their column. The unrefined embedding is the first row.

    Parameters
    ----------
    data
        What :func:`scbatchprox.evaluate.compare` returns, or a table with a row per score and a column per
        embedding.
    unrefined
        The unrefined embedding; by default the first column.
    ax, show, save
        As for :func:`scbatchprox.pl.before_after`.

    Returns
    -------
    The axes.

    Examples
    --------
    >>> import pandas as pd
    >>> from scbatchprox import pl
    >>> found = {"X_pca": [0.75, 0.1], "X_pca_batchprox": [0.76, 0.5]}
    >>> axes = pl.scores(pd.DataFrame(found, index=["macro_f1", "ilisi"]))
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['X_pca (unrefined)', 'X_pca_batchprox']
    """
    table = _table(data)
    of_spread = [name for name in table.index if str(name).endswith("_sd")]
    spread = {str(name).removesuffix("_sd"): table.loc[name] for name in of_spread}
    table = table.drop(index=of_spread)
    first = table.columns[0] if unrefined is None else unrefined
    if first not in table:
        raise BadValue(
            f"Expected unrefined to be one of {', '.join(map(str, table))}, found {first!r}."
        )
    table = table[[first, *(name for name in table if name != first)]]
    columns = _columns(table)
    size = (2.6 + 0.78 * len(columns), 1.7 + 0.42 * len(table.columns))
    axes = panels((1, 1), size, **shown)[0, 0]
    for x, (group, name, _) in enumerate(columns):
        _column(axes, x, group, name, table.loc[name], spread.get(name))
    _headings(axes, columns, [str(name) for name in table])
    return axes


def _table(data: Any) -> pd.DataFrame:
    table = getattr(data, "scores", data)
    if not isinstance(table, pd.DataFrame):
        raise BadType(
            f"Expected a Comparison or a table of scores x embeddings, found {type(data).__name__}."
        )
    if table.empty:
        raise BadValue("Expected at least one score of one embedding, found an empty table.")
    return table.astype(float)


def _columns(table: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Group, name and heading of each score; scores without any number are left out."""
    known = [(g, name, head) for g, part in GROUPS.items() for name, head in part.items()]
    names = {name for _, name, _ in known}
    others = [
        (OTHERS, name, unset(str(name)).replace("_", "\n"))
        for name in table.index
        if name not in names
    ]
    return [
        one for one in known + others if one[1] in table.index and table.loc[one[1]].notna().any()
    ]


def _column(
    axes: Axes, x: int, group: str, name: str, values: pd.Series[float], spread: Any
) -> None:
    from matplotlib import colormaps

    good = 1.0 - values if name in LOWER else values
    part = good.clip(0.0, 1.0).to_numpy()
    best = good >= good.max() - ROUNDING
    best &= not best.all()
    colour = colormaps[MAPS[[*GROUPS, OTHERS].index(group) % len(MAPS)]]
    for y, (value, share) in enumerate(zip(values, part, strict=True)):
        if np.isnan(value):
            axes.text(x, y, "–", ha="center", va="center", fontsize=8, color="0.5")
            continue
        axes.scatter(x, y, s=100 + 500 * share, color=colour(0.1 + 0.5 * share), linewidths=0)
        text = f"{value:.2f}" if spread is None else f"{value:.2f}\n±{spread.iloc[y]:.2f}"
        axes.text(
            x, y, text, ha="center", va="center", fontsize=7.5 if spread is None else 6,
            weight="bold" if best.iloc[y] else "normal", color="black", linespacing=0.9,
        )  # fmt: skip


def _headings(axes: Axes, columns: list[tuple[str, str, str]], names: list[str]) -> None:
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_xticks(range(len(columns)), [head for *_, head in columns], fontsize=7.5)
    axes.set_yticks(
        range(len(names)),
        [f"{label(n)} (unrefined)" if i == 0 else label(n) for i, n in enumerate(names)],
        fontsize=9,
    )
    titles_above(axes)
    axes.axhline(0.5, color="0.6", linewidth=0.8)
    groups = [group for group, *_ in columns]
    for group in dict.fromkeys(groups):
        start, n = groups.index(group), groups.count(group)
        axes.text(
            start + (n - 1) / 2, -0.04, group, transform=axes.get_xaxis_transform(), ha="center",
            va="top", fontsize=8.5, color="0.35",
        )  # fmt: skip
        if start:
            axes.axvline(start - 0.5, color="0.85", linewidth=0.8)
