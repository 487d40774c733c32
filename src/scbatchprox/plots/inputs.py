"""What is drawn, from what a user has: an AnnData that ``refine`` wrote to, a model, arrays, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..api.record import Record, find_record
from ..cells.keys import as_keys, batch_labels, find_embedding
from ..core.checks import check_array_like, is_tensor, require_columns, some_of, to_numpy
from ..core.labels import Labels
from ..errors import BadKey, BadType, BadValue, Parameter
from ..kernels.arrays import Floats, Ints
from .canvas import label
from .layout import dense

__all__ = [
    "REGISTERED", "SOLVED", "Groups", "Pair", "adapter_of", "diagnosis_of", "history_of", "movement_of",
    "pair_of",
]  # fmt: skip

#: Columns of the rounds of a solver and of a registration, and what they are.
SOLVED = {
    "objective": "objective",
    "distance": "distance of a cell to its target",
    "step": "change of the adapter in the round",
}
REGISTERED = {
    "matched": "part of a batch that met others",
    "movement": "how far populations have moved",
    "agreement": "agreement of displacements",
}


def is_anndata(data: Any) -> bool:
    """Whether this has cells with named embeddings: an AnnData or a MuData."""
    return all(hasattr(data, name) for name in ("obs", "obsm", "uns"))


def _part(data: Any, key: str | None, name: str) -> Any:
    """Return what a record or a model has by this name; other data are that already."""
    if is_anndata(data):
        return find_record(data, key).values.get(name)
    if not hasattr(data, "fit_"):
        return data
    return data.movement() if name == "movement" else getattr(data, f"{name}_")


def movement_of(data: Any, key: str | None = None) -> pd.DataFrame:
    """Return a table with ``relative`` and ``n_cells`` per batch, and verdicts where there are some."""
    found = _part(data, key, "movement")
    verdicts = None if found is data else _part(data, key, "diagnosis")
    table = _by_batch(found, "the movement of each batch")
    if "relative" not in table and "verdict" in table:
        # A diagnosis has relative numbers only.
        table = table.rename(columns={"moved": "relative"})
    _require(table, ["relative"], "model.movement() or diagnose()")
    if verdicts is not None and "verdict" not in table:
        judged = _by_batch(verdicts, "a diagnosis")
        table = table.join(judged[[name for name in ("level", "verdict") if name in judged]])
    return table


def diagnosis_of(data: Any, key: str | None = None) -> pd.DataFrame:
    """Return the table of :func:`scbatchprox.diagnose`."""
    table = _part(data, key, "diagnosis")
    if table is None and is_anndata(data):
        raise BadKey(
            f"Expected a diagnosis in uns[{find_record(data, key).key!r}], found none; "
            f"refine(..., diagnose=True) writes one."
        )
    if table is None and data is not None:
        raise BadValue(
            "Expected a diagnosis, found a model that has none; draw the table of "
            "diagnose(Z, batch, model=model)."
        )
    table = _by_batch(table, "a diagnosis")
    _require(table, ["verdict"], "diagnose()")
    return table


def adapter_of(data: Any, key: str | None = None) -> tuple[np.ndarray, Floats, Floats]:
    """Return the (R,) batches, and (R, d) scales and shifts of an adapter, of a model, or in ``uns``."""
    if is_anndata(data):
        record = find_record(data, key).values
        batch = record.get("row_batch", record.get("batches"))
        return np.asarray(batch), np.asarray(record["scale"]), np.asarray(record["shift"])
    adapter = data.adapter_ if hasattr(data, "fit_") else data
    if not (hasattr(adapter, "scale") and hasattr(adapter, "batches")):
        raise BadType(
            f"Expected an AnnData, a fitted BatchProx or an Adapter, found {type(data).__name__}."
        )
    return adapter.batches[adapter.batch], adapter.scale, adapter.shift


def history_of(data: Any, key: str | None = None) -> pd.DataFrame:
    """Return the rounds of a fit."""
    found = _part(data, key, "history")
    if hasattr(found, "frame"):
        found = found.frame()
    if not isinstance(found, Mapping | pd.DataFrame):
        raise BadType(
            f"Expected an AnnData, a fitted BatchProx, a History or a Trace, found {type(data).__name__}."
        )
    table = pd.DataFrame(found)
    columns = [["round", *panels] for panels in (SOLVED, REGISTERED)]
    _require(table, columns["matched" in table], "model.history_")
    return table


def _by_batch(table: Any, what: str) -> pd.DataFrame:
    """Return a table indexed by batch; files of earlier versions have a dictionary of columns."""
    if not isinstance(table, Mapping | pd.DataFrame):
        raise BadType(
            f"Expected an AnnData, a fitted BatchProx or a table with {what}, found "
            f"{type(table).__name__}."
        )
    table = pd.DataFrame(table)
    return table.set_index("batch") if "batch" in table else table


def _require(table: pd.DataFrame, columns: list[str], source: str) -> None:
    absent = [name for name in columns if name not in table]
    if absent:
        raise BadKey(
            f"Expected the table of {source}, found one without {some_of(absent)}; available: "
            f"{some_of(table.columns, most=20)}."
        )


@dataclass(frozen=True, eq=False)
class Groups:
    """The code of each cell, -1 for a cell without a label, and the names that the codes refer to."""

    codes: Ints
    names: list[Any]

    @classmethod
    def of(cls, labels: Any, n_cells: int, what: str) -> Groups:
        """Encode labels of any type; ``what`` they are is for errors. Types are often known for some only."""
        if is_tensor(labels):  # pandas would take each of its entries for a label of its own
            labels = to_numpy(labels)
        found = pd.Series(labels).reset_index(drop=True)
        if len(found) != n_cells:
            raise BadValue(f"Expected one {what} per cell ({n_cells}), found {len(found)} labels.")
        known = found.notna().to_numpy()
        encoded = Labels.of(found if known.all() else found[known], int(known.sum()))
        codes: Ints = np.full(n_cells, -1, np.int32)
        codes[known] = encoded.codes
        return cls(codes, encoded.batches.tolist())

    @property
    def incomplete(self) -> bool:
        """Whether some cells have no label."""
        return bool((self.codes < 0).any())


def column(obs: Any, key: Any, what: str) -> Any:
    """Return a column of ``obs``, or several as one; ``what`` is the argument that named it."""
    require_columns(as_keys(key), list(obs.columns), what)
    return batch_labels(obs, key)


def batches_of(obs: Any, record: Record) -> Any:
    """Return the batch of each cell that was refined."""
    keys = [str(key) for key in record.values["params"]["batch_key"]]
    # A record of a MuData may name "rna:batch", which the modality itself calls "batch".
    own = [key if key in obs.columns else key.partition(":")[2] for key in keys]
    if all(key in obs.columns for key in own):
        found = batch_labels(obs, own)
        refined = set(map(str, np.asarray(record.values["batches"]).tolist()))
        if own == keys or set(map(str, pd.unique(found))) == refined:
            return found
    absent = [key for key in keys if key not in obs.columns]
    raise BadKey(
        f"Expected the batches that were refined in obs, found no column {some_of(absent)}; available: "
        f"{some_of(obs.columns, most=20)}; name one with ", Parameter("batch_key="), ".",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pair:
    """Both embeddings with their names, the groups of cells by colouring, and what else is in ``obsm``."""

    before: Any
    after: Any
    groups: dict[str, Groups]
    names: tuple[str, str] = ("the embedding", "the refined embedding")
    titles: tuple[str, str] = ("before", "after")
    obsm: Mapping[str, Any] = field(default_factory=dict)

    def moved(self, rows: Ints) -> Floats:
        """How far cells moved, in spreads: square roots of the total variance of all cells."""
        before, after = (
            dense(Z if rows.size == Z.shape[0] else Z[rows]) for Z in (self.before, self.after)
        )
        difference = np.subtract(
            after, before, dtype=np.float64 if before.dtype.kind != "f" else None
        )
        step = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        spread = float(np.sqrt(before.var(0, dtype=np.float64).sum()))
        moved: Floats = step / spread if spread > 0 else step
        return moved


def pair_of(data: Any, after: Any, key: str | None, batch_key: Any, label_key: Any) -> Pair:
    """Return both embeddings of an AnnData, or of two arrays; see :func:`.before_after`."""
    if is_anndata(data):
        return _of_anndata(data, after, key, batch_key, label_key)
    return _of_arrays(data, after, batch_key, label_key)


def _of_anndata(data: Any, after: Any, key: str | None, batch_key: Any, label_key: Any) -> Pair:
    if after is not None:
        raise BadValue("Expected key= with an AnnData, found an array as `after`.")
    record = find_record(data, key)
    obsm, prefix = dict(record.adata.obsm), record.prefix
    obsm |= {f"{prefix}{name}": Z for name, Z in obsm.items()}
    key, use_rep = record.key, str(record.values["params"]["use_rep"])
    for name in (key, use_rep):
        if name not in obsm and not (name == use_rep == "X"):
            raise BadKey(
                f"Expected an embedding in obsm, found no {name!r}; available: "
                f"{some_of(record.adata.obsm, most=20)}."
            )
    found = find_embedding(data, f"{prefix}{use_rep}")
    obs = found.obs
    given = {
        "batch": batches_of(obs, record)
        if batch_key is None
        else column(obs, batch_key, "batch_key"),
        "cell type": None if label_key is None else column(obs, label_key, "label_key"),
    }
    titles = (f"before: {label(use_rep)}", f"after: {label(key)}")
    groups = _groups(given, record.adata.n_obs)
    return Pair(_array(found.Z), _array(obsm[key]), groups, (use_rep, key), titles, obsm)


def _of_arrays(before: Any, after: Any, batch: Any, cell_type: Any) -> Pair:
    if after is None:
        raise BadValue("Expected two embeddings, before and after, found one array.")
    for Z in (before, after):
        check_array_like(Z)
    before, after = _array(before), _array(after)
    if before.shape != after.shape or before.ndim != 2:
        raise BadValue(
            f"Expected two embeddings of the same shape (cells, coordinates), found {before.shape} and "
            f"{after.shape}."
        )
    given = {"batch": batch, "cell type": cell_type}
    return Pair(before, after, _groups(given, before.shape[0]))


def _groups(given: dict[str, Any], n_cells: int) -> dict[str, Groups]:
    return {
        name: Groups.of(labels, n_cells, name)
        for name, labels in given.items()
        if labels is not None
    }


def _array(Z: Any) -> Any:
    """Return an embedding that can be indexed as an array; one that is not in memory stays where it is."""
    if isinstance(Z, pd.DataFrame):
        return Z.to_numpy()
    return Z if hasattr(Z, "ndim") else to_numpy(Z)
