"""Verdicts on batches: their levels and limits, the judge that makes them from numbers, and their words.

Nothing else compares numbers with limits to decide what to do, and nothing else turns a verdict into a
sentence. Other modules ask a level what it means, and never compare its text. The limits of evidence are
settings of the population target.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.shown import names
from ..core.target import Decision
from ..errors import Parameter, Part
from ..targets.population.settings import PopulationSettings
from .kept import MEASURES, Kept

if TYPE_CHECKING:
    import pandas as pd

    from ..core.target import TargetRule

__all__ = [
    "CONFOUNDED", "DEFAULTS", "DIFFERENT", "FAR", "FAR_FACTOR", "FIRST", "LARGE_SCALE", "MIN_CELLS",
    "MIN_KEPT", "MUCH_REMOVED", "NEARNESS", "N_BATCHES", "TEXT_COLUMNS", "VERY_FAR",
    "VERY_FAR_FACTOR", "Level", "Reason", "Verdict", "clauses", "composition_warning",
    "judge_arriving", "judge_batch", "judge_kept", "judge_place", "kept_warning", "level_of",
    "mover_of", "place_sentence", "sentence", "verdict_columns", "verdicts_of", "why", "with_care",
]  # fmt: skip


class Level(StrEnum):
    """What was found out about a batch; from good to bad.

    A batch with no effect, or with nothing to compare with, stays exactly as it is, if the target needs
    evidence to move it.
    """

    NO_EFFECT = "no effect found"
    REMOVED = "effect removed"
    WEAK = "weak evidence"
    ALONE = "nothing to compare with"

    @property
    def rank(self) -> int:
        """A larger number for a worse level."""
        return list(Level).index(self)

    @property
    def fine(self) -> bool:
        """Whether nobody has to look at the batch."""
        return self in (Level.NO_EFFECT, Level.REMOVED)

    @property
    def needs_force(self) -> bool:
        """Whether an atlas refuses the batch."""
        return self is Level.ALONE

    @property
    def tone(self) -> str:
        """How serious it is: ``fine``, ``care`` or ``alone``; the class of CSS in reports."""
        return "fine" if self.fine else "alone" if self.needs_force else "care"


#: Compositions further apart than this are different, for a target that moves whole batches; 0 is equal, 1
#: is disjoint.
DIFFERENT = 0.3
#: The composition of a batch with fewer cells is unknown.
MIN_CELLS = 50
#: Larger scales need care, and smaller ones than 1 / this.
LARGE_SCALE = 1.5
#: A smaller part of the neighbours kept needs care.
MIN_KEPT = 0.5
#: A column is confounded with batches that tell a larger part of it.
CONFOUNDED = 0.9
#: Removing a larger part of the variance between the values of a column that is to be kept needs care.
MUCH_REMOVED = 0.5

# The limits of new batches of an atlas come from five real data sets (docs/atlas.md), where each batch was
# judged against the others.
# Batches that overlap lie within 0.9 spreads of the others, and their spreads differ by factors up to 1.5.
# Two batches that do not overlap lie 1.8 and 4.5 spreads apart, with factors of 2.4.
#: A batch whose mean lies further than this many spreads from the atlas is far.
FAR = 1.5
#: Beyond this many spreads a batch is refused unless forced. Two normal distributions with the spread of the
#: atlas would hardly overlap in any coordinate.
VERY_FAR = 3.0
#: A batch is far if its spread differs from that of the atlas' batches by more than this factor. The spread
#: of one cell type is smaller than that of a tissue by about this factor.
FAR_FACTOR = 2.0
#: Beyond this factor a batch is refused unless forced: its embedding probably has another scale.
VERY_FAR_FACTOR = 4.0


#: Columns of a diagnosis that are texts: the level, the names of the reasons, and the sentence.
TEXT_COLUMNS = ("level", "reasons", "verdict")
#: The number of batches is no column of a diagnosis.
N_BATCHES = "n_batches"
#: Levels by their texts, also those that earlier versions wrote.
LEVELS_BY_TEXT = {str(level): level for level in Level} | {
    "safe": Level.REMOVED,
    "move with care": Level.WEAK,
    "leave alone": Level.ALONE,
}


@dataclass(frozen=True)
class Reason:
    """A number that was compared with a limit.

    ``name`` is its column in the table, or ``n_batches``.
    """

    name: str
    value: float
    limit: float


@dataclass(frozen=True)
class Verdict:
    """What to do with a batch, and why."""

    level: Level
    reasons: tuple[Reason, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the numbers that are reasons."""
        return [reason.name for reason in self.reasons]


def verdict_columns(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """Return verdicts as columns of texts, which files can store."""
    return {
        "level": [str(verdict.level) for verdict in verdicts],
        "reasons": [", ".join(verdict.names) for verdict in verdicts],
    }


def verdicts_of(table: pd.DataFrame) -> list[Verdict | None]:
    """Return the verdict on each batch of a table, or ``None`` where it has none.

    A table does not hold limits, which are NaN. One of an earlier version has no reasons either.
    """
    found: list[Verdict | None] = []
    # The longest first: the name of a column to keep may have a comma, and end like that of another.
    names = {*map(str, table.columns), N_BATCHES}.difference(TEXT_COLUMNS)
    longest = sorted(names, key=len, reverse=True)
    name = re.compile(f"({'|'.join(map(re.escape, longest))})(?:, |$)")
    for row in table.to_dict("records"):
        # A diagnosis that an earlier version wrote may have only sentences. No other code reads one.
        level = level_of(row.get("level")) or level_of(str(row.get("verdict")).partition(": ")[0])
        named = name.findall(str(row.get("reasons", "")))
        reasons = tuple(Reason(of, row.get(of, np.nan), np.nan) for of in named)
        found.append(None if level is None else Verdict(level, reasons))
    return found


def level_of(text: Any) -> Level | None:
    """Return the level with this text, also one of an earlier version; ``None`` if there is none."""
    return LEVELS_BY_TEXT.get(text) if isinstance(text, str) else None


def why(sentence: str) -> str:
    """Return the sentence of a table without its level."""
    level, _, rest = sentence.partition(": ")
    return sentence if level_of(level) is None else rest


DEFAULTS = PopulationSettings()


def judge_batch(
    numbers: Mapping[str, Any],
    decision: Decision | None,
    *,
    settings: PopulationSettings = DEFAULTS,
    by_moments: bool = False,
    n_batches: int = 2,
) -> Verdict:
    """Return the verdict on a batch: what the evidence decided, and reasons for care.

    Without a decision there is no evidence, and only reasons for care count. Numbers that are missing or NaN
    are no reasons. ``by_moments`` is for a target that moves whole batches. ``n_batches`` are all that the
    batch was fitted with.
    """
    if n_batches < 2:
        return Verdict(Level.ALONE, (Reason(N_BATCHES, n_batches, 2),))
    at = defaultdict(lambda: math.nan, numbers)
    verdict = Verdict(Level.REMOVED)
    if decision is not None:
        reason = _reason(decision, at, settings, n_batches)
        level = Level[Decision(decision).name]
        verdict = Verdict(level, () if math.isnan(reason.value) else (reason,))
    beyond = {
        ("composition", DIFFERENT): by_moments and at["composition"] > DIFFERENT,
        ("scale_min", 1 / LARGE_SCALE): at["scale_min"] < 1 / LARGE_SCALE,
        ("scale_max", LARGE_SCALE): at["scale_max"] > LARGE_SCALE,
        ("neighbours_kept", MIN_KEPT): at["neighbours_kept"] < MIN_KEPT,
    }
    found = [Reason(name, at[name], limit) for (name, limit), is_one in beyond.items() if is_one]
    return with_care(verdict, found, at["moved"])


def _reason(
    decision: Decision, at: Mapping[str, float], settings: PopulationSettings, n_batches: int
) -> Reason:
    """Return the number that decided, with its limit."""
    own, agreement = at["evidence"], at["agreement"]
    match decision:
        case Decision.ALONE if own > settings.evidence:
            return Reason(N_BATCHES, 1, 2)  # it has evidence, but all others were found to be alone
        case Decision.ALONE | Decision.WEAK:
            return Reason("evidence", own, settings.evidence)
        case Decision.REMOVED if agreement <= settings.agreement and at["smooth"] > 0:
            return Reason("smooth", at["smooth"], 0.0)  # it has no shift, but a smooth part
        case Decision.NO_EFFECT if at["gain"] <= settings.better:
            return Reason("gain", at["gain"], settings.better)
    limit = settings.agreement
    if decision == Decision.NO_EFFECT and agreement > limit:  # among many batches more is needed
        limit = math.sqrt(limit**2 + 2.0 * math.log(max(n_batches - 1.0, 1.0)))
    return Reason("agreement", agreement, limit)


def with_care(verdict: Verdict, reasons: Iterable[Reason], moved: float) -> Verdict:
    """Return the verdict on a batch with further reasons for care; none count if it is not ``moved``."""
    found = tuple(reasons)
    if not found or moved == 0 or verdict.level.needs_force:
        return verdict
    # What speaks for moving the batch is no reason for care.
    return Verdict(Level.WEAK, (() if verdict.level.fine else verdict.reasons) + found)


def judge_kept(columns: Iterable[Kept]) -> list[Reason]:
    """Return reasons for care on all batches: columns to keep that batches tell, or that are removed."""
    return [
        Reason(name, value, limit)
        for column in columns
        for (name, value), limit in zip(
            column.numbers.items(), (CONFOUNDED, MUCH_REMOVED), strict=True
        )
        if value >= limit
    ]


def judge_place(numbers: Mapping[str, Any]) -> Verdict:
    """Return the verdict on how far a new batch lies from an atlas, and on its spread."""
    # A batch near one known batch is close, even if the mean of all cells is far.
    nearest = min(("distance", "nearest_distance"), key=lambda name: float(numbers[name]))
    distance = float(numbers[nearest])
    ratio = 1.0 if np.isnan(numbers["spread_ratio"]) else float(numbers["spread_ratio"])
    factor = max(ratio, 1 / ratio)
    reasons = []
    if distance > FAR:
        reasons.append(Reason(nearest, distance, VERY_FAR if distance > VERY_FAR else FAR))
    if factor > FAR_FACTOR:
        limit = VERY_FAR_FACTOR if factor > VERY_FAR_FACTOR else FAR_FACTOR
        reasons.append(Reason("spread_ratio", ratio, limit if ratio > 1 else 1 / limit))
    if distance > VERY_FAR or factor > VERY_FAR_FACTOR:
        return Verdict(Level.ALONE, tuple(reasons))
    return Verdict(Level.WEAK if reasons else Level.REMOVED, tuple(reasons))


def judge_arriving(
    numbers: Mapping[str, Any], decision: Decision | None, settings: PopulationSettings = DEFAULTS
) -> Verdict:
    """Return the verdict on a new batch of an atlas."""
    place, own = judge_place(numbers), judge_batch(numbers, decision, settings=settings)
    return place if place.level.needs_force else with_care(own, place.reasons, numbers["moved"])


#: How far a new batch of an atlas lies, by the level of that; and the word for the first batches.
NEARNESS = {Level.REMOVED: "close", Level.WEAK: "far", Level.ALONE: "very far"}
FIRST = "first"
#: Batches that a warning names.
NAMED = 5


def sentence(
    verdict: Verdict,
    numbers: Mapping[str, Any],
    others: str = "the others",
    mover: str | None = None,
) -> str:
    """Return a verdict in words; ``numbers`` are those that it was made from.

    ``mover`` is what moves batches without regard to evidence, if anything does.
    """
    said = "; ".join(clauses(verdict, numbers, others, mover))
    return f"{verdict.level}: {said}" if said else str(verdict.level)


def clauses(
    verdict: Verdict,
    numbers: Mapping[str, Any],
    others: str = "the others",
    mover: str | None = None,
) -> list[str]:
    """Return the reasons in words; numbers that belong together are in one clause."""
    found = (_clause(reason, verdict, numbers, others, mover) for reason in verdict.reasons)
    return list(dict.fromkeys(found))


def mover_of(rule: TargetRule, is_own: bool = True) -> str | None:
    """What moves batches without regard to the evidence."""
    if not rule.registers:
        return "target='moment'"
    if not is_own:
        return "this model"
    return "force=True" if getattr(rule, "force", False) else None


def place_sentence(verdict: Verdict | None, numbers: Mapping[str, Any]) -> str:
    """Return in words how far a new batch lies from an atlas; ``None`` for the first batches."""
    if verdict is None:
        return f"{FIRST}: the atlas has no batches to compare it with"
    said = [
        f"its spread is {reason.value:.3g} times that of the atlas' batches ({1 / FAR_FACTOR:g} to "
        f"{FAR_FACTOR:g} is close)"
        if reason.name == "spread_ratio"
        else f"its mean lies {reason.value:.3g} spreads away (up to {FAR:g} is close)"
        for reason in verdict.reasons
    ]
    distance = min(numbers["distance"], numbers["nearest_distance"])
    said = said or [f"its mean lies {distance:.2f} spreads away"]
    return f"{NEARNESS[verdict.level]}: {' and '.join(said)}"


def composition_warning(batches: list[Any], diagnosed: bool) -> list[Part]:
    """Return the warning that the target is wrong for batches that differ in composition."""
    hint: list[Part] = [
        "; ",
        Parameter("diagnose=True", "--diagnose"),
        " gives a verdict per batch",
    ]
    return [
        f"Batches differ in composition ({names(batches, NAMED)}): a target that moves whole batches puts "
        f"different populations on top of each other; try ", Parameter("target='population'"),
        *([] if diagnosed else hint), ".",
    ]  # fmt: skip


def kept_warning(name: str, reasons: list[Reason], numbers: Mapping[str, Any]) -> list[Part]:
    """Return the warning that a column to keep is removed."""
    (reason,) = clauses(Verdict(Level.WEAK, tuple(reasons)), numbers)
    return [
        f"To keep {name!r}, leave the batches alone or lower ",
        Parameter("strength"),
        f": {reason}.",
    ]


def _clause(
    reason: Reason, verdict: Verdict, numbers: Mapping[str, Any], others: str, mover: str | None
) -> str:
    value = reason.value
    match reason.name:
        case "evidence" | "agreement" | "gain" | "smooth" | "n_batches":
            then = _then(verdict.level, numbers.get("moved", math.nan), mover)
            return _decided(reason, verdict.level, others, mover) + then
        case "composition":
            return (
                f"its composition differs ({value:.2f}), and only target='population' takes that into "
                f"account"
            )
        case "scale_min" | "scale_max":
            return f"it is scaled by {numbers['scale_min']:.2f} to {numbers['scale_max']:.2f}"
        case "neighbours_kept":
            return f"cells keep {value:.0%} of their neighbours"
        case "distance" | "nearest_distance" | "spread_ratio":
            return f"it is {NEARNESS[verdict.level]} from all batches of the atlas"
    column, _, what = reason.name.rpartition(" ")
    assert what in MEASURES, f"no words for the reason {reason.name!r}"
    return _kept(column, verdict, numbers)


def _decided(reason: Reason, level: Level, others: str, mover: str | None) -> str:
    """The number that decided on the level."""
    value, limit = f"{reason.value:.2f}", f"{reason.limit:.2f} needed"
    if reason.name == N_BATCHES:
        return "there is no other batch that it can be compared with"
    if reason.name == "smooth":
        return f"its neighbouring centres agree on a displacement ({value})"
    if reason.name == "gain":
        return (
            f"a shift would hardly bring it nearer to {others} ({value} times, more than {limit})"
        )
    if reason.name == "agreement" and level is Level.NO_EFFECT:
        return f"its centres do not agree on a displacement ({value}, at least {limit})"
    if reason.name == "agreement":
        return f"its centres agree on a displacement ({value})"
    if level is Level.ALONE:
        return f"its geometry fits {others} no better than turned copies of it ({value}, {limit})"
    own = f"its own geometry gives {value} ({limit})"
    if reason.value > reason.limit:
        return f"{own}, less than twice that"
    return own if mover else f"moved with the others' help, {own}"


def _then(level: Level, moved: float, mover: str | None) -> str:
    """What followed from it, if the level does not say so."""
    stays = level in (Level.NO_EFFECT, Level.ALONE)
    if moved == 0:
        return "; left exactly as it is" if stays else "; these options move nothing"
    if mover and level is not Level.REMOVED:
        return f"; {mover} moves it all the same"
    return ""


def _kept(name: str, verdict: Verdict, numbers: Mapping[str, Any]) -> str:
    names = [f"{name} {what}" for what in MEASURES]
    told, gone = (float(numbers[of]) for of in names)
    few = "one value" if told > 1 - 1e-9 else "almost one value"
    confounded = f"each batch has {few} of {name!r}, so the two cannot be told apart"
    removed = f"the refinement removes {gone:.0%} of the variance between the values of {name!r}"
    match [of in verdict.names for of in names]:
        case [True, True]:
            return f"{confounded}, and {removed}"
        case [True, False]:
            part = "none" if math.isnan(gone) else f"{max(gone, 0.0):.0%}"
            return f"{confounded}; the refinement removes {part} of the variance between its values"
    return removed
