"""Random cells with types and batches, and simple reference computations on them."""

import numpy as np


def make_labelled(rng, n=200, types="abc", batches="xyz", apart=2.0, batch_effect=1.0):
    """Return cells shifted by type and by batch; types are not equally frequent."""
    p = np.arange(1, len(types) + 1) / np.arange(1, len(types) + 1).sum()
    cell_type = rng.choice(list(types), n, p=p).astype("<U12")
    batch = rng.choice(list(batches), n)
    Z = rng.normal(size=(n, 4))
    for t in types:
        Z[cell_type == t] += apart * rng.normal(size=4)
    for b in batches:
        Z[batch == b] += batch_effect * rng.normal(size=4)
    return Z, cell_type, batch


def distances(Z):
    return np.sqrt(((Z[:, None, :] - Z[None, :, :]) ** 2).sum(-1))


def nearest(Z, k):
    D = distances(Z)
    np.fill_diagonal(D, np.inf)
    return np.argsort(D, axis=1, kind="stable")[:, :k]


def f1_of(truth, predicted, kind):
    hit = ((truth == kind) & (predicted == kind)).sum()
    return 2 * hit / ((truth == kind).sum() + (predicted == kind).sum())
