"""A fitted model in a file, and back: what ``docs/file-format.md`` calls the kind ``model``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ..core.adapter import Adapter
from ..core.anchors import Anchors
from ..core.checks import plain
from ..core.conditioned import PopulationAdapter
from ..core.fit import Seen
from ..core.moments import Moments
from ..core.populations import Populations
from ..core.solvers import SOLVERS, History
from ..errors import BadType
from ..targets.base import Summary
from ..targets.by_name import TARGETS
from ..targets.population.registration import Consensus
from ..targets.population.settings import PopulationSettings
from . import store as _store

Model = TypeVar("Model")

__all__ = ["load", "params_as_json", "params_from_json", "save"]

MOMENTS = ("n", "mean", "m2")
HISTORY = ("round", "objective", "distance", "step")
CONSENSUS = ("origin", "mass", "total")


def save(model: Any, path: str | Path) -> None:
    """Write a fitted model."""
    tensors = model.adapter_.tensors()
    for part in ("moments", "reference", "added"):
        summary = getattr(model.seen_, part)
        tensors |= {f"{part}.{field}": getattr(summary.rows, field) for field in MOMENTS}
        if isinstance(summary, Populations):
            tensors[f"{part}.anchor"] = summary.anchors.center
            tensors[f"{part}.anchor_batch"] = np.asarray(summary.anchors.batch, np.int64)
    tensors |= {f"history.{field}": getattr(model.history_, field) for field in HISTORY}
    consensus = model.seen_.consensus
    if consensus is not None:
        tensors |= {f"consensus.{field}": getattr(consensus, field) for field in CONSENSUS}
    extra = {
        "params": params_as_json(model),
        "converged": model.converged_,
        "provenance": model.provenance_,
        "reference": model.seen_.reference.batches.tolist(),
        "added": model.seen_.added.batches.tolist(),
    }
    if consensus is not None:
        extra["consensus"] = {"unit": consensus.unit, "settings": consensus.settings.to_json()}
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        extra["feature_names"] = names.tolist()
    _store.save(path, "model", tensors, model.batches_, extra)


def load(kind: type[Model], path: str | Path) -> Model:
    """Read a fitted model."""
    stored = _store.load(path, ("model",))
    params = dict(stored.params["params"])
    model: Any = kind(**params_from_json(params))
    adapter = PopulationAdapter if "anchor" in stored.tensors else Adapter
    model.adapter_ = adapter.from_tensors(stored.batches, stored.tensors)
    model.seen_ = Seen(
        **{
            part: _summary(stored.tensors, part, batches)
            for part, batches in _batches(stored).items()
        },
        consensus=_consensus(stored),
    )
    model.history_ = History(*(stored.tensors[f"history.{field}"] for field in HISTORY))
    model.converged_ = bool(stored.params["converged"])
    model.provenance_ = dict(stored.params["provenance"])
    model.diagnosis_ = None
    model.n_features_in_ = model.adapter_.width
    if "feature_names" in stored.params:
        model.feature_names_in_ = np.array(stored.params["feature_names"], dtype=object)
    return cast(Model, model)


def params_as_json(model: Any) -> dict[str, Any]:
    """Return a model's parameters in types that JSON has; objects as their names and options."""
    params = model.get_params(deep=False)
    params["solver"] = _to_json("solver", params["solver"], SOLVERS)
    params["target"] = _to_json("target", params["target"], TARGETS)
    return {name: plain(value) for name, value in params.items()}


def params_from_json(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters from what :func:`params_as_json` made of them."""
    params = dict(stored)
    for name, kinds in (("solver", SOLVERS), ("target", TARGETS)):
        if isinstance(params.get(name), dict):
            options = dict(params[name])
            options.pop("ridge", None)  # of populations in version 0.1.0
            if "settings" in options:
                options["settings"] = PopulationSettings.from_json(options["settings"])
            params[name] = kinds[options.pop("name")](**options)
    return params


def _summary(tensors: dict[str, np.ndarray], part: str, batches: np.ndarray) -> Summary:
    rows = [tensors[f"{part}.{field}"] for field in MOMENTS]
    if f"{part}.anchor" not in tensors:
        return Moments(batches, *rows)
    anchors = Anchors(batches, tensors[f"{part}.anchor_batch"], tensors[f"{part}.anchor"])
    return Populations(anchors, Moments(np.arange(anchors.batch.size), *rows))


def _consensus(stored: _store.Stored) -> Consensus | None:
    """What the reference was registered to; nothing for the moment target, and before version 0.2."""
    if "consensus" not in stored.params:
        return None
    known = stored.params["consensus"]
    origin, mass, total = (stored.tensors[f"consensus.{field}"] for field in CONSENSUS)
    settings = PopulationSettings.from_json(known["settings"])
    return Consensus(settings, origin, float(known["unit"]), mass, total)


def _batches(stored: _store.Stored) -> dict[str, np.ndarray]:
    parts = {
        part: np.array(stored.params[part], dtype=stored.batches.dtype)
        for part in ("reference", "added")
    }
    return {"moments": stored.batches} | parts


def _to_json(what: str, value: Any, kinds: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return value
    for name, kind in kinds.items():
        if type(value) is kind:
            options = {f.name: getattr(value, f.name) for f in fields(value)}
            if "settings" in options:
                options["settings"] = options["settings"].to_json()
            return {"name": name} | {key: plain(option) for key, option in options.items()}
    raise BadType(f"Expected a {what} that can be saved ({', '.join(kinds)}), found {value!r}.")
