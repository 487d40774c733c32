"""A fitted model in a file, and back: what ``docs/file-format.md`` calls the kind ``model``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..core.adapter import Adapter
from ..core.checks import plain
from ..core.fit import Fit, Method
from ..core.moments import Moments, Pooled
from ..core.solvers import SOLVERS, History
from ..errors import BadType
from ..targets.by_name import TARGETS
from ..targets.moment import MomentTarget
from ..targets.population.registration import Consensus
from ..targets.population.settings import PopulationSettings
from . import store

__all__ = ["Saved", "load", "params_as_json", "params_from_json", "save"]

MOMENTS = ("batch", "n", "mean", "m2")
HISTORY = ("round", "objective", "distance", "step")
CONSENSUS = ("origin", "mass", "total")
POOLED = ("mean", "m2")


@dataclass(frozen=True)
class Saved:
    """What a file holds beside the parts of a :class:`Fit` that need its parameters."""

    params: dict[str, Any]
    provenance: dict[str, Any]
    feature_names: list[str] | None
    written_by: str
    _parts: dict[str, Any] = field(repr=False)

    @property
    def consensus(self) -> Consensus | None:
        """What the reference was registered to."""
        return self._parts["consensus"]  # type: ignore[no-any-return]

    def fit(self, method: Method) -> Fit:
        """The fit, with the method that the parameters stand for."""
        return Fit(method=method, **self._parts)


def save(
    path: str | Path,
    fit: Fit,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
    feature_names: list[str] | None = None,
) -> None:
    """Write a fit, and the parameters of the estimator that made it."""
    tensors = fit.adapter.tensors()
    for part in ("moments", "reference", "added"):
        moments: Moments = getattr(fit, part)
        tensors |= {f"{part}.{name}": getattr(moments, name) for name in MOMENTS}
        if moments.anchors is not None:
            tensors[f"{part}.anchor"] = moments.anchors
    tensors |= {f"history.{name}": getattr(fit.history, name) for name in HISTORY}
    extra: dict[str, Any] = {
        "params": params_as_json(params),
        "converged": fit.converged,
        "provenance": dict(provenance),
        "reference": fit.reference.batches.tolist(),
        "added": fit.added.batches.tolist(),
    }
    consensus: Consensus | None = fit.consensus
    if consensus is not None:
        tensors |= {f"consensus.{name}": getattr(consensus, name) for name in CONSENSUS}
        extra["consensus"] = {
            "unit": consensus.unit,
            "one_each": consensus.one_each,
            "settings": consensus.settings.to_json(),
        }
    if fit.pooled is not None:
        tensors |= {f"pooled.{name}": getattr(fit.pooled, name) for name in POOLED}
        extra["pooled"] = {"n_cells": fit.pooled.n_cells, "n_batches": fit.pooled.n_batches}
    if feature_names is not None:
        extra["feature_names"] = feature_names
    store.save(path, "model", tensors, fit.adapter.batches, extra)


def load(path: str | Path) -> Saved:
    """Read what :func:`save` wrote, or version 0.1.0."""
    stored = store.load(path, ("model",))
    tensors, known = stored.tensors, stored.params
    batches = {"moments": stored.batches} | {
        part: np.array(known[part], dtype=stored.batches.dtype) for part in ("reference", "added")
    }
    parts: dict[str, Any] = {
        part: _moments(tensors, part, names) for part, names in batches.items()
    }
    parts |= {
        "adapter": Adapter.from_tensors(stored.batches, tensors),
        "history": History(*(tensors[f"history.{name}"] for name in HISTORY)),
        "converged": bool(known["converged"]),
        "consensus": _consensus(stored),
        "pooled": _pooled(stored),
    }
    params = params_from_json(known["params"])
    names = known.get("feature_names")
    return Saved(params, dict(known["provenance"]), names, stored.written_by, parts)


def params_as_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in types that JSON has; objects as their names and options."""
    found = dict(params)
    found["solver"] = _to_json("solver", found["solver"], SOLVERS)
    found["target"] = _to_json("target", found["target"], TARGETS)
    return {name: plain(value) for name, value in found.items()}


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
    # Until version 0.1.0 the estimator held the options of the moment target.
    old = {name: params.pop(name) for name in ("variance_matching", "eps") if name in params}
    if old and params.get("target", "moment") == "moment" and MomentTarget(**old) != MomentTarget():
        params["target"] = MomentTarget(**old)
    return params


def _moments(tensors: Mapping[str, np.ndarray], part: str, batches: np.ndarray) -> Moments:
    rows = store.row_map(tensors, f"{part}.", batches.size)
    n, mean, m2 = (tensors[f"{part}.{name}"] for name in MOMENTS[1:])
    return Moments(batches, rows, n, mean, m2, tensors.get(f"{part}.anchor"))


def _consensus(stored: store.Stored) -> Consensus | None:
    """What the reference was registered to; nothing for the moment target, and before version 0.2."""
    if "consensus" not in stored.params:
        return None
    known = stored.params["consensus"]
    origin, mass, total = (stored.tensors[f"consensus.{name}"] for name in CONSENSUS)
    settings = PopulationSettings.from_json(known["settings"])
    return Consensus(settings, origin, float(known["unit"]), mass, total, bool(known["one_each"]))


def _pooled(stored: store.Stored) -> Pooled | None:
    if "pooled" not in stored.params:
        return None
    mean, m2 = (stored.tensors[f"pooled.{name}"] for name in POOLED)
    known = stored.params["pooled"]
    return Pooled(int(known["n_cells"]), int(known["n_batches"]), mean, m2)


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
