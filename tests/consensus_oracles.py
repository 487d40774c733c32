"""A round of registration in plain loops: one seeding, batch, population and centre at a time.

A batch is a list of positions and a list of weights; a centre is a pair of a mass and a total. There is no
padding and no stacking. Least squares gives the field, and a scan its smooth part.
"""

import math

import numpy as np

#: Masses below this are zero; parts of other batches below this are zero; weight at all centres.
NONE, NEGLIGIBLE, LEAK = 1e-12, 1e-4, 1e-6


def distance2(a, b):
    """Squared distance of two points, by differences."""
    return sum((p - q) ** 2 for p, q in zip(a.tolist(), b.tolist(), strict=True))


def nonempty(centres):
    """{number: position} of the centres that have any mass."""
    return {k: total / mass for k, (mass, total) in enumerate(centres) if mass > NONE}


def softmax(exponent):
    """{key: weight} for {key: exponent}; exponents may all be very small."""
    if not exponent:
        return {}
    top = max(exponent.values())
    part = {key: math.exp(value - top) for key, value in exponent.items()}
    return {key: value / sum(part.values()) for key, value in part.items()}


def assigned(y, w, centres, unit, temperature):
    """Weights {(p, k)} of one batch at the centres, and its mass and total at each of them."""
    at, K = nonempty(centres), len(centres)
    L = {
        (p, k): -distance2(y[p], c) / (unit * temperature)
        for p in range(len(y))
        for k, c in at.items()
    }
    nearest_centre = [softmax({k: L[p, k] for k in at}) for p in range(len(y))]
    nearest_population = {k: softmax({p: L[p, k] for p in range(len(y))}) for k in at}
    W = {(p, k): nearest_centre[p][k] * nearest_population[k][p] for p, k in L}
    own = []
    for k in range(K):
        mass, total = 0.0, np.zeros(len(y[0]))
        for p in range(len(y)):
            if k in at:
                share = w[p] * (W[p, k] + LEAK * nearest_centre[p][k])
                mass, total = mass + share, total + share * y[p]
        own.append((mass, total))
    return W, own


def without(all_sums, own):
    """Centres of all other batches; empty where these have a negligible part."""
    rest = []
    for (mass, total), (less, taken) in zip(all_sums, own, strict=True):
        left = mass - less
        rest.append((left if left > NEGLIGIBLE * mass else 0.0, total - taken))
    return rest


def goals(y, v, W, own, all_sums, unit, temperature, usual, power):
    """For each population of a batch, the displacement that it is pulled to and the evidence for it."""
    found = []
    others, mine = nonempty(without(all_sums, own)), without(all_sums, own)
    for p in range(len(y)):
        evidence, pulled = 0.0, np.zeros(len(y[p]))
        for k, place in others.items():
            pull = place - own[k][1] / max(own[k][0], NONE)
            far = float(pull @ pull) / unit * usual / temperature
            strength = mine[k][0] / all_sums[k][0] / (1.0 + far) ** power
            evidence += W[p, k] * strength
            pulled += W[p, k] * strength * pull
        found.append((v[p] + pulled / max(evidence, NONE), evidence))
    return found


def covariance(x, unit, length):
    """(P, P) of a shift of variance 1 and a smooth part of variance 1, between populations."""
    return np.array([
        [1.0 + math.exp(-distance2(p, q) / (2.0 * length * unit)) for q in x] for p in x
    ])  # fmt: skip


def field(K, goal, weight, v, prior, damping):
    """Least squares for ``sum w |f - g|^2 + prior |f|^2 + damping |f - v|^2``, norms those of K.

    With K = F F', a field F a has the squared norm |a|^2. Without prior and damping it is the smallest of
    the fields that are nearest to the goal.
    """
    values, vectors = np.linalg.eigh(K)
    keep = values > 1e-11 * values.max()
    F = vectors[:, keep] * np.sqrt(values[keep])
    before = np.linalg.lstsq(F, v, rcond=None)[0]
    root, eye = np.sqrt(weight)[:, None], np.eye(F.shape[1])
    rows = np.r_[root * F, math.sqrt(prior) * eye, math.sqrt(damping) * eye]
    right = np.r_[root * goal, 0.0 * before, math.sqrt(damping) * before]
    return F @ np.linalg.lstsq(rows, right, rcond=None)[0]


def shift(goal, weight, v, prior, damping):
    """The same for fields that are shifts: one vector for the whole batch, of norm 1."""
    return field(np.ones((len(goal), len(goal))), goal, weight, v, prior, damping)


def pairs(x, w, neighbours):
    """(weight, p, q) of every population and each of the nearest others."""
    found = []
    for p in range(len(x)):
        others = sorted((distance2(x[p], x[q]), q) for q in range(len(x)) if q != p)
        found += [(w[p], p, q) for _, q in others[:neighbours]]
    return found


def contraction_limited(x, w, v, apart, neighbours):
    """The field with the largest smooth part that preserves enough of the distance of neighbours."""
    mean = sum(a * b for a, b in zip(w, v, strict=True)) / sum(w)
    tied = pairs(x, w, neighbours)

    def enough(theta):
        y = [p + mean + theta * (f - mean) for p, f in zip(x, v, strict=True)]
        after = sum(a * distance2(y[p], y[q]) for a, p, q in tied)
        return after >= apart * sum(a * distance2(x[p], x[q]) for a, p, q in tied)

    if enough(1.0):
        return v
    grid = np.linspace(0.0, 1.0, 1001)
    low = next(theta for theta in grid[::-1] if enough(theta))
    high = low + 1e-3
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if enough(middle) else (low, middle)
    return np.array([mean + low * (f - mean) for f in v])


def updated(x, w, v, centres, all_sums, unit, temperature, settings, prior, damping, smooth):
    """The field of one batch after one round."""
    y = [p + f for p, f in zip(x, v, strict=True)]
    W, own = assigned(y, w, centres, unit, temperature)
    usual, power = settings.temperature, settings.power
    found = goals(y, v, W, own, all_sums, unit, temperature, usual, power)
    goal = np.array([g for g, _ in found])
    weight = np.array([a * e for a, (_, e) in zip(w, found, strict=True)])
    if not smooth:
        return shift(goal, weight, v, prior, damping)
    moved = field(covariance(x, unit, settings.length), goal, weight, v, prior, damping)
    return contraction_limited(x, w, moved, settings.apart, settings.neighbours)


def fit(x, w, rest, unit):
    """Closeness of populations to the centres of others plus that of the centres to them, 0 to 2."""
    at = nonempty(rest)
    if not at:
        return 0.0
    near = {
        (p, k): math.exp(-distance2(x[p], c) / unit) for p in range(len(x)) for k, c in at.items()
    }
    here = sum(w[p] * max(near[p, k] for k in at) for p in range(len(x))) / sum(w)
    there = sum(rest[k][0] * max(near[p, k] for p in range(len(x))) for k in at)
    return here + there / sum(rest[k][0] for k in at)


def kmeans_step(batches, centres):
    """Centres of the populations [(position, weight)] that are nearest to each centre."""
    at, found = nonempty(centres), [(0.0, 0.0 * total) for _, total in centres]
    for y, w in batches:
        k = min(at, key=lambda k: distance2(y, at[k]))
        found[k] = found[k][0] + w, found[k][1] + w * y
    return found


def divided(batches, middle, planes):
    """Centres of the populations [(position, weight)] in each part of space between planes (d, m)."""
    m = planes.shape[1]
    found = [(0.0, np.zeros(len(middle))) for _ in range(2**m)]
    for y, w in batches:
        code = sum(2**j for j in range(m) if float((y - middle) @ planes[:, j]) > 0)
        found[code] = found[code][0] + w, found[code][1] + w * y
    return found
