"""Meeting, agreement and turned copies in plain loops: one batch, population and centre at a time.

A batch is a list of positions and a list of numbers of cells. Sums at a centre are a pair of a mass and a
total. There is no padding and no stacking; distances are differences, and the field is least squares.
"""

import math

import numpy as np

#: Masses below this are zero, and so are parts of other batches below this.
NONE, NEGLIGIBLE = 1e-9, 1e-6


def distance2(a, b):
    """Squared distance of two points, by differences."""
    return sum((p - q) ** 2 for p, q in zip(a.tolist(), b.tolist(), strict=True))


def softmax(exponents):
    """Weights for a list of exponents, which may all be very small."""
    top = max(exponents)
    parts = [math.exp(value - top) for value in exponents]
    return [part / sum(parts) for part in parts]


def near_and_weights(y, n, centres, width):
    """[p][k] how near each centre is to each population; and that times how near p is to k in its batch."""
    P, K = range(len(y)), range(len(centres))
    L = [[-distance2(y[p], centres[k]) / width for k in K] for p in P]
    near = [softmax(L[p]) for p in P]
    own = [softmax([math.log(n[p]) + L[p][k] for p in P]) for k in K]
    return near, [[near[p][k] * own[k][p] for k in K] for p in P]


def sums(y, n, W, K):
    """[(mass, total)] of a batch at its centres."""
    return [
        (
            sum(n[p] * W[p][k] for p in range(len(y))),
            sum(n[p] * W[p][k] * y[p] for p in range(len(y))),
        )
        for k in range(K)
    ]


def without(all_sums, own):
    """[(mass, total)] of all other batches; none where these have a negligible part."""
    found = []
    for (mass, total), (less, taken) in zip(all_sums, own, strict=True):
        rest = mass - less
        there = rest > max(NEGLIGIBLE * mass, NONE)
        found.append((rest, total - taken) if there else (0.0, 0.0 * total))
    return found


def pull_weight(pull, unit):
    return 1.0 / (1.0 + float(pull @ pull) / unit) ** 2


def goals(x, y, n, W, own, all_sums, variance, unit):
    """For each centre: weight, goal, place; and the noise (K, K) of the goals.

    The goal is the displacement of the batch at the centre plus the others' share of the pull. Its noise is
    that of the mean of the batch there, of which populations are parts with variance over cells, and that of
    the mean of the others, which have as much noise for as many cells.
    """
    K, d, rest = len(own), len(x[0]), without(all_sums, own)
    weight, goal, place = np.zeros(K), np.zeros((K, d)), np.zeros((K, d))
    part, share, ratio = np.zeros((K, len(x))), np.zeros(K), np.zeros(K)
    for k in range(K):
        (mine, total), (others, elsewhere) = own[k], rest[k]
        if not (mine > NONE and others > 0):
            continue
        pull = elsewhere / others - total / mine
        part[k] = [n[p] * W[p][k] / mine for p in range(len(x))]
        share[k], ratio[k] = others / (mine + others), math.sqrt(mine / others)
        weight[k] = mine * share[k] * pull_weight(pull, unit)
        place[k] = sum(a * b for a, b in zip(part[k], x, strict=True))
        moved = sum(a * (q - p) for a, p, q in zip(part[k], x, y, strict=True))
        goal[k] = moved + share[k] * pull
    noise = np.zeros((K, K))
    for k in range(K):
        for j in range(K):
            overlap = sum(
                part[k, p] * part[j, p] * variance / n[p] for p in range(len(x))
            )  # of two means that share populations
            noise[k, j] = share[k] * share[j] * overlap * (1.0 + ratio[k] * ratio[j])
    return weight, goal, noise, place


def shares(weight):
    return [w / max(sum(weight), NONE) for w in weight]


def agreement(w, goal, noise, kernel=None):
    """S = sum over k != l of w_k w_l K_kl (g_k . g_l / d - V_kl), and its chance spread."""
    K, d, total, squares = range(len(w)), len(goal[0]), 0.0, 0.0
    for k in K:
        for j in K:
            if k != j:
                term = w[k] * w[j] * (float(goal[k] @ goal[j]) / d - noise[k][j])
                term *= 1.0 if kernel is None else kernel[k][j]
                total, squares = total + term, squares + term**2
    return total, math.sqrt(2.0 * squares)


def shift(weight, goal, noise):
    """The mean goal times the positive-part James-Stein factor, and the agreement."""
    w = shares(weight)
    mean = sum(a * g for a, g in zip(w, goal, strict=True))
    total, spread = agreement(w, goal, noise)
    pairs = sum(a * b for i, a in enumerate(w) for j, b in enumerate(w) if i != j)
    size = float(mean @ mean) / len(mean)
    factor = total / pairs / size if pairs > 1e-15 and size > 0 else 0.0
    return min(max(factor, 0.0), 1.0) * mean, total, spread


def smooth(weight, goal, noise, place, unit):
    """The agreement of goals about their mean, with weights that decrease with the distance of centres."""
    w, K = np.array(shares(weight)), len(weight)
    about = np.eye(K) - np.outer(np.ones(K), w)
    kernel = [[math.exp(-distance2(a, b) / (2.0 * unit)) for b in place] for a in place]
    return agreement(w, about @ goal, about @ noise @ about.T, kernel)


def support(x, unmoved, n, rest, copies, temperatures, unit):
    """Support of a batch, and of its copies: the best of two starts each; and of the batch unmoved.

    ``copies`` are positions about the mean of the batch, its own first; ``rest`` are sums of the others.
    """
    centres = [total / mass for mass, total in rest if mass > NONE]
    masses = [mass for mass, _ in rest if mass > NONE]
    if not centres or len(x) < 2:
        return 0.0, 0.0, 0.0
    share = [mass / sum(masses) for mass in masses]
    mean = sum(a * b for a, b in zip(n, x, strict=True)) / sum(n)
    common = sum(a * c for a, c in zip(share, centres, strict=True))
    scores = []
    for copy in copies:
        each = []
        # From nearer than the spacing of centres, both searches would find the same.
        for start in (mean, common) if distance2(mean, common) >= unit else (mean,):
            y = searched([p + start for p in copy], n, centres, temperatures, unit)
            each.append(meeting(y, n, centres, share, temperatures[-1], unit))
        scores.append(max(each))
    before = meeting(list(unmoved), n, centres, share, temperatures[-1], unit)
    return scores[0], sum(scores[1:]) / len(scores[1:]), before


def searched(y, n, centres, temperatures, unit):
    """Positions that are shifted as their matched populations are pulled, at each temperature."""
    for temperature in temperatures:
        _, W = near_and_weights(y, n, centres, unit * temperature)
        total, moved = 0.0, 0.0 * y[0]
        for c, (mass, where) in zip(centres, sums(y, n, W, len(centres)), strict=True):
            pull = c - where / max(mass, NONE)
            weight = mass * pull_weight(pull, unit * temperature / temperatures[-1])
            total, moved = total + weight, moved + weight * pull
        y = [p + moved / max(total, NONE) for p in y]
    return y


def meeting(y, n, centres, share, temperature, unit):
    """Root of the mean over pairs of centres, which count by their distance, of products of scores.

    The score of a centre: the part there that is matched, equal shares, and a short pull.
    """
    near, W = near_and_weights(y, n, centres, unit * temperature)
    own, cells, found = sums(y, n, W, len(centres)), sum(n), []
    for k, c in enumerate(centres):
        matched = own[k][0] / cells
        present = sum(n[p] * near[p][k] for p in range(len(y))) / cells
        part = min((matched + share[k]) / max(present + share[k], NONE), 1.0)
        balance = 4.0 * matched * share[k] / max(matched + share[k], NONE) ** 2
        close = pull_weight(c - own[k][1] / max(own[k][0], NONE), unit)
        found.append(part * balance * close)
    total = weights = 0.0
    for a, c in zip(found, centres, strict=True):
        for b, other in zip(found, centres, strict=True):
            apart = math.sqrt(distance2(c, other))
            total, weights = total + apart * a * b, weights + apart
    return math.sqrt(total / weights) if weights > 0 else 0.0


def field(x, goal, weight, v, length2, prior, damping):
    """Least squares for ``sum w |f - g|^2 + prior |f|^2 + damping |f - v|^2``, in the norm of a process.

    Its covariance is 1, a shift, plus a Gaussian of the squared length. With K = F F', a field F a has the
    squared norm |a|^2.
    """
    K = np.array([[1.0 + math.exp(-distance2(p, q) / (2.0 * length2)) for q in x] for p in x])
    values, vectors = np.linalg.eigh(K)
    keep = values > 1e-12 * values.max()
    F = vectors[:, keep] * np.sqrt(values[keep])
    before = np.linalg.lstsq(F, v, rcond=None)[0]
    root, eye = np.sqrt(weight)[:, None], np.eye(F.shape[1])
    rows = np.r_[root * F, math.sqrt(prior) * eye, math.sqrt(damping) * eye]
    right = np.r_[root * goal, 0.0 * before, math.sqrt(damping) * before]
    return F @ np.linalg.lstsq(rows, right, rcond=None)[0]


def about_neighbours(z, x, n, length2):
    """Values z of populations at x, less the mean of their neighbours: nearer and larger ones count more."""
    found = []
    for p in range(len(x)):
        weight = [
            m * np.exp(-distance2(x[p], q) / (2.0 * length2)) for q, m in zip(x, n, strict=True)
        ]
        found.append(z[p] - sum(w * u for w, u in zip(weight, z, strict=True)) / sum(weight))
    return np.array(found)


def population_goals(y, v, W, own, all_sums, width):
    """For each population, where the centres pull it, and how much of it is matched."""
    rest, found = without(all_sums, own), []
    for p in range(len(y)):
        matched, pulled = 0.0, 0.0 * y[p]
        for k, (mass, total) in enumerate(rest):
            if mass > 0:
                pull = total / mass - own[k][1] / max(own[k][0], NONE)
                weight = W[p][k] * mass / all_sums[k][0] * pull_weight(pull, width)
                matched, pulled = matched + weight, pulled + weight * pull
        found.append((v[p] + pulled / max(matched, NONE), matched))
    return found


def nearest(y, centres):
    """The number of the nearest centre."""
    return min(range(len(centres)), key=lambda k: distance2(y, centres[k]))


def kmeans_step(points, centres):
    """Means of the points [(position, cells)] nearest to each centre that has any."""
    groups = {}
    for y, n in points:
        groups.setdefault(nearest(y, centres), []).append((y, n))
    return [mean(groups[k]) for k in sorted(groups, key=lambda k: (-cells(groups[k]), k))]


def mean(group):
    return sum(n * y for y, n in group) / cells(group)


def cells(group):
    return sum(n for _, n in group)


def seeded(points, batches, K, n_axes, steps):
    """Centres: the means of the K largest regions between planes through the mean, then k-means.

    The planes are orthogonal to the leading principal axes of cells about the means of their batches.
    """
    middle = mean(points)
    covariance = sum(
        n * np.outer(y - mean(batch), y - mean(batch)) for batch in batches for y, n in batch
    ) / cells(points)
    axes = np.linalg.svd(covariance)[0].T[:n_axes]
    regions = {}
    for y, n in points:
        side = tuple(bool((y - middle) @ axis > 0) for axis in axes)
        regions.setdefault(side, []).append((y, n))
    # The origin decides on regions of the same size.
    order = sorted(
        (-cells(group), float(mean(group) @ mean(group)), key) for key, group in regions.items()
    )
    centres = [mean(regions[key]) for *_, key in order[:K]]
    for _ in range(steps):
        centres = kmeans_step(points, centres)
    return np.array(centres)


def composition(own, rest, n):
    """Total variation between shares of centres, less the mean of that of as many draws."""
    drawn = sum(n) ** 2 / sum(a * a for a in n)
    total = chance = 0.0
    for a, b in zip(own, rest, strict=True):
        p, q = a / sum(own), b / sum(rest)
        total += abs(p - q) / 2.0
        # The mean absolute value of a normal number with the variance of a share.
        chance += math.sqrt(2.0 / math.pi) * math.sqrt(q * (1.0 - q) / drawn) / 2.0
    return math.sqrt(max(total**2 - chance**2, 0.0))
