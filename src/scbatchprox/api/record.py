"""What a fitted model says of itself: as a record in ``uns``, with the model, as text, and in a notebook."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas.api.types import is_numeric_dtype

from .._version import __version__
from ..core.checks import comes_from, some_of
from ..core.shown import count, names
from ..diagnosis.verdict import verdicts_of
from ..errors import BadKey, BadType
from ..io import model_file

if TYPE_CHECKING:
    import pandas as pd

    from .estimator import BatchProx

__all__ = ["Record", "find_record", "fitted_html", "fitted_text", "record_of"]


@dataclass(frozen=True, eq=False)
class Record:
    """What ``refine`` wrote: the values of ``uns[key]`` of ``adata``.

    ``adata`` is what the user gave, or a modality of it; then ``prefix`` is ``"rna:"``.
    """

    adata: Any
    key: str
    values: Mapping[str, Any]
    prefix: str = ""


def find_record(data: Any, key: str | None) -> Record:
    """Return the record of a key such as ``"X_pca_batchprox"``; ``None`` is the only one there.

    In a MuData, ``"rna:X_pca_batchprox"`` is a record of the modality ``rna``.
    """
    homes = {"": data}
    if comes_from(data, "mudata.MuData"):
        homes |= {f"{name}:": modality for name, modality in data.mod.items()}
    found = {
        f"{prefix}{name}": Record(adata, name, values, prefix)
        for prefix, adata in homes.items()
        for name, values in adata.uns.items()
        if isinstance(values, Mapping) and {"scale", "shift", "movement"} <= set(values)
    }
    if key is None and len(found) == 1:
        return next(iter(found.values()))
    if key is None and found:
        raise BadKey(
            f"Expected key= with one of the records of refine, found {len(found)} in uns; available: "
            f"{some_of(found)}."
        )
    if key is None or key not in found:
        what = "none" if key is None else f"no {key!r}"
        raise BadKey(
            f"Expected a record of refine in uns, found {what}; available: {some_of(found)}; "
            f"refine(adata, batch_key) writes one."
        )
    return found[key]


def record_of(model: BatchProx) -> dict[str, Any]:
    """Return what a fitted model did, in types that h5ad and zarr can store.

    ``provenance_`` of the model tells which columns and which embedding it was fitted to.
    """
    params = {
        # h5ad cannot store None, which means the fixed point as the number of rounds.
        name: "fixed point" if value is None else value if np.isscalar(value) else repr(value)
        for name, value in (model.get_params(deep=False) | {"rounds": model.rounds_}).items()
    }
    source = {name: model.provenance_[name] for name in ("batch_key", "use_rep")}
    table = model.diagnosis_
    diagnosis = {} if table is None else {"diagnosis": _storable(table)}
    adapter, known = model.adapter_, model.evidence_
    names = ("anchors", "bandwidth") * (adapter.anchors is not None) + ("scale", "shift")
    arrays = {name: getattr(adapter, name) for name in names}
    evidence = {"evidence": dict(vars(known))} if known.batches.size else {}
    return (
        diagnosis
        | arrays
        | evidence
        | _saved(model, arrays)
        | {
            "params": params | source | {"version": __version__},
            "batches": adapter.batches,
            "row_batch": adapter.batches[adapter.batch],
            "movement": _storable(model.movement()),
            "history": dict(vars(model.history_)),
            "converged": model.converged_,
        }
    )


def _saved(model: BatchProx, stored: dict[str, Any]) -> dict[str, Any]:
    """The rest of the model; a target or solver of one's own cannot be saved."""
    try:
        params = model.get_params(deep=False)
        return {"model": model_file.as_record(model.fit_, params, model.provenance_, stored)}
    except BadType:
        return {}


def _storable(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that h5ad and zarr can store: text as objects, and no "/" in names of columns."""
    stored = table.rename(columns=lambda name: str(name).replace("/", "|"))
    if "reasons" in stored:  # names of columns
        stored["reasons"] = stored["reasons"].str.replace("/", "|")
    for name in stored.columns[[not is_numeric_dtype(kind) for kind in stored.dtypes]]:
        stored[name] = stored[name].astype(object)
    if not is_numeric_dtype(stored.index.dtype):
        stored.index = stored.index.astype(object)
    return stored


def fitted_text(model: BatchProx) -> str:
    """Return the lines that follow the parameters of a fitted model."""
    return "\n".join(f"    {name}: {value}" for name, value in _facts(model).items())


def fitted_html(model: BatchProx) -> str:
    """Return the same as a table."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in _facts(model).items()
    )
    return f"<table>{rows}</table>"


def _facts(model: BatchProx) -> dict[str, str]:
    fit = model.fit_
    batches = fit.adapter.batches.tolist()
    rounds = "fixed point" if fit.method.rounds is None else count(fit.method.rounds, "round")
    facts = {
        "cells": f"{fit.moments.n_cells:,}, {count(model.n_features_in_, 'coordinate')}",
        "batches": f"{len(batches):,}" + (f" ({names(batches)})" if batches else ""),
    }
    cells, others = fit.elsewhere
    if others:
        size = f"{count(cells, 'cell')} in {count(others, 'batch', 'batches')}"
        facts["reference"] = f"{size} that are not in this model"
    facts["fitted"] = f"{fit.method.rule!r}, {rounds}"
    if batches:
        moved = model.movement()["relative"]
        least, most = f"{moved.min():.2f}", f"{moved.max():.2f}"
        span = most if least == most else f"{least} to {most}"
        facts["moved"] = f"{span} of the spread of a batch; movement() has a row per batch"
    table = model.diagnosis_
    if table is None:  # also after a model is loaded: a file does not hold them
        facts["verdicts"] = "not examined here; diagnose(..., model=model) does so"
    else:
        found = Counter(verdict.level for verdict in verdicts_of(table) if verdict is not None)
        told = [f"{number} {level}" for level, number in found.most_common()]
        more = len(batches) - len(table)
        facts["verdicts"] = ", ".join([*told, *[f"{more} not examined"] * (more > 0)])
    return facts
