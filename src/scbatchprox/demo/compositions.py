"""Numbers of cells per batch and cell type of the paper's data sets.

The counts are copied from the paper's data-statistics table. For ``pbmc4`` and ``hpms2`` they add up to
the printed number of cells of every batch. For ``mhd6`` they do not, in any batch: the per-type counts sum
to 6,784, 2,598, 2,286, 8,423, 5,198 and 2,947 where 5,496, 5,103, 6,606, 7,725, 5,460 and 3,730 are printed.
The per-type counts are used, because only they describe the batches completely; the printed numbers are kept
in `Composition.printed_totals`.

``balanced2`` is the set of the imbalance experiment: six PBMC populations with 200 cells in each of
two batches. The paper names neither the populations nor the batches; the names are those of the first
six populations of ``pbmc4``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadValue


@dataclass(frozen=True, eq=False)
class Composition:
    """Number of cells of every cell type in every batch.

    Attributes
    ----------
    name
        Short identifier.
    batches, cell_types
        Unique labels of the rows and columns of `counts`.
    counts
        Non-negative ``(n_batches, n_cell_types)`` integers; stored as a read-only copy. A cell
        type or batch without any cells is allowed.
    printed_totals
        Cells per batch as printed in the paper; they may differ from the row sums.
    """

    name: str
    batches: tuple[str, ...]
    cell_types: tuple[str, ...]
    counts: NDArray[np.int64]
    printed_totals: tuple[int, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the shapes and labels, and freeze the counts."""
        object.__setattr__(self, "batches", _labels(self.batches, "batches"))
        object.__setattr__(self, "cell_types", _labels(self.cell_types, "cell_types"))
        object.__setattr__(self, "counts", _counts(self.counts))
        expected = (len(self.batches), len(self.cell_types))
        if self.counts.shape != expected:
            raise BadValue(
                f"Expected counts of shape {expected} (batches, cell types), found {self.counts.shape}."
            )
        if self.printed_totals is not None and len(self.printed_totals) != expected[0]:
            raise BadValue(
                f"Expected printed_totals with a number for each of {expected[0]} batches, found "
                f"{len(self.printed_totals)}."
            )

    @property
    def n_cells(self) -> int:
        """Total number of cells."""
        return int(self.counts.sum())


def _labels(values: Sequence[str], what: str) -> tuple[str, ...]:
    # A string is a sequence of characters, so it would pass as a sequence of labels.
    if isinstance(values, str):
        raise BadValue(f"Expected {what} as a sequence of labels, found the string {values!r}.")
    labels = tuple(values)
    if not labels or len(set(labels)) != len(labels):
        raise BadValue(f"Expected {what} to be non-empty and unique, found {labels}.")
    return labels


def _counts(values: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(values)
    counts = np.array(given, dtype=np.int64)
    if (counts != given).any() or (counts < 0).any():
        raise BadValue("Expected counts to be non-negative integers, found others.")
    counts.flags.writeable = False
    return counts


def _composition(
    name: str,
    cell_types: Sequence[str],
    rows: dict[str, list[int]],
    totals: tuple[int, ...] | None = None,
) -> Composition:
    return Composition(name, tuple(rows), tuple(cell_types), np.array(list(rows.values())), totals)


_PBMC4 = _composition(
    "pbmc4",
    (
        "Cytotoxic T", "CD4+ T", "B", "NK", "CD14+ mono", "CD16+ mono", "DC", "pDC", "Megakaryocyte",
        "Unassigned",
    ),
    {
        "10x": [962, 960, 346, 194, 354, 98, 38, 0, 270, 0],
        "CEL": [174, 160, 80, 42, 31, 21, 0, 0, 18, 0],
        "SeqWell": [1278, 566, 527, 0, 1255, 0, 37, 26, 38, 46],
        "SmartSeq2": [193, 112, 79, 50, 60, 18, 0, 0, 14, 0],
    },
    (3222, 526, 3773, 526),
)  # fmt: skip

_MHD6 = _composition(
    "mhd6",
    (
        "Hindbrain glutamatergic", "Mesenchyme", "Dorsal hindbrain", "Gliogenic progenitors",
        "VZ progenitors", "Caudal", "Hindbrain roof plate", "Neural crest", "Hindbrain GABAergic",
        "Early ectoderm", "Proliferating VZ progenitors", "Purkinje cells",
        "Erythrocytes and erythrocyte progenitors", "Anterior", "Hindbrain", "Endothelial cells",
        "Sensory neuron", "Extraembryonic endoderm", "Endoderm",
    ),
    {
        "e8.0_sce31053": [
            0, 95, 1843, 0, 0, 1218, 1204, 452, 0, 748, 0, 0, 0, 695, 0, 0, 0, 342, 187,
        ],
        "e9.0_sce31053": [4, 1624, 0, 0, 0, 38, 0, 240, 0, 51, 0, 0, 0, 2, 0, 0, 639, 0, 0],
        "e10.0_sce31053": [62, 1825, 0, 0, 0, 0, 0, 240, 0, 0, 0, 0, 159, 0, 0, 0, 0, 0, 0],
        "E10_sce27998": [4758, 0, 0, 0, 1521, 0, 0, 0, 70, 0, 0, 737, 0, 0, 670, 667, 0, 0, 0],
        "E12_sce27998": [3710, 0, 0, 36, 2, 0, 0, 0, 715, 0, 703, 32, 0, 0, 0, 0, 0, 0, 0],
        "E14_sce27998": [1089, 0, 0, 1739, 0, 0, 0, 0, 49, 0, 70, 0, 0, 0, 0, 0, 0, 0, 0],
    },
    (5496, 5103, 6606, 7725, 5460, 3730),
)  # fmt: skip

_HPMS2 = _composition(
    "hpms2",
    ("Beta", "Alpha", "Ductal", "Delta", "Endothelial", "Acinar", "Gamma", "Stellate"),
    {
        "0": [4289, 3595, 1642, 899, 769, 610, 418, 498],
        "1": [796, 1109, 462, 142, 67, 103, 219, 63],
    },
    (12720, 2961),
)

_BALANCED2 = _composition(
    "balanced2",
    _PBMC4.cell_types[:6],
    {"batch0": [200] * 6, "batch1": [200] * 6},
)

COMPOSITIONS: dict[str, Composition] = {c.name: c for c in (_PBMC4, _MHD6, _HPMS2, _BALANCED2)}


def get_composition(name: str) -> Composition:
    """Return one of `COMPOSITIONS` by its name."""
    try:
        return COMPOSITIONS[name]
    except KeyError:
        raise BadValue(
            f"Expected the name of a composition, found {name!r}; "
            f"available: {', '.join(COMPOSITIONS)}."
        ) from None
