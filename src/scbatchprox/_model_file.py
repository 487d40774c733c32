"""A fitted model in a file, and back: what ``docs/file-format.md`` calls the kind ``model``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from . import _store
from ._validate import plain
from .adapter import Adapter
from .errors import BadType
from .growth import Seen
from .moments import Moments
from .solvers import SOLVERS, History, Solver

if TYPE_CHECKING:
    from .model import BatchProx

    Model = TypeVar("Model", bound=BatchProx)

__all__ = ["load", "params_as_json", "save", "solver_from_json"]

MOMENTS = ("n", "mean", "m2")
HISTORY = ("round", "objective", "distance", "step")


def save(model: BatchProx, path: str | Path) -> None:
    """Write a fitted model."""
    tensors = {"scale": model.scale_, "shift": model.shift_}
    for part in ("moments", "reference", "added"):
        moments = getattr(model.seen_, part)
        tensors |= {f"{part}.{field}": getattr(moments, field) for field in MOMENTS}
    tensors |= {f"history.{field}": getattr(model.history_, field) for field in HISTORY}
    extra = {
        "params": params_as_json(model),
        "converged": model.converged_,
        "provenance": model.provenance_,
        "reference": model.seen_.reference.batches.tolist(),
        "added": model.seen_.added.batches.tolist(),
    }
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        extra["feature_names"] = names.tolist()
    _store.save(path, "model", tensors, model.batches_, extra)


def load(kind: type[Model], path: str | Path) -> Model:
    """Read a fitted model."""
    stored = _store.load(path, ("model",))
    params = dict(stored.params["params"])
    params["solver"] = solver_from_json(params["solver"])
    model = kind(**params)
    model.adapter_ = Adapter(stored.batches, stored.tensors["scale"], stored.tensors["shift"])
    model.seen_ = Seen(
        **{
            part: Moments(batches, *(stored.tensors[f"{part}.{field}"] for field in MOMENTS))
            for part, batches in _batches(stored).items()
        }
    )
    model.history_ = History(*(stored.tensors[f"history.{field}"] for field in HISTORY))
    model.converged_ = bool(stored.params["converged"])
    model.provenance_ = dict(stored.params["provenance"])
    model.n_features_in_ = model.adapter_.width
    if "feature_names" in stored.params:
        model.feature_names_in_ = np.array(stored.params["feature_names"], dtype=object)
    return model


def params_as_json(model: BatchProx) -> dict[str, Any]:
    """Return a model's parameters in types that JSON has; a solver object with its options."""
    params = model.get_params(deep=False)
    params["solver"] = _solver_to_json(params["solver"])
    return {name: plain(value) for name, value in params.items()}


def _batches(stored: _store.Stored) -> dict[str, np.ndarray]:
    parts = {
        part: np.array(stored.params[part], dtype=stored.batches.dtype)
        for part in ("reference", "added")
    }
    return {"moments": stored.batches} | parts


def _solver_to_json(solver: str | Solver) -> Any:
    if isinstance(solver, str):
        return solver
    for name, kind in SOLVERS.items():
        if type(solver) is kind:
            return {"name": name} | {key: plain(value) for key, value in asdict(solver).items()}
    raise BadType(f"Expected a solver that can be saved ({', '.join(SOLVERS)}), found {solver!r}.")


def solver_from_json(stored: Any) -> str | Solver:
    """Return a solver, by name or with its options, from what :func:`params_as_json` made of it."""
    if isinstance(stored, str):
        return stored
    options = dict(stored)
    return SOLVERS[options.pop("name")](**options)
