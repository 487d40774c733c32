"""Populations of batches, and sites that only exchange sums."""

import numpy as np

from scbatchprox.core.exchange import alone
from scbatchprox.targets.population import registration
from scbatchprox.targets.population.batches import Batches
from scbatchprox.targets.population.consensus import Strengths
from scbatchprox.targets.population.run import Run
from scbatchprox.targets.population.settings import PopulationSettings
from scbatchprox.targets.population.start import beats_mirror_images
from scbatchprox.targets.population.sums import Sums

SETTINGS = PopulationSettings()


def register(X, n, start, variance, *options, **named):
    """Register batches that are all in this process."""
    within = variance * n.sum()
    return alone(registration.register(X, n, start, within, *options, **named))[:2]


def register_to(*options):
    """Displacements of one batch that is registered to a consensus."""
    return registration.register_to(*options)[0]


class Planted:
    """Populations of types at common positions, a few of each, in shifted batches.

    ``types_of[b]`` are the types of batch b. Types are about ``sep`` from each other, and the populations of
    a type about 1.
    """

    def __init__(self, seed, types_of, shifts=None, d=8, each=4, sep=8.0, noise=0.15):
        rng = np.random.default_rng(seed)
        T = 1 + max(max(types) for types in types_of)
        types = sep / np.sqrt(2.0 * d) * rng.normal(size=(T, d))
        self.places = types[:, None] + rng.normal(size=(T, each, d)) / np.sqrt(2.0 * d)
        shifts = np.zeros((len(types_of), d)) if shifts is None else np.asarray(shifts)
        parts = [
            self.places[types].reshape(-1, d)
            + shift
            + noise * rng.normal(size=(each * len(types), d)) / np.sqrt(2.0 * d)
            for types, shift in zip(types_of, shifts, strict=True)
        ]
        sizes = [len(part) for part in parts]
        self.X = np.concatenate(parts)
        self.n = rng.integers(10, 40, len(self.X))
        self.start = np.concatenate([[0], np.cumsum(sizes)])
        self.kind = np.concatenate([np.repeat(types, each) for types in types_of])
        self.which = np.concatenate([np.tile(np.arange(each), len(t)) for t in types_of])
        self.batch = np.repeat(np.arange(len(sizes)), sizes)

    @property
    def truth(self):
        """(P, d) positions of all populations without shift and noise."""
        return self.places[self.kind, self.which]

    def rows(self, order):
        """Populations of batches in another order, and where the batches then start."""
        rows = np.concatenate([np.arange(self.start[b], self.start[b + 1]) for b in order])
        return rows, np.concatenate([[0], np.cumsum(np.diff(self.start)[order])])


class Site:
    """A site with some batches, which only sends sums of them."""

    def __init__(self, X, n, start):
        self.X, self.n, self.start = X, n, start

    def spacing(self):
        """Sums for the mean squared distance to the nearest population of the same batch."""
        squares = cells = 0.0
        for lo, hi in zip(self.start[:-1], self.start[1:], strict=True):
            for p in range(lo, hi) if hi - lo > 1 else []:
                squares += self.n[p] * min(
                    ((self.X[p] - self.X[q]) ** 2).sum() for q in range(lo, hi) if q != p
                )
                cells += self.n[p]
        return np.array([squares, cells])


def added(parts):
    mass, total = zip(*parts, strict=True)
    return Sums(sum(mass), sum(total))


class Server:
    """Registers the batches of sites to each other; it only adds the sums that they send."""

    def __init__(self, sites, strengths, settings=SETTINGS, seed=0):
        self.sites, self.strengths, self.settings, self.seed = sites, strengths, settings, seed
        total = sum(site.n @ site.X for site in sites)
        self.origin = total / sum(site.n.sum() for site in sites)
        squares, cells = sum(site.spacing() for site in sites)
        self.unit = squares / cells
        self.batches = [
            Batches(site.X - self.origin, site.n, site.start, self.unit, settings) for site in sites
        ]
        populations = sum(len(site.X) for site in sites)
        self.n_batches = sum(len(site.start) - 1 for site in sites)
        wanted = max(settings.few_centres, settings.centres * populations / self.n_batches)
        self.planes = int(np.ceil(np.log2(wanted)))

    def register(self, rounds):
        """Displacements of each site's populations."""
        runs = self.run(self.starts(), range(self.seed, self.seed + self.settings.seedings), rounds)
        return [run.displacement.mean(0) for run in runs]

    def run(self, starts, seeds, rounds, strengths=None):
        seeds, s, strengths = np.array(seeds), self.settings, strengths or self.strengths
        runs = [
            Run(batches, start, strengths, seeds)
            for batches, start in zip(self.batches, starts, strict=True)
        ]
        steps = [(t, False) for t in s.coarse] + [(s.temperature, True)] * rounds
        for count, (temperature, smooth) in enumerate(steps):
            if count % s.renew == 0:
                centres = self._seeded(runs, count)
            self._exchange(runs, centres, temperature)
            for run in runs:
                run.fields = [
                    stack.updated(v, assigned, run.all_sums, temperature, strengths, smooth)
                    for stack, v, assigned in zip(
                        run.stacks, run.fields, run.assignments, strict=True
                    )
                ]
            centres = runs[0].all_sums
        self._exchange(runs, centres, s.temperature)
        return runs

    def starts(self):
        """Shifts that batches start from, by sums of fits, evidence, and means."""
        s, usual = self.settings, Strengths(self.settings.prior, 0.0)
        means = [batches.means() for batches in self.batches]
        cells = sum(site.n.sum() for site in self.sites)
        share = [np.add.reduceat(site.n, site.start[:-1]) / cells for site in self.sites]
        zero, middle = [0.0 * mean for mean in means], [-mean for mean in means]
        here, there = (self.run(start, [self.seed], 0, usual) for start in (zero, middle))
        fits = [[run.fits(run.shift) for run in runs] for runs in (here, there)]
        total = [sum(fit.sum() for fit in some) for some in fits]
        together = total[1] > s.better * total[0]
        parts = []
        for i, (h, t) in enumerate(zip(here, there, strict=True)):
            if together:
                start, fit, base = middle[i], fits[1][i], t
                use = t.fits(h.shift) <= s.better * fit
            else:
                start, base = middle[i] / (1.0 - share[i])[:, None], h
                fit = h.fits(start + (t.shift - middle[i]))
                use = fit > s.better * fits[0][i]
            apart = use & (fits[0][i] < 0.1)
            use[apart] = beats_mirror_images(base, start)[apart]
            parts.append((start, use, np.where(use, self.batches[i].sizes * fit / 2.0, 0.0)))
        if together:
            count, all_of_it = (
                sum(use.sum() for _, use, _ in parts),
                sum(e.sum() for *_, e in parts),
            )
            weight = sum((share[i] * use).sum() for i, (_, use, _) in enumerate(parts))
            mean = sum((share[i] * use) @ means[i] for i, (_, use, _) in enumerate(parts)) / weight
            parts = [
                (mean - means[i], use, np.where(use & (count > 1), all_of_it / count, 0.0))
                for i, (_, use, _) in enumerate(parts)
            ]
        return [
            (evidence / (evidence + self.strengths.prior))[:, None] * start
            for start, _, evidence in parts
        ]

    @staticmethod
    def _exchange(runs, centres, temperature):
        for run in runs:
            run.assignments = [
                stack.assigned(v, centres, temperature)
                for stack, v in zip(run.stacks, run.fields, strict=True)
            ]
        all_sums = added(assigned.sums for run in runs for assigned in run.assignments)
        for run in runs:
            run.all_sums = all_sums

    def _seeded(self, runs, count):
        d, pairs = len(self.origin), [p for r in runs for p in zip(r.stacks, r.fields, strict=True)]
        seeds = runs[0].seeds
        planes = np.stack([
            np.random.default_rng([seed, count]).normal(size=(d, self.planes)) for seed in seeds
        ])  # fmt: skip
        origin = np.zeros((len(seeds), d))
        whole = added(stack.divided(v, origin, planes[:, :, :0]) for stack, v in pairs)
        centres = added(stack.divided(v, whole.mean[:, 0], planes) for stack, v in pairs)
        for _ in range(self.settings.steps):
            centres = added(stack.kmeans_step(v, centres) for stack, v in pairs)
        return centres
