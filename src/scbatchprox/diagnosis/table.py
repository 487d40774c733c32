"""What a refinement does or would do to each batch, and a verdict in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.target import Cells
from ..kernels.arrays import Floats, Ints
from ..kernels.distances import squared_distances
from ..kernels.kmeans import kmeans
from ..targets.population.find import looked_at
from .evidence import MATCHED, Evidence, evidence
from .quick_look import QuickLook

__all__ = ["diagnosis", "quick_warning", "unlike"]

#: Joint groups that compositions are compared on, and rounds of the k-means that finds them.
GROUPS, ROUNDS = 20, 10
#: Compositions further apart than these are different, and unlike (0 is the same, 1 shares nothing).
DIFFERENT, UNLIKE = 0.3, 0.6
#: Joint groups, all of ``GROUPS``, that explain less of the variance than this blur into each other.
BLURRED = 0.5
#: Cells moving by more than this part of their batch's spread, or scaled by more than this factor.
FAR, STRETCHED = 0.5, 1.5
#: Neighbours looked at, cells they are looked up among, and the share of them that should be kept.
NEIGHBOURS, LOOKED_AT, KEPT = 15, 2000, 0.5
#: Batches of fewer cells than this have no composition to speak of.
FEW = 20


def diagnosis(fit: Fit, cells: Cells, *, seed: int = 0) -> pd.DataFrame:
    """:func:`scbatchprox.diagnose` for a fit and its cells, wherever they are."""
    sample = cells.sample(looked_at(cells.labels.n), seed)
    labels = sample.labels
    some = MemoryCells(sample.cells, labels)
    found = evidence(fit, some, seed)
    at = np.searchsorted(found.populations.batches, labels.batches)
    # By position: labels may be booleans, which pandas takes for a mask.
    movement = fit.adapter.movement(fit.moments).iloc[
        np.searchsorted(fit.moments.batches, labels.batches)
    ]
    composition, distinct = _composition(found, seed)
    table = pd.DataFrame(
        {
            "n_cells": cells.labels.n,
            "moved": movement["relative"].to_numpy(),
            "scale_min": movement["scale_min"].to_numpy(),
            "scale_max": movement["scale_max"].to_numpy(),
            "matched": found.matched[at],
            "composition": composition[at],
            "distinct": distinct,
            "neighbours_kept": _neighbours_kept(fit.adapter, some),
        },
        index=movement.index,
    )
    by_moments = not fit.method.rule.registers
    table["verdict"] = [
        _verdict(row, by_moments, by_mean)
        for row, by_mean in zip(table.to_dict("records"), found.by_mean[at], strict=True)
    ]
    return table


def unlike(fit: Fit, table: pd.DataFrame) -> str | None:
    """Return what to warn of when batches that differ in composition are refined all the same."""
    if table["n_cells"].median() < FEW:
        return None
    by_moments = not fit.method.rule.registers
    blurred = bool(_blurred(table["distinct"]).any())
    odd = table.index[table["composition"] > DIFFERENT].tolist() if by_moments or blurred else []
    if not odd:
        return None
    named = ", ".join(map(str, odd[:5])) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
    said = f"Batches differ in composition ({named})"
    if not blurred:
        return (
            f"{said}: the moment target moves unlike populations on top of each other; see the diagnosis, "
            f"and try target='population'."
        )
    return (
        f"{said} and their populations blur into each other: no target can tell like from unlike; see the "
        f"diagnosis, and compare with the unrefined embedding."
    )


def quick_warning(fit: Fit, look: QuickLook, labels: Labels) -> str | None:
    """:func:`unlike` for a glance at the batches of ``labels``, all cells of them."""
    table = pd.DataFrame(
        {"n_cells": labels.n, "composition": look.composition, "distinct": look.distinct},
        index=labels.batches,
    )
    return unlike(fit, table)


def _composition(found: Evidence, seed: int) -> tuple[Floats, float]:
    """(B,) total variation between a batch's make-up and that of all others, less what chance explains.

    Compared on groups of the consensus' centres. Populations are in a group as a whole, so chance is that
    of drawing as many as there are, not as many as there are cells. Unknown (NaN) for a batch that was not
    brought together with the others. And the part of the variance of cells that is between these groups.
    """
    populations = found.populations
    shift = np.full(populations.batches.size, np.nan)
    known = found.matched >= MATCHED
    if known.sum() < 2:
        return shift, np.nan
    keep = known[populations.batch]
    n, batch = populations.n[keep], (np.cumsum(known) - 1)[populations.batch[keep]]
    X = found.moved[keep]
    X = X - np.average(X, axis=0, weights=n)
    most = int(np.clip(n.size // known.sum() // 3, 2, GROUPS))
    centres, mass = found.consensus.sums.mean[0], found.consensus.mass[0]
    C = np.where(mass[:, None] > 0, centres - np.average(centres, axis=0, weights=mass), 0.0)
    joint = kmeans(C.astype(np.float32), mass, most, ROUNDS, np.random.default_rng(seed))
    group = squared_distances(C, joint).argmin(1)[found.centre[keep]]
    held, squares = np.zeros((2, known.sum(), len(joint)))
    np.add.at(held, (batch, group), n)
    np.add.at(squares, (batch, group), n.astype(np.float64) ** 2)
    of_batch = held.sum(1, keepdims=True)
    drawn = of_batch**2 / squares.sum(1, keepdims=True)
    own, rest = held / of_batch, (held.sum(0) - held) / (of_batch.sum() - of_batch)
    chance = np.sqrt(2.0 * rest * (1.0 - rest) / (np.pi * drawn)).sum(1) / 2.0
    apart = np.abs(own - rest).sum(1) / 2.0
    shift[known] = np.sqrt(np.maximum(apart**2 - chance**2, 0.0))
    # A few groups explain little of many types, however far apart these are.
    distinct = np.nan if most < GROUPS else _distinct(X, n, group, populations.m2[keep])
    return shift, distinct


def _distinct(X: Floats, n: Ints, group: Ints, m2: Floats) -> float:
    """Part of the variance that is between groups of populations at ``X``, which lie about the origin."""
    sums = np.zeros((GROUPS, X.shape[1]))
    np.add.at(sums, group, n[:, None] * X)
    cells = np.bincount(group, weights=n, minlength=GROUPS)
    between = float(((sums**2).sum(1) / np.maximum(cells, 1.0)).sum())
    total = float(n @ (X**2).sum(1) + m2.sum())
    return between / total if total > 0 else np.nan


def _blurred(distinct: Any) -> Any:
    """Whether populations blur into each other; not, where that is not known."""
    return distinct < BLURRED


def _neighbours_kept(adapter: Adapter, some: MemoryCells) -> Floats:
    """(B,) share of the nearest neighbours in the own batch that a cell keeps, on some of the cells."""
    labels = some.labels
    refined = adapter.apply(some.Z, labels)
    kept = np.full(labels.batches.size, np.nan)
    most = max(LOOKED_AT // labels.batches.size, 10 * NEIGHBOURS)
    for b in range(labels.batches.size):
        rows: Ints = np.flatnonzero(labels.codes == b)[:most]
        k = min(NEIGHBOURS, len(rows) - 1)
        if k < 1:
            continue
        before, after = (_nearest(Z[rows], k) for Z in (some.Z, refined))
        kept[b] = (before[:, :, None] == after[:, None]).any(2).mean()
    return kept


def _nearest(Z: Any, k: int) -> Ints:
    """(m, k) the nearest others of a few hundred cells."""
    X = np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z, np.float64)
    X = X - X.mean(0)
    D = squared_distances(X, X)
    np.fill_diagonal(D, np.inf)
    near: Ints = np.argpartition(D, k - 1, axis=1)[:, :k]
    return near


def _verdict(row: dict[str, Any], by_moments: bool, by_mean: bool) -> str:
    """In words: what speaks against moving the batch, or for care."""
    apart, shift = 1.0 - row["matched"], row["composition"]
    if apart > 1.0 - MATCHED and not by_mean:
        return f"leave alone: {apart:.0%} of its cells have nothing like them in other batches"
    if by_moments and shift > UNLIKE:
        return (
            f"leave alone: its composition is unlike the others' ({shift:.2f}), and the moment target would "
            f"merge unlike populations"
        )
    if not by_moments and shift > DIFFERENT and _blurred(row["distinct"]) and row["n_cells"] >= FEW:
        return (
            f"leave alone: its composition differs ({shift:.2f}), and populations blur into each other "
            f"({row['distinct']:.0%} of the variance is between groups of them), so that like and unlike "
            f"cannot be told apart"
        )
    care = []
    if by_mean:
        care.append(
            "it lies apart from all others, and only its mean and shape speak for moving it"
        )
    elif apart > DIFFERENT:
        care.append(f"{apart:.0%} of its cells have no partners in other batches")
    if by_moments and shift > DIFFERENT:
        then = (
            "and populations blur into each other: no target can tell like from unlike"
            if _blurred(row["distinct"])
            else "of which target='population' takes account"
        )
        care.append(f"its composition differs ({shift:.2f}), {then}")
    if row["moved"] > FAR:
        care.append(f"cells move by {row['moved']:.2f} of its spread")
    if row["scale_max"] > STRETCHED or row["scale_min"] < 1 / STRETCHED:
        care.append(f"it is scaled by {row['scale_min']:.2f} to {row['scale_max']:.2f}")
    if row["neighbours_kept"] < KEPT:
        care.append(f"cells keep {row['neighbours_kept']:.0%} of their neighbours")
    return f"move with care: {'; '.join(care)}" if care else "safe"
