"""The shifts that batches start their registration from."""

from __future__ import annotations

import numpy as np

from ...core.exchange import Rounds, joined
from ...kernels.arrays import Floats
from .batches import Batches
from .consensus import Strengths
from .run import Run
from .sums import NONE, Sums

__all__ = ["beats_mirror_images", "starting_shifts"]

#: The best possible fit of a batch.
BEST_FIT = 2.0


def starting_shifts(
    batches: Batches, strengths: Strengths, seed: int, fixed: Sums | None = None
) -> Rounds[Floats]:
    """(B, d) shifts that batches start from.

    Two runs without a smooth part are compared: one starts from the given positions, the other from a
    common mean. The run in which batches fit each other better is the base. A batch that fits the batches of
    the base better from the other start takes that start. Then its common mean is that of the other
    batches. The choice does not depend on the weights that users set.
    """
    settings, means = batches.settings, batches.means()
    share = batches.share if fixed is None else np.zeros(len(means))
    common = 0.0 if fixed is None else fixed.total[0].sum(0) / fixed.mass[0].sum()
    to_mean = common - means
    default, seeds = Strengths(settings.prior, 0.0), np.array([seed])
    runs = [
        Run(batches, start, default, seeds, fixed).iterate(0)
        for start in (np.zeros_like(means), to_mean)
    ]
    in_place, centred = yield from joined(runs, on_threads=batches.many)
    fit_in_place, fit_centred = in_place.fits(in_place.shift), centred.fits(centred.shift)
    fits = np.array([fit_in_place.sum(), fit_centred.sum()])
    if fixed is None:
        fits = yield fits
    mean_in_place, mean_centred = fits / batches.everyone.n_batches
    use_mean = mean_centred > settings.better * mean_in_place
    if use_mean:
        start, base, fit = to_mean, centred, fit_centred
        use = centred.fits(in_place.shift) <= settings.better * fit_centred
    else:
        # The mean of the other batches, whose positions do not change; then the same path as from the mean.
        start, base = to_mean / np.maximum(1.0 - share, NONE)[:, None], in_place
        fit = in_place.fits(start + (centred.shift - to_mean))
        use = fit > settings.better * fit_in_place
    distant = use & (fit_in_place < settings.lonely)
    if distant.any():
        use[distant] = beats_mirror_images(base, start)[distant]
    # The identity term reduces the start too, the less the more evidence there is.
    evidence = np.where(use, batches.sizes * fit / BEST_FIT, 0.0)
    if use_mean:
        weight = np.where(use, share, 0.0)
        sums = np.array([use.sum(), evidence.sum(), weight.sum(), *(weight @ means)])
        if fixed is None:
            # The common mean is that of the batches that start from it; it takes at least two of them.
            sums = yield sums
            use &= sums[0] > 1
            _, _, total, *weighted = sums if sums[0] > 1 else np.zeros_like(sums)
            start = np.array(weighted) / max(float(total), NONE) - means
        # Batches that start from a common mean share their evidence, so that they stay together.
        evidence = np.where(use, sums[1] / max(sums[0], 1.0), 0.0)
    kept: Floats = evidence / np.maximum(evidence + strengths.prior, NONE)
    return kept[:, None] * start


def beats_mirror_images(run: Run, shift: Floats) -> np.ndarray:
    """(B,) whether a shifted batch fits the others clearly better than its mirror images do.

    A batch that is mirrored in random coordinates keeps its mean and variances but not its shape. If a
    mirror image fits as well, equal means are no evidence of a match. A poor fit must be much better.
    """
    rng, settings = np.random.default_rng(0), run.settings
    flips = [rng.choice([-1.0, 1.0], shift.shape[1]) for _ in range(settings.mirrors)]
    fit = run.fits(shift)
    # A flip without any -1 is the batch itself.
    mirrored = [run.fits(shift, flip) for flip in flips if (flip < 0).any()]
    best = np.max([np.zeros_like(fit), *mirrored], axis=0)
    clear = (fit > settings.good) | (fit > settings.clear * best)
    return np.asarray(clear & (fit > best))
