"""How well a classifier predicts cell types from an embedding: of held-out cells, and of held-out batches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from ..core.checks import some_of
from ..core.labels import Labels
from ..errors import BadValue
from ..kernels.arrays import Ints
from ..kernels.threads import one_blas_thread
from .cells import embedding, mean

__all__ = ["affected_f1", "f1_given_batch", "leave_one_batch_out_f1", "macro_f1"]

#: With more coefficients than this, lbfgs is faster than Newton steps, whose cost is cubic in them.
_NEWTON = 2000
#: Size of the batch's own coordinate beside the embedding. At 3 the penalty of the classifier hardly limits
#: what it may learn about the composition of a batch.
_BATCH_COORDINATE = 3.0


def macro_f1(Z: Any, cell_type: Any, *, test_size: float = 0.2, seed: int = 0) -> float:
    """Macro-F1 of a class-balanced logistic regression on a fixed stratified split, as in the paper.

    The split depends only on the labels and the seed, so embeddings of the same cells are compared on
    the same test cells. A type with one cell cannot be in both training and test cells and is left out.
    NaN if fewer than two types remain.

    Training and test cells come from the same batches. Where batches differ in composition, a batch effect
    tells the classifier which types to expect, so removing the effect may lower this score although no
    cell is harder to recognise: :func:`f1_given_batch` does not have this flaw.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import macro_f1
    >>> macro_f1(Z, cell_type)
    1.0
    """
    truth, predicted, _ = _held_out(Z, cell_type, test_size, seed)
    return float(f1_score(truth, predicted, average="macro")) if truth.size else float("nan")


def f1_given_batch(
    Z: Any, cell_type: Any, batch: Any, *, test_size: float = 0.2, seed: int = 0
) -> float:
    """Macro-F1 of a classifier that also knows the batch of each cell.

    The classifier and the split of :func:`macro_f1`, with a coordinate for each batch beside the embedding:
    3 for the cells of the batch, else 0. So every embedding tells the classifier which types a batch has, and
    none is at an advantage because its batches lie apart. Use it, not :func:`macro_f1`, to see whether a
    refinement made types harder to tell apart. NaN if fewer than two types remain.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import f1_given_batch
    >>> f1_given_batch(Z, cell_type, batch)
    1.0
    """
    Z = embedding(Z)
    batches = Labels.of(batch, len(Z))
    own = _BATCH_COORDINATE * (batches.codes[:, None] == np.arange(batches.batches.size))
    return macro_f1(np.column_stack([Z, own]), cell_type, test_size=test_size, seed=seed)


def affected_f1(
    Z: Any, cell_type: Any, affected: Any, *, test_size: float = 0.2, seed: int = 0
) -> float:
    """F1 of one cell type, by the classifier and the split of :func:`macro_f1`.

    The paper's "affected-cell-type F1": the affected type is rare in one batch, or missing from it.
    NaN if that type has a single cell, or if every other type has.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import affected_f1
    >>> affected_f1(Z, cell_type, "T")
    1.0
    """
    truth, predicted, names = _held_out(Z, cell_type, test_size, seed)
    if not truth.size:
        return float("nan")
    if affected not in names:
        raise BadValue(
            f"Expected `affected` to be a cell type, found {affected!r}; available: {some_of(names)}."
        )
    code = names.index(affected)
    if code not in truth and code not in predicted:
        return float("nan")
    return float(f1_score(truth == code, predicted == code))


def leave_one_batch_out_f1(Z: Any, cell_type: Any, batch: Any, *, k: int = 15) -> float:
    """Macro-F1 of labels transferred from all other batches, averaged over batches.

    Each batch in turn is labelled by a vote of the k nearest cells of the other batches. Only its cells
    of types that another batch has too are counted, and the macro-F1 is over these types. All batches
    have the same weight. NaN if no batch shares a type with another.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import leave_one_batch_out_f1
    >>> leave_one_batch_out_f1(Z, cell_type, batch)
    1.0
    """
    Z = embedding(Z)
    types, batches = Labels.of(cell_type, len(Z), "cell type"), Labels.of(batch, len(Z))
    scores = []
    for b in range(batches.batches.size):
        held_out = batches.codes == b
        test = held_out & np.isin(types.codes, types.codes[~held_out])
        if not test.any():
            continue
        voters = KNeighborsClassifier(min(k, int((~held_out).sum())))
        voters.fit(Z[~held_out], types.codes[~held_out])
        truth, predicted = types.codes[test], voters.predict(Z[test])
        scores.append(f1_score(truth, predicted, labels=np.unique(truth), average="macro"))
    return mean(scores)


def _held_out(Z: Any, cell_type: Any, test_size: float, seed: int) -> tuple[Ints, Ints, list[Any]]:
    """Return the true and predicted types of the test cells as codes, and the names of the codes.

    There are no test cells if fewer than two types remain.
    """
    Z = embedding(Z)
    types = Labels.of(cell_type, len(Z), "cell type")
    cells = np.flatnonzero(types.n[types.codes] > 1)
    codes = types.codes[cells]
    n_types = np.unique(codes).size
    if n_types < 2:
        return codes[:0], codes[:0], types.batches.tolist()
    n_test = int(np.ceil(test_size * cells.size))
    if not n_types <= n_test <= cells.size - n_types:
        raise BadValue(
            f"Expected at least as many test and training cells as cell types ({n_types}), found "
            f"{n_test} and {cells.size - n_test}."
        )
    train, test = train_test_split(cells, test_size=test_size, stratify=codes, random_state=seed)
    # With few coordinates and many cells, a few Newton steps replace about a thousand of lbfgs.
    newton = Z.shape[1] * n_types <= _NEWTON
    classifier = LogisticRegression(
        class_weight="balanced", solver="newton-cholesky" if newton else "lbfgs", max_iter=5000
    )
    Z = Z - Z.mean(0)  # better conditioned; the result is the same, since the intercept is free
    with one_blas_thread(), warnings.catch_warnings():
        # With constant coordinates, or values in the thousands, scikit-learn switches to lbfgs itself.
        warnings.filterwarnings("ignore", "(?s).*will now resort to lbfgs")
        classifier.fit(Z[train], types.codes[train])
    return types.codes[test], classifier.predict(Z[test]), types.batches.tolist()
