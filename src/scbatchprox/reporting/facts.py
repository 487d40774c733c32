"""What a report shows, gathered before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..core.labels import Labels
from ..kernels.arrays import Floats

__all__ = ["Drawn", "Facts", "Scores"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """The cells in the scatter plots: a sample in which small batches are seen too.

    Attributes
    ----------
    before, after
        (m, 2) positions in the picture.
    batch, cell_type
        Labels of the cells; without types ``cell_type`` is ``None``, and cells may lack one ("no label").
    moved
        (m,) displacement of each cell as a part of the spread of its batch.
    view
        What the two axes are, in words.
    """

    before: Floats
    after: Floats
    batch: Labels
    cell_type: Labels | None
    moved: Floats
    view: str

    @property
    def n(self) -> int:
        """Number of cells drawn."""
        return len(self.before)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the unrefined and the refined embedding (columns), on ``n`` cells with a type."""

    table: pd.DataFrame
    n: int


@dataclass(frozen=True, eq=False)
class Facts:
    """All that a report shows.

    Attributes
    ----------
    name
        Name of the file, or what else the cells came from.
    n_cells, n_dims
        Size of the embedding.
    use_rep, key, stored
        Names of the unrefined and the refined embedding, and whether the latter was read, not made.
    note
        Why a stored refined embedding, or its diagnosis, was not shown, if there is one.
    batch_key, label_key
        Columns with batches (several are joined) and cell types.
    table
        The diagnosis, one row per batch.
    drawn
        The cells in the pictures.
    counts, counted
        Cells of each batch (rows) by cell type or consensus group (columns), and which of these it is.
    kept
        For each column to keep: cells of each batch (rows) by value (columns).
    scores
        Scores, if there are cell types.
    params, provenance
        How the refinement was made, and from what by what, in words.
    """

    name: str
    n_cells: int
    n_dims: int
    use_rep: str
    key: str
    stored: bool
    note: str | None
    batch_key: str
    label_key: str | None
    table: pd.DataFrame
    drawn: Drawn
    counts: pd.DataFrame
    counted: str
    kept: dict[str, pd.DataFrame] = field(default_factory=dict)
    scores: Scores | None = None
    params: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    @property
    def batches(self) -> np.ndarray:
        """Names of all batches, sorted."""
        return self.drawn.batch.batches
