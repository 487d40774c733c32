"""The page of planted effects: who undoes them, who harms, and how often the diagnosis knew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...plots.figures import dots
from ..planted import KINDS
from .classify import REAL
from .page import MEANINGS, NAMES, Story, summary
from .promises import FALL
from .settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    *("DIAGNOSE", "FARTHER", "HALVES", "LOOKED_AT", "VERDICTS"),
    *("draw", "half_of", "harms", "tell"),
]

#: The name under which rows of the diagnosis stand among methods.
DIAGNOSE = "diagnose"
#: First words of verdicts, the gravest last.
VERDICTS = ("safe", "move with care", "leave alone")
#: A displacement error that exceeds that of doing nothing by more than this, in distances between types, is
#: harm. A random split of one batch alone costs every method about half of that.
FARTHER = 0.1
#: Data sets to choose a method by, and those to confirm it on.
HALVES = {"choosing": tuple(sorted(REAL)[::2]), "confirming": tuple(sorted(REAL)[1::2])}
#: Of the second half, those that earlier settings were chosen by, as docs/populations.md says.
LOOKED_AT = ("cell_lines", "synovium")
_OTHER = "other data"
_SET = ["half", "dataset", "upstream", "condition", "step", "run"]
_METRICS = [
    *("displacement_error", "displacement_relative", "macro_f1", "lobo_f1", "over_correction"),
    *("mixing_within_types", "variance_kept", "neighbours_kept_in_batch"),
]
_OURS = "batchprox_population"


def half_of(dataset: str) -> str:
    """Return which half a data set belongs to, if it is one of them."""
    return next((half for half, names in HALVES.items() if dataset in names), _OTHER)


def harms(sets: pd.DataFrame, method: str) -> pd.DataFrame:
    """Tell for each planted set whether a method did harm there, by each of the scores that can tell.

    Parameters
    ----------
    sets
        A row for each planted set; columns are pairs of a metric and a method.
    method
        Whose numbers are held against those of the unrefined embedding.
    """
    margins = {"lobo_f1": -FALL, "over_correction": FALL, "displacement_error": FARTHER}
    found = {}
    for metric, margin in margins.items():
        change = sets[metric, method] - sets[metric, "unrefined"]
        # What is not known is no harm.
        found[metric] = change > margin if margin > 0 else change < margin
    return pd.DataFrame(found)


def tell(rows: pd.DataFrame, settings: Settings) -> Story:
    """Say what follows from the rows, separately for the two halves of the data sets."""
    rows = _with_halves(rows)
    scored = rows[rows["method"] != DIAGNOSE]
    sets = scored.pivot_table(index=_SET, columns=["metric", "method"], values="value", sort=False)
    tables: dict[str, pd.DataFrame] = {}
    for half, part in scored.groupby("half", sort=False):
        table = summary(part, ["condition", "method"], _METRICS)
        tables[f"{str(half).capitalize()}: means and spread over data sets"] = table.rename(
            columns={"condition": "planted"}
        )
        tables[f"{str(half).capitalize()}: harm"] = _harm(sets, str(half), _others(part))
    findings = [line for method in _others(scored) for line in _findings(sets, method)]
    judged = _judged(rows, sets)
    if judged is not None:
        for half, part in judged.groupby("half", sort=False):
            tables[f"{str(half).capitalize()}: verdicts of the diagnosis"] = _verdicts(part)
        findings += _on_verdicts(judged)
    shown = [kind for kind in KINDS if kind in set(rows["condition"])]
    tables["What is planted"] = pd.DataFrame(
        {"planted": shown, "what": [KINDS[kind].about for kind in shown]}
    )
    return Story(findings, tables, _notes(settings))


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the displacement error of each method, by kind."""
    figure = dots(
        _with_halves(rows[rows["metric"] == "displacement_error"]),
        xlabel="displacement error in distances between types, mean and spread over data sets",
        y="condition",
        panel="half",
        names=NAMES,
    )
    for axes in figure.axes:  # from a hundredth to ten, and none at all
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xlim(left=-0.01)
        axes.set_xticks([0, 0.05, 0.1, 0.3, 1, 3, 10], ["0", "0.05", "0.1", "0.3", "1", "3", "10"])
    return figure


def _findings(sets: pd.DataFrame, method: str) -> Iterator[str]:
    """Say what a method does where there is nothing to do, where there is something, and what harm."""
    name = NAMES.get(method, method)
    null = sets.index.get_level_values("condition").map(lambda kind: KINDS[kind].null)
    idle, planted = sets[np.asarray(null, bool)], sets[~np.asarray(null, bool)]
    if len(idle):
        level = pd.Series(True, idle.index)
        for metric in ("macro_f1", "lobo_f1"):
            change = idle[metric, method] - idle[metric, "unrefined"]
            level &= ~(change.abs() > FALL)
        yield (
            f"Sets without an effect: F1 and leave-one-batch-out F1 of {name} are within {FALL} of "
            f"unrefined on {_counts(level)}; the displacement error, which should be 0, has "
            f"the median {_medians(idle['displacement_error', method])}."
        )
    if len(planted):
        nearer = planted["displacement_relative", method] < 1.0
        yield (
            f"Sets with an effect: the displacement error of {name} is below that of doing nothing on "
            f"{_counts(nearer)}; as a part of it, it has the median "
            f"{_medians(planted['displacement_relative', method])}."
        )
    yield f"All planted sets: {name} does harm on {_counts(harms(sets, method).any(axis=1))}."


def _harm(sets: pd.DataFrame, half: str, methods: list[str]) -> pd.DataFrame:
    """Count the sets of a half that each method did harm to, in all and by each score."""
    of_half = sets[sets.index.get_level_values("half") == half]
    lines = []
    for method in methods:
        found = harms(of_half, method)
        by_score = {f"by {NAMES[metric]}": int(found[metric].sum()) for metric in found}
        harmed = int(found.any(axis=1).sum())
        lines.append({"method": method, "sets": len(found), "harmed": harmed, **by_score})
    return pd.DataFrame(lines)


def _judged(rows: pd.DataFrame, sets: pd.DataFrame) -> pd.DataFrame | None:
    """Return the verdicts on each planted set, the gravest, and whether the population target harmed."""
    said = rows[rows["method"] == DIAGNOSE]
    if said.empty or ("displacement_error", _OURS) not in sets:
        return None
    wide = said.pivot_table(index=_SET, columns="metric", values="value", sort=False)
    wide = wide.reindex(columns=[f"verdict_{words}" for words in VERDICTS]).fillna(0.0)
    wide.columns = pd.Index(VERDICTS)
    harm = harms(sets, _OURS).any(axis=1)
    known = sets["displacement_error", _OURS].notna()
    wide = wide.join(harm[known].rename("harmed"), how="inner")
    there = wide[list(VERDICTS)].to_numpy() > 0
    gravest = there.shape[1] - 1 - there[:, ::-1].argmax(1)
    return wide.assign(gravest=np.array(VERDICTS)[gravest]).reset_index()


def _verdicts(judged: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for words in VERDICTS:
        batches, sets = judged[words], judged["gravest"] == words
        unharmed = ~judged["harmed"]
        lines.append(
            {
                "verdict": words,
                "batches": int(batches.sum()),
                "in sets without harm": int(batches[unharmed].sum()),
                "sets with this as the gravest": int(sets.sum()),
                "of them without harm": int((sets & unharmed).sum()),
            }
        )
    return pd.DataFrame(lines)


def _on_verdicts(judged: pd.DataFrame) -> Iterator[str]:
    for words, right, what in (
        ("safe", ~judged["harmed"], "`safe` was safe: no harm"),
        ("leave alone", judged["harmed"], "`leave alone` was right: harm"),
    ):
        parts = []
        for half, part in judged.groupby("half", sort=False):
            n, of = part.loc[right[part.index], words].sum(), part[words].sum()
            parts.append(f"{n:.0f} of {of:.0f} batches ({half})")
        yield f"{what} on {', '.join(parts)}."


def _counts(flags: pd.Series) -> str:
    """How many are true, of how many, in each half."""
    parts = flags.groupby(level="half", sort=False)
    return ", ".join(f"{int(part.sum())} of {len(part)} ({half})" for half, part in parts)


def _medians(values: pd.Series) -> str:
    """The median in each half: no number is of both."""
    parts = values.groupby(level="half", sort=False).median()
    return ", ".join(f"{value:.3f} ({half})" for half, value in parts.items())


def _with_halves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a column that says which half, in the order of halves and of kinds."""
    rows = rows.assign(half=[half_of(name) for name in rows["dataset"]])
    order = {name: at for at, name in enumerate([*HALVES, _OTHER, *KINDS])}
    return rows.sort_values(["half", "condition"], key=lambda x: x.map(order), kind="stable")


def _others(rows: pd.DataFrame) -> list[str]:
    return [method for method in dict.fromkeys(rows["method"]) if method != "unrefined"]


def _notes(settings: Settings) -> list[str]:
    halves = "; ".join(f"{half}: {', '.join(names)}" for half, names in HALVES.items())
    return [
        "Protocol: half of the real sets are for choosing between variants of a method, half for "
        "confirming what was chosen; a variant that is chosen by a number of the second half is not "
        f"confirmed by it. In alphabetical order the sets belong to one and the other in turn ({halves}). "
        f"Not all of the second half is new: the population target's first settings were chosen while "
        f"looking at {' and '.join(LOOKED_AT)} too.",
        "One real batch of a data set, or several, is embedded by itself (an embedding that came with "
        "the data only loses cells), so that there is no effect in it, and split into batches at random. "
        "The effect is planted in all of them but the first. The typical distance between types, the unit "
        "of all sizes, is the median over pairs of type means.",
        "Displacement error: root mean squared difference between where cells went and where they should "
        "have gone, up to a common translation, in that unit; and as a part of that of doing nothing, "
        "which is not defined where there was nothing to do.",
        f"Harm: leave-one-batch-out F1 or over-correction worse than unrefined by more than {FALL}, or a "
        f"displacement error above that of doing nothing by more than {FARTHER}; a score that is not "
        "defined, such as over-correction where batches do not meet, tells of none, and is left out of "
        "means. Verdicts are those of "
        "`diagnose` for the population target, before anything is refined; harm is what that target "
        "then did to the set as a whole. In batches of a few dozen cells a single cell can be worth "
        "more than these margins; in batches of a thousand it cannot.",
        MEANINGS,
        settings.upstream_note,
    ]
