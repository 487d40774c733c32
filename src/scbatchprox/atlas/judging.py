"""Judge new batches before they are added: their distance from the atlas, and their spread.

Distances are root mean squares over the coordinates, in spreads. A spread is the standard deviation of all
cells of the atlas in a coordinate. So distances do not depend on the number of coordinates or on the scale
of the embedding. All distances are of unrefined coordinates.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist

from ..api.estimator import BatchProx
from ..core.checks import some_of
from ..core.labels import union
from ..core.moments import Moments, Pooled
from ..core.printed_tables import Tabled
from ..core.shown import count
from ..diagnosis.table import verdict_lines
from ..diagnosis.verdict import (
    DEFAULTS,
    FIRST,
    NEARNESS,
    Level,
    judge_arriving,
    judge_batch,
    judge_place,
    mover_of,
    place_sentence,
    sentence,
    verdict_columns,
)
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats

__all__ = [
    "Arrival",
    "after_adding",
    "check_arrival",
    "judge",
    "judge_arrival",
    "min_spread",
    "refuse",
]

#: Numbers of the evidence in a judgement.
EVIDENCE = ("matched", "agreement", "gain", "smooth", "evidence")
#: Ratios of standard deviations are at most this, so that one constant coordinate does not dominate.
_MAX_RATIO = 1e3
#: Spreads are at least this part of their root mean square, so that a constant coordinate has one.
_MIN_SPREAD = 1e-6


def judge(model: BatchProx | None, moments: Moments, policy: str = "frozen") -> pd.DataFrame:
    """Judge new batches by their moments, one row per batch.

    Distances are from the mean of the batch, in spreads: ``distance`` to the mean of all cells, and
    ``nearest_distance`` to the mean of the ``nearest`` known batch. ``spread_ratio`` is the standard
    deviation of the batch over that within batches of the atlas (geometric mean over coordinates). ``moved``
    is the displacement of its cells, over the batch's own spread. ``level`` is "close", "far", "very far",
    or "first" if the atlas has no batches, and ``verdict`` gives the reason. ``advice`` is a verdict as that
    of :func:`scbatchprox.diagnose`: ``no effect found: ...``, ``effect removed: ...``,
    ``weak evidence: ...`` or ``nothing to compare with: ...``. A batch with the last is refused unless
    forced, and so is one that is very far. ``advice_level`` has its first words, and ``reasons`` the names of
    the numbers that are reasons. An atlas with the population target also has the evidence of the batch
    against the atlas: ``matched``, ``agreement``, ``gain``, ``smooth`` and ``evidence``.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import BatchProx, Moments
    >>> from scbatchprox.atlas import judge
    >>> Z = np.random.default_rng(0).normal(size=(300, 5))
    >>> model = BatchProx(target="moment").fit(Z[:200], batch=np.repeat(["a", "b"], 100))
    >>> judge(model, Moments.of(9.0 * Z[200:], ["c"] * 100))["level"].tolist()
    ['very far']
    """
    return judge_arrival(model, moments, after_adding(model or BatchProx(), moments, policy))


def judge_arrival(model: BatchProx | None, arriving: Moments, after: BatchProx) -> pd.DataFrame:
    """:func:`judge`, given the model after the batches are added."""
    moments = arriving.by_batch
    moved = after.movement_of(arriving)["relative"]
    table = pd.DataFrame({"n_cells": moments.n, "moved": moved.to_numpy()}, index=moved.index)
    known = after.evidence_.select(table.index)
    names = EVIDENCE if known.batches.size else ()  # a target may have none
    table = table.assign(
        **{name: getattr(known, name) for name in names}, **_places(model, moments)
    )
    rows = table.to_dict("records")
    places = [None if model is None else judge_place(row) for row in rows]
    decisions = known.decision.tolist() or [None] * len(rows)
    rule, n_batches = (
        after.fit_.method.rule,
        after.fit_.moments.batches.size + after.fit_.elsewhere[1],
    )
    settings = getattr(rule, "settings", DEFAULTS)
    verdicts = [
        judge_batch(row, decision, settings=settings, n_batches=n_batches)
        if model is None
        else judge_arriving(row, decision, settings)
        for row, decision in zip(rows, decisions, strict=True)
    ]
    columns, mover = verdict_columns(verdicts), mover_of(rule)
    return table.assign(
        level=[FIRST if place is None else NEARNESS[place.level] for place in places],
        verdict=[place_sentence(place, row) for place, row in zip(places, rows, strict=True)],
        advice_level=columns[
            "level"
        ],  # level is the nearness, so that of advice has its own column
        reasons=columns["reasons"],
        advice=[
            sentence(verdict, row, "the atlas", mover)
            for verdict, row in zip(verdicts, rows, strict=True)
        ],
    )


def _places(model: BatchProx | None, moments: Moments) -> dict[str, Any]:
    """Return how far batches lie from those of a model, and their spreads; unknown if it has none."""
    if model is None:
        return dict.fromkeys(("distance", "nearest_distance", "spread_ratio"), np.nan) | {
            "nearest": None
        }
    atlas = model.moments_
    total = atlas.pooled()
    least = min_spread(total)
    unit = np.maximum(total.std, least)
    place = (moments.mean - total.mean) / unit
    apart = cdist(place, (atlas.mean - total.mean) / unit) / np.sqrt(atlas.n_dims)
    within = np.maximum(np.sqrt(atlas.m2.sum(0) / atlas.n_cells), least)
    ratio = np.clip(np.maximum(moments.std, least) / within, 1 / _MAX_RATIO, _MAX_RATIO)
    spread_ratio = np.exp(np.log(ratio).mean(1))
    spread_ratio[moments.n < 2] = np.nan  # a single cell has no spread
    return {
        "distance": np.sqrt((place**2).mean(1)),
        "nearest": atlas.batches[apart.argmin(1)],
        "nearest_distance": apart.min(1),
        "spread_ratio": spread_ratio,
    }


def refuse(judgement: pd.DataFrame, force: bool) -> bool:
    """Whether there are batches that must be forced, which are an error unless they are.

    The first batches never are.
    """
    levels = zip(judgement["advice_level"], judgement["level"], strict=True)
    found = judgement[[Level(level).needs_force and place != FIRST for level, place in levels]]
    if force or found.empty:
        return not found.empty
    row = found.iloc[0]
    others = f" (and {len(found) - 1} more)" * (len(found) > 1)
    # The verdict on a batch that is very far has the numbers; the advice does not repeat them.
    very_far = judge_place(row).level.needs_force
    words = row["verdict"] if very_far else f"with {row['advice']}"
    raise BadValue(
        f"Expected batches near the atlas, found {found.index.tolist()[0]!r}{others} {words}; nothing "
        f"was added, ", Parameter("force=True", "--force"), " adds it anyway.",
    )  # fmt: skip


def after_adding(model: BatchProx, more: Moments, policy: str) -> BatchProx:
    """Return the model after adding moments, as :meth:`BatchProx.partial_fit`; ``model`` does not change."""
    # A shallow copy is enough: fitting replaces attributes and never changes them.
    return copy.copy(model).partial_fit_moments(more, policy=policy)


def min_spread(total: Pooled) -> float:
    """The least spread of a coordinate."""
    return float(_MIN_SPREAD * np.sqrt(total.var.mean())) or 1.0


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
