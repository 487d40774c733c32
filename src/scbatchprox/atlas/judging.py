"""New cells judged before they are added: how far from what an atlas holds, and how differently spread.

Distances are root mean squares over the coordinates, in units of the atlas' spread (the standard
deviation of all its cells in each coordinate), so they mean the same for any number of coordinates and
any scale of the embedding. All is seen on unrefined coordinates.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist

from ..api.estimator import BatchProx
from ..core.checks import check_embedding, nonfinite_error, one_of
from ..core.moments import Moments, Pooled
from ..diagnosis.evidence import MATCHED, evidence_of
from ..diagnosis.table import DIFFERENT
from ..diagnosis.table import FAR as MOVED
from ..errors import BadValue
from ..kernels.arrays import Floats
from ..kernels.blocks import BLOCK_BYTES

__all__ = ["CELL_FAR", "FAR", "VERY_FAR", "VERY_WIDE", "WIDE", "cell_scores", "grown", "judge"]

# On five real data sets (docs/atlas.md), each batch judged against the others: batches whose embedding has
# them overlap lie within 0.9 spreads and a factor of 1.5 of the others' width; the two that theirs separates
# completely lie 1.8 and 4.5 spreads apart, at factors of 2.4.
#: Batches whose mean lies further than this many spreads from the atlas are called far.
FAR = 1.5
#: Beyond this many spreads a batch is refused unless forced: even two normal clouds of the atlas' own
#: spread would hardly overlap in any coordinate.
VERY_FAR = 3.0
#: Batches wider or narrower than those of the atlas by more than this factor are called so. One cell
#: type alone is about this much narrower than a tissue.
WIDE = 2.0
#: Beyond this factor a batch is refused unless forced: it is probably on another scale altogether.
VERY_WIDE = 4.0
#: Cells further than this from every batch are flagged. A cell of a normal cloud passes it with a
#: probability of 1 % in one coordinate, 0.2 % in two and practically never in ten.
CELL_FAR = 2.5

#: One coordinate that is constant in a batch must not decide about its width alone.
_MOST_RATIO = 1e3
#: A batch counts as at least this wide, in spreads of the atlas, when cells are held against it: a batch
#: of a few cells says little about its own width.
_LEAST_WIDTH = 0.1
#: Where a coordinate has no spread at all, this share of the others' stands in.
_FLOOR = 1e-6


def judge(model: BatchProx | None, moments: Moments, policy: str = "frozen") -> pd.DataFrame:
    """Judge new batches by their moments, one row per batch.

    ``distance`` is that of the batch's mean to the mean of all cells and ``nearest_distance`` that to the
    ``nearest`` known batch, both in spreads of the atlas; ``spread_ratio`` is its standard deviation over
    that within batches of the atlas (geometric mean over coordinates); ``moved`` is how far the adapter would
    move its cells, over the batch's own spread. ``level`` is "close", "far", "very far", or "first" if
    there is nothing to compare with, and ``verdict`` says why in words. ``advice`` is ``safe``, ``move with
    care: ...`` or ``leave alone: ...``. An atlas of populations also knows ``matched``, the part of the
    batch's cells that are like something in it.
    """
    return judged(model, moments, grown(model, moments, policy))


def judged(model: BatchProx | None, arriving: Moments, after: BatchProx) -> pd.DataFrame:
    """:func:`judge`, given the model that would follow."""
    moments = arriving.by_batch
    moved = after.movement_of(arriving)["relative"]
    table = pd.DataFrame({"n_cells": moments.n, "moved": moved.to_numpy()}, index=moved.index)
    if model is None:
        empty = dict.fromkeys(("distance", "nearest_distance", "spread_ratio"), np.nan)
        only = "first: there is nothing yet to compare it with"
        return table.assign(**empty, nearest=None, level="first", verdict=only, advice="safe")
    atlas = model.moments_
    total = atlas.pooled()
    floor = _floor(total)
    unit = np.maximum(total.std, floor)
    place = (moments.mean - total.mean) / unit
    apart = cdist(place, (atlas.mean - total.mean) / unit) / np.sqrt(atlas.n_dims)
    within = np.maximum(np.sqrt(atlas.m2.sum(0) / atlas.n_cells), floor)
    ratio = np.clip(np.maximum(moments.std, floor) / within, 1 / _MOST_RATIO, _MOST_RATIO)
    spread_ratio = np.exp(np.log(ratio).mean(1))
    spread_ratio[moments.n < 2] = np.nan  # a single cell has no spread
    table = table.assign(
        distance=np.sqrt((place**2).mean(1)),
        nearest=atlas.batches[apart.argmin(1)],
        nearest_distance=apart.min(1),
        spread_ratio=spread_ratio,
    )
    levels, words = zip(*(_verdict(row) for row in table.to_dict("records")), strict=True)
    table = table.assign(level=levels, verdict=words)
    by_mean = np.zeros(len(table), bool)
    if after.fit_.consensus is not None and after.strength > 0:
        found = evidence_of(after.fit_, arriving, after.fit_.reference.batches)
        by_mean = found.by_mean
        table.insert(2, "matched", found.matched)
    records = zip(table.to_dict("records"), by_mean, strict=True)
    return table.assign(advice=[_advice(row, alone) for row, alone in records])


def _advice(row: dict[str, Any], by_mean: bool) -> str:
    """Whether to let the adapter move a new batch, in words."""
    matched = row.get("matched", 1.0)
    if row["level"] == "very far":
        return "leave alone: it is very far from all that the atlas holds"
    if matched < MATCHED and not by_mean:
        return f"leave alone: {1 - matched:.0%} of its cells have nothing like them in the atlas"
    care = []
    if row["level"] == "far":
        care.append("it is far from all that the atlas holds")
    if by_mean:
        care.append("it lies apart, and only its mean and shape speak for moving it")
    elif matched < 1 - DIFFERENT:
        care.append(f"{1 - matched:.0%} of its cells have nothing like them in the atlas")
    if row["moved"] > MOVED:
        care.append(f"cells move by {row['moved']:.2f} of its spread")
    return f"move with care: {'; '.join(care)}" if care else "safe"


def refuse(judgement: pd.DataFrame) -> None:
    """Raise an error if a batch is very far from the atlas."""
    beyond = judgement[judgement["level"] == "very far"]
    if len(beyond):
        batch, words = beyond.index.tolist()[0], beyond["verdict"].tolist()[0]
        others = f" (and {len(beyond) - 1} more like it)" * (len(beyond) > 1)
        raise BadValue(
            f"Expected batches near the atlas, found {batch!r}{others} {words}; nothing was added, "
            f"force=True (--force) adds it all the same."
        )


def cell_scores(moments: Moments, Z: Any) -> Floats:
    """How far each cell (N, d) is from everything that is known: 1 is usual, see ``CELL_FAR``.

    The smallest, over batches, of the root mean squared standardised distance to the batch's mean in its
    own standard deviations. Cells are not refined first: a new batch has no row of its own yet.
    """
    Z = check_embedding(Z)
    if Z.shape[1] != moments.n_dims:
        raise BadValue(f"Expected {moments.n_dims} coordinates per cell, found {Z.shape[1]}.")
    total = moments.pooled()
    unit = np.maximum(total.std, _floor(total))
    center = (moments.mean - total.mean) / unit
    weight = 1.0 / np.maximum(moments.std / unit, _LEAST_WIDTH) ** 2
    # Squares written out, as two products of matrices. About the atlas' mean and with bounded weights
    # nothing cancels that matters.
    linear, constant = 2.0 * center * weight, (center**2 * weight).sum(1)
    scores = np.empty(Z.shape[0])
    step = max(1, 4 * BLOCK_BYTES // (8 * (moments.batches.size + 2 * moments.n_dims)))
    for lo in range(0, Z.shape[0], step):
        block = Z[lo : lo + step]
        block = block.toarray() if hasattr(block, "toarray") else block
        with np.errstate(invalid="ignore", over="ignore"):
            x = (block - total.mean) / unit
            squared = (x**2) @ weight.T - x @ linear.T + constant
        scores[lo : lo + step] = np.sqrt(np.maximum(squared.min(1), 0.0) / moments.n_dims)
    if not np.isfinite(scores).all():
        raise nonfinite_error(Z)
    return scores


def grown(
    model: BatchProx | None, more: Moments, policy: str, blank: BatchProx | None = None
) -> BatchProx:
    """Return the model after taking in more moments; ``model`` stays as it is.

    What :meth:`BatchProx.partial_fit` does, from moments; ``blank`` is what a first arrival is fitted by.
    """
    # A copy's attributes are replaced, never changed, so the model itself stays as it is.
    after = BatchProx() if model is None and blank is None else copy.copy(model or blank)
    assert after is not None
    return after.partial_fit_moments(more, policy=policy)


def shrunk(model: BatchProx, batch: Any, policy: str) -> BatchProx:
    """Return the model without a batch; ``"refit"`` fits the others together."""
    one_of("policy", policy, ("frozen", "refit"))
    after = copy.copy(model)
    if policy == "refit":
        return after.fit_moments(model.fit_.moments.drop(batch))
    return after.forget(batch)


def _floor(total: Pooled) -> float:
    return float(_FLOOR * np.sqrt(total.var.mean())) or 1.0


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    # Near one known batch is near the atlas, wherever the mean of all cells lies.
    distance = min(row["distance"], row["nearest_distance"])
    ratio = 1.0 if np.isnan(row["spread_ratio"]) else row["spread_ratio"]
    factor = max(ratio, 1 / ratio)
    reasons = []
    if distance > FAR:
        reasons.append(f"its mean lies {distance:.3g} spreads away (up to {FAR:g} is close)")
    if factor > WIDE:
        way = "wider" if ratio > 1 else "narrower"
        reasons.append(
            f"it is {factor:.3g} times {way} than the atlas' batches (up to {WIDE:g} is close)"
        )
    if distance > VERY_FAR or factor > VERY_WIDE:
        return "very far", "very far: " + " and ".join(reasons)
    if reasons:
        return "far", "far: " + " and ".join(reasons)
    return "close", f"close: its mean lies {distance:.2f} spreads away"
