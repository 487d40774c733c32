"""The page of planted effects: errors and harm of each method, and verdicts of the diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scbatchprox.diagnosis import Level

from ..baselines import POPULATION
from ..planted import KINDS
from .classify import LATER, REAL
from .figures import dots
from .page import MEANINGS, NAMES, NO_EFFECT, Report, summary
from .promises import FALL
from .settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    *("DIAGNOSE", "FARTHER", "HALVES", "KNOWN", "LOOKED_AT", "MEASURED", "OTHER", "SHIFTS"),
    *("draw", "half_of", "harms", "report"),
]

#: The method of rows with verdicts of the diagnosis.
DIAGNOSE = "diagnose"
#: The method of rows of an estimator that knows the types, and the kinds whose effect is a shift. For others
#: it is no bound.
KNOWN = "types known"
#: The condition of rows of real batches, as they were measured, that should have no effect.
MEASURED = "measured"
SHIFTS = [kind for kind in KINDS if kind.startswith("shift_")]
#: A displacement error above the unrefined one by more than this, in distances between types, is harm. Every
#: method has about half of this error on a random split of one batch.
FARTHER = 0.1
#: Data sets for choosing a method, and for confirming the choice.
HALVES = {
    half: (*sorted(REAL)[at::2], *sorted(LATER)[at::2])
    for at, half in enumerate(("choosing", "confirming"))
}
#: Sets of the second half that were used to choose earlier settings; see docs/populations.md.
LOOKED_AT = ("cell_lines", "synovium")
#: Data of neither half.
OTHER = "other data"
_SET = ["half", "dataset", "upstream", "condition", "step", "run"]
_METRICS = [
    *("displacement_error", "displacement_relative", "relative_error", "macro_f1"),
    *("f1_given_batch", "lobo_f1", "over_correction", "mixing_within_types"),
    *("variance_kept", "neighbours_kept_in_batch"),
]


def half_of(dataset: str) -> str:
    """Return the half of a data set, or ``"other data"``."""
    return next((half for half, names in HALVES.items() if dataset in names), OTHER)


def harms(sets: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return for each planted set whether a method did harm, by each score.

    A score that falls to that of the same cells without the effect is no harm: batches that lie apart have no
    neighbours of other types in each other, because they have no neighbours in each other.

    Parameters
    ----------
    sets
        A row for each planted set; columns are pairs of a metric and a method.
    method
        The method to compare with the unrefined embedding.
    """
    margins = {"lobo_f1": -FALL, "over_correction": FALL, "displacement_error": FARTHER}
    found = {}
    for metric, margin in margins.items():
        known = [name for name in ("unrefined", NO_EFFECT) if (metric, name) in sets]
        best = sets[[(metric, name) for name in known]]
        change = sets[metric, method] - (best.max(axis=1) if margin > 0 else best.min(axis=1))
        # NaN is not counted as harm.
        found[metric] = change > margin if margin > 0 else change < margin
    return pd.DataFrame(found)


def report(rows: pd.DataFrame, settings: Settings) -> Report:
    """Return the content of the page, separately for the two halves of the data sets."""
    measured = rows[rows["condition"] == MEASURED]
    rows = _with_halves(rows[rows["condition"] != MEASURED])
    scored = rows[~rows["method"].isin([DIAGNOSE, KNOWN])]
    sets = scored.pivot_table(index=_SET, columns=["metric", "method"], values="value", sort=False)
    tables: dict[str, pd.DataFrame] = {}
    for half, part in scored.groupby("half", sort=False):
        table = summary(part, ["condition", "method"], _METRICS)
        tables[f"{str(half).capitalize()}: means and spread over data sets"] = table.rename(
            columns={"condition": "planted"}
        )
        tables[f"{str(half).capitalize()}: where nothing should move"] = _null(sets, str(half))
        reached = rows[(rows["half"] == half) & rows["condition"].isin(SHIFTS)]
        tables[f"{str(half).capitalize()}: shifts, and what can be reached"] = _reached(reached)
        tables[f"{str(half).capitalize()}: harm"] = _harm(sets, str(half), _others(part))
    if len(measured):
        tables["Real batches without an effect, as they were measured"] = _measured(measured)
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
    return Report(findings, tables, _notes(settings))


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the displacement error of each method, by kind."""
    shown = (rows["metric"] == "displacement_error") & (rows["method"] != KNOWN)
    figure = dots(
        _with_halves(rows[shown]),
        xlabel="displacement error in distances between types, mean and spread over data sets",
        y="condition",
        panel="half",
        names=NAMES,
    )
    for axes in figure.axes:  # values range from 0 to 10
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xlim(left=-0.01)
        axes.set_xticks([0, 0.05, 0.1, 0.3, 1, 3, 10], ["0", "0.05", "0.1", "0.3", "1", "3", "10"])
    return figure


def _findings(sets: pd.DataFrame, method: str) -> Iterator[str]:
    """Yield sentences on a method: sets without an effect, sets with an effect, and harm."""
    name = NAMES.get(method, method)
    null = sets.index.get_level_values("condition").map(lambda kind: KINDS[kind].null)
    without, planted = sets[np.asarray(null, bool)], sets[~np.asarray(null, bool)]
    if len(without):
        equal = pd.Series(True, without.index)
        for metric in ("f1_given_batch", "lobo_f1"):
            change = without[metric, method] - without[metric, "unrefined"]
            equal &= ~(change.abs() > FALL)
        yield (
            f"Sets without an effect: F1 given batch and leave-one-batch-out F1 of {name} are within {FALL} "
            f"of unrefined on {_counts(equal)}; the median displacement error, which should be 0, is "
            f"{_medians(without['displacement_error', method])}."
        )
    if len(planted):
        smaller = planted["displacement_relative", method] < 1.0
        yield (
            f"Sets with an effect: the displacement error of {name} is below unrefined on "
            f"{_counts(smaller)}; its median, relative to unrefined, is "
            f"{_medians(planted['displacement_relative', method])}."
        )
    yield f"All planted sets: {name} does harm on {_counts(harms(sets, method).any(axis=1))}."


def _null(sets: pd.DataFrame, half: str) -> pd.DataFrame:
    """Return how far each method moved cells that have no batch effect, and what that did to types."""
    of_half = sets[sets.index.get_level_values("half") == half]
    lines = []
    for kind in (kind for kind, planted in KINDS.items() if planted.null):
        part = of_half[of_half.index.get_level_values("condition") == kind]
        for method in part["displacement_error"].columns[part["displacement_error"].notna().any()]:
            if method == "unrefined":
                continue
            accuracy = part["neighbour_accuracy"]
            change = accuracy[method] - accuracy["unrefined"]
            lines.append(
                {
                    "planted": kind,
                    "method": method,
                    "sets": len(part),
                    "displacement": part["displacement_error", method].mean(),
                    "largest": part["displacement_error", method].max(),
                    "sets that did not move at all": f"{part['unmoved', method].mean():.0%}",
                    "neighbours kept within batch": part["neighbours_kept_in_batch", method].mean(),
                    "accuracy of types, change": f"{change.mean():+.3f}",
                    "worst": f"{change.min():+.3f}",
                }
            )
    return pd.DataFrame(lines)


def _measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how far each method moved real batches that should have no effect."""
    columns = {
        "displacement_of_spread": "displacement, of the spread of cells",
        "batches_unmoved": "batches that did not move at all",
        "neighbours_kept_in_batch": "neighbours kept within batch",
    }
    wide = rows.pivot_table(
        index=["dataset", "method"], columns="metric", values="value", sort=False
    )
    return wide[list(columns)].rename(columns=columns).rename_axis(columns=None).reset_index()


def _reached(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the mean displacement error of each method on shifted sets, and of one that knows the types."""
    errors = rows[rows["metric"] == "displacement_error"]
    table = errors.pivot_table(index="condition", columns="method", values="value", sort=False)
    return table.rename_axis(columns=None).reset_index(names="planted")


def _harm(sets: pd.DataFrame, half: str, methods: list[str]) -> pd.DataFrame:
    """Return the number of sets of a half that each method harmed, in total and by each score."""
    of_half = sets[sets.index.get_level_values("half") == half]
    lines = []
    for method in methods:
        found = harms(of_half, method)
        by_score = {f"by {NAMES[metric]}": int(found[metric].sum()) for metric in found}
        harmed = int(found.any(axis=1).sum())
        lines.append({"method": method, "sets": len(found), "harmed": harmed, **by_score})
    return pd.DataFrame(lines)


def _judged(rows: pd.DataFrame, sets: pd.DataFrame) -> pd.DataFrame | None:
    """Return the verdicts on each planted set, the most serious one, and whether refinement did harm."""
    said = rows[rows["method"] == DIAGNOSE]
    if said.empty or ("displacement_error", POPULATION) not in sets:
        return None
    wide = said.pivot_table(index=_SET, columns="metric", values="value", sort=False)
    wide = wide.reindex(columns=[f"verdict_{level}" for level in Level]).fillna(0.0)
    wide.columns = pd.Index([str(level) for level in Level])
    harm = harms(sets, POPULATION).any(axis=1)
    known = sets["displacement_error", POPULATION].notna()
    wide = wide.join(harm[known].rename("harmed"), how="inner")
    present = wide[list(Level)].to_numpy() > 0
    worst = present.shape[1] - 1 - present[:, ::-1].argmax(1)
    return wide.assign(worst=np.array([str(level) for level in Level])[worst]).reset_index()


def _verdicts(judged: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for level in Level:
        batches, sets = judged[level], judged["worst"] == level
        unharmed = ~judged["harmed"]
        lines.append(
            {
                "verdict": str(level),
                "batches": int(batches.sum()),
                "in sets without harm": int(batches[unharmed].sum()),
                "sets with this as the most serious verdict": int(sets.sum()),
                "of them without harm": int((sets & unharmed).sum()),
            }
        )
    return pd.DataFrame(lines)


def _on_verdicts(judged: pd.DataFrame) -> Iterator[str]:
    for level in Level:
        parts = []
        for half, part in judged.groupby("half", sort=False):
            n, of = part.loc[~part["harmed"], level].sum(), part[level].sum()
            parts.append(f"{n:.0f} of {of:.0f} batches ({half})")
        yield f"Batches with `{level}` in sets without harm: {', '.join(parts)}."


def _counts(flags: pd.Series) -> str:
    """Return the number of true values, and of all, in each half."""
    parts = flags.groupby(level="half", sort=False)
    return ", ".join(f"{int(part.sum())} of {len(part)} ({half})" for half, part in parts)


def _medians(values: pd.Series) -> str:
    """Return the median in each half; the halves are never pooled."""
    parts = values.groupby(level="half", sort=False).median()
    return ", ".join(f"{value:.3f} ({half})" for half, value in parts.items())


def _with_halves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a column for the half, sorted by half and kind."""
    rows = rows.assign(half=[half_of(name) for name in rows["dataset"]])
    order = {name: at for at, name in enumerate([*HALVES, OTHER, *KINDS])}
    return rows.sort_values(["half", "condition"], key=lambda x: x.map(order), kind="stable")


def _others(rows: pd.DataFrame) -> list[str]:
    return [name for name in dict.fromkeys(rows["method"]) if name not in ("unrefined", NO_EFFECT)]


def _notes(settings: Settings) -> list[str]:
    halves = "; ".join(f"{half}: {', '.join(names)}" for half, names in HALVES.items())
    return [
        "Protocol: half of the real sets are for choosing between variants of a method, half for "
        "confirming the choice; a variant that was chosen by a number of the second half is not confirmed "
        f"by it. The sets belong to the two halves alternately, in alphabetical order, the "
        f"older and the later ones separately ({halves}). "
        f"Not all of the second half is new: {' and '.join(LOOKED_AT)} were also used to choose the first "
        f"settings of the population target.",
        "Each of the largest real batches of a data set is embedded separately (an embedding in the data "
        "only loses cells), so that it has no batch effect, and split into batches at random. The effect "
        "is planted in all of these but the first. The typical distance between types, the unit of all "
        "sizes, is the median over pairs of type means.",
        "Displacement error: root mean squared difference between the displacements of cells and the true "
        "ones, up to a common translation, in that unit; and relative to the error of the unrefined "
        "embedding, which is not defined for sets without an effect. Relative error: half of the same of a "
        "cell's error less the mean error of the 15 cells of other batches that were nearest to it before "
        "the effect, so that batches may also meet half-way. Accuracy of types: of a vote of the 15 "
        "nearest cells.",
        f"Harm: leave-one-batch-out F1 or over-correction worse than unrefined by more than {FALL}, and "
        "worse by as much than the same cells have without the effect; or a "
        f"displacement error above unrefined by more than {FARTHER}. A score that is not defined, such as "
        "over-correction of separate batches, is not counted as harm, and is left out of means. Verdicts "
        "are those of `diagnose` for the population target, before refinement; harm is that of the same "
        "target on the whole set. In batches of a few dozen cells, one cell can change a score by more "
        "than these margins; in batches of a thousand it cannot.",
        MEANINGS,
        settings.upstream_note,
    ]
