"""Small cells, jobs and rows for tests of experiments."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from research.experiments.journal import Job, Key
from research.experiments.trial import EmbeddingStore, Trial
from scbatchprox.demo import Composition

SMALL = Composition(
    "small", ("a", "b", "c"), ("T", "B", "NK"), np.array([[60, 40, 20], [30, 30, 0], [20, 20, 20]])
)


def trial_of(dataset, tmp_path, settings, experiment="classify"):
    return Trial(experiment, dataset, settings, EmbeddingStore(tmp_path / "embeddings"))


def job(work=None, fingerprint="f", **key):
    named = {"experiment": "e", "dataset": "d", "upstream": "u", "method": "m"} | key
    return Job(Key(**named), fingerprint, work or dict)


def frame(values, metric="f1", **same):
    """Return rows of methods from {(dataset, method): values over runs}."""
    rows = [
        Key("e", dataset, "pca", method, run=at)._asdict()
        | {"metric": metric, "value": value}
        | same
        for (dataset, method), several in values.items()
        for at, value in enumerate(several)
    ]
    return pd.DataFrame(rows)


@dataclass
class Calls:
    """A method that counts its calls, and can fail."""

    n: int = 0
    fail: BaseException | None = None

    def __call__(self, Z, batch, seed):
        self.n += 1
        if self.fail is not None:
            raise self.fail
        return Z - Z.mean(0)
