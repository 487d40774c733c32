"""Scores of an embedding: arrays in, numbers out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

__all__ = ["ilisi", "macro_f1"]


def macro_f1(Z: Any, cell_type: Any, *, test_size: float = 0.2, seed: int = 0) -> float:
    """Macro-F1 of a class-balanced logistic regression on a fixed stratified split, as in the paper.

    The split depends on the labels and the seed alone, so embeddings of the same cells are compared
    on the same test cells.
    """
    Z, cell_type = np.asarray(Z, np.float64), np.asarray(cell_type)
    train, test = train_test_split(
        np.arange(len(Z)), test_size=test_size, stratify=cell_type, random_state=seed
    )
    # Few coordinates, many cells: Newton steps reach the optimum where lbfgs takes a thousand.
    classifier = LogisticRegression(class_weight="balanced", solver="newton-cholesky")
    classifier.fit(Z[train], cell_type[train])
    return float(f1_score(cell_type[test], classifier.predict(Z[test]), average="macro"))


def ilisi(Z: Any, batch: Any, *, k: int = 30) -> float:
    r"""Batch diversity among a cell's nearest neighbours, 0 (one batch only) to 1 (all alike).

    The paper's iLISI, :math:`1 / \sum_b p_{ib}^2` with :math:`p_{ib}` the share of batch b among the k
    nearest neighbours of cell i, averaged over cells and scaled by the number of batches B:
    :math:`(\mathrm{iLISI} - 1) / (B - 1)`.
    """
    codes, batches = pd.factorize(np.asarray(batch))
    near = NearestNeighbors(n_neighbors=k).fit(np.asarray(Z)).kneighbors(return_distance=False)
    share = np.stack([(codes[near] == b).mean(1) for b in range(len(batches))])
    diversity = float((1.0 / (share**2).sum(0)).mean())
    return (diversity - 1.0) / max(len(batches) - 1, 1)
