"""Saving and loading fitted models: the kind ``model`` in ``docs/file-format.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from ..core.adapter import Adapter
from ..core.checks import plain, some_of
from ..core.fit import Fit, Method
from ..core.labels import label_array
from ..core.moments import Moments, Pooled
from ..core.solvers import SOLVERS, History
from ..core.target import Evidence, Trace
from ..errors import BadType, BadValue, InputError
from ..options import Options
from ..targets.method import TARGETS, method_of
from ..targets.moment import MomentTarget
from ..targets.population.copies import Turning
from ..targets.population.registration import Consensus
from ..targets.population.settings import PopulationSettings
from . import store
from .damaged import naming

__all__ = [
    "Saved", "as_record", "checked", "from_record", "load", "params_as_json", "params_from_json", "save",
]  # fmt: skip

MOMENTS = ("batch", "n", "mean", "m2")
HISTORY = ("round", "objective", "distance", "step")
TRACE = ("round", "matched", "agreement", "movement")
EVIDENCE = (*Evidence.numbers(), "decision")
CONSENSUS = ("origin", "mass", "total", "cells")
TURNING = ("into", "back")
POOLED = ("mean", "m2")


class Saved(NamedTuple):
    """What a file holds: a fit, and what the estimator that made it knows besides."""

    fit: Fit
    params: dict[str, Any]
    provenance: dict[str, Any]
    feature_names: list[str] | None
    written_by: str


def save(
    path: str | Path,
    fit: Fit,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
    feature_names: list[str] | None = None,
) -> None:
    """Write a fit, and the parameters of the estimator that made it."""
    tensors, extra = _content(fit, params, provenance, feature_names)
    store.save(path, "model", tensors, fit.adapter.batches, extra)


def as_record(
    fit: Fit,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
    known: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Return what :func:`save` writes as arrays and texts that h5ad and zarr can store.

    ``known`` are arrays that are stored beside it. An array that is there, or was stored before, is not
    stored again, only its name: most moments are also those of the reference.
    """
    tensors, extra = _content(fit, params, provenance)
    arrays: dict[str, np.ndarray] = {}
    same: dict[str, str] = {}
    for name, value in tensors.items():
        stored = {**known, **arrays}
        twin = next((other for other in stored if _is_same(stored[other], value)), None)
        if twin is None:
            arrays[name] = value
        else:
            same[name] = twin
    texts = {"batches": fit.adapter.batches.tolist(), "params": extra, "same": same}
    return {"arrays": arrays} | {name: json.dumps(value) for name, value in texts.items()}


def from_record(record: Mapping[str, Any], entry: str) -> Saved:
    """Return what :func:`as_record` stored in an entry of a record."""
    stored = record[entry]
    arrays = {name: np.asarray(value) for name, value in stored["arrays"].items()}
    batches, params, same = (json.loads(stored[name]) for name in ("batches", "params", "same"))
    for name, twin in same.items():
        arrays[name] = arrays[twin] if twin in arrays else np.asarray(record[twin])
    version = str(record["params"]["version"])
    return _saved(store.Stored(arrays, label_array(batches), params, version))


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    return one is other or (one.dtype == other.dtype and np.array_equal(one, other))


def _content(
    fit: Fit,
    params: Mapping[str, Any],
    provenance: Mapping[str, Any],
    feature_names: list[str] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a fit, and everything else as JSON types."""
    tensors = fit.adapter.tensors()
    for part in ("moments", "reference", "added"):
        moments: Moments = getattr(fit, part)
        tensors |= {f"{part}.{name}": getattr(moments, name) for name in MOMENTS}
        if moments.anchors is not None:
            tensors[f"{part}.anchor"] = moments.anchors
    tensors |= {f"history.{name}": values for name, values in vars(fit.history).items()}
    extra: dict[str, Any] = {
        "params": params_as_json(params),
        "method": _method_as_json(fit.method),
        "converged": fit.converged,
        "provenance": dict(provenance),
        "reference": fit.reference.batches.tolist(),
        "added": fit.added.batches.tolist(),
    }
    if fit.evidence.batches.size:
        tensors |= {f"evidence.{name}": getattr(fit.evidence, name) for name in EVIDENCE}
        extra["evidence"] = fit.evidence.batches.tolist()
    consensus: Consensus | None = fit.consensus
    if consensus is not None:
        tensors |= {f"consensus.{name}": getattr(consensus, name) for name in CONSENSUS}
        tensors |= {f"consensus.{name}": getattr(consensus.turning, name) for name in TURNING}
        extra["consensus"] = {
            "variance": consensus.variance,
            "together": consensus.together,
            "smooth": consensus.smooth,
            "settings": consensus.settings.to_json(),
        }
    if fit.pooled is not None:
        tensors |= {f"pooled.{name}": getattr(fit.pooled, name) for name in POOLED}
        extra["pooled"] = {"n_cells": fit.pooled.n_cells, "n_batches": fit.pooled.n_batches}
    if feature_names is not None:
        extra["feature_names"] = feature_names
    return tensors, extra


def load(path: str | Path) -> Saved:
    """Read what :func:`save` wrote, or version 0.1.0."""
    stored = store.load(path, ("model",))
    with checked(path):
        return _saved(stored)


@contextmanager
def checked(path: str | Path) -> Iterator[None]:
    """Raise one sentence that names the file for any error that its content causes."""
    try:
        with naming(path):
            yield
    except InputError:
        raise
    except Exception as error:  # of any type: a file may hold anything where a number is expected
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise BadValue(
            f"Expected a saved model, found {path}, whose content is damaged or of another kind "
            f"({reason})."
        ) from error


def _saved(stored: store.Stored) -> Saved:
    tensors, known = stored.tensors, stored.params
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and tensor.dtype != np.float64:
            raise BadValue(f"Expected float64 numbers, found {tensor.dtype.name} in {name!r}.")
    params = params_from_json(known["params"])
    consensus = _consensus(stored)
    method = params_from_json(known["method"]) if "method" in known else params
    batches = {"moments": stored.batches} | {
        part: np.array(known[part], dtype=stored.batches.dtype) for part in ("reference", "added")
    }
    parts = {part: _moments(tensors, part, names) for part, names in batches.items()}
    fit = Fit(
        **parts,
        method=method_of(Options(**method), consensus),
        adapter=Adapter.from_tensors(stored.batches, tensors),
        history=_history(tensors),
        converged=bool(known["converged"]),
        consensus=consensus,
        pooled=_pooled(stored),
        evidence=_evidence(stored),
    )
    for part in (fit.moments, fit.reference, fit.added):
        if part.batches.size:
            fit.method.rule.check(part)  # that they are moments for this target
    names = known.get("feature_names")
    if names is not None and not (_are_strings(names) and len(names) == fit.adapter.n_dims):
        raise BadValue(
            f"Expected the names of {fit.adapter.n_dims} coordinates, found {some_of([names])}."
        )
    return Saved(fit, params, _provenance(known["provenance"]), names, stored.written_by)


def _provenance(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a model is from; other commands take their defaults from these entries."""
    known = dict(stored)
    for name in ("batch_key", "use_rep", "key_added"):
        value = known.get(name)
        several = name == "batch_key" and _are_strings(value) and 0 < len(set(value)) == len(value)
        if not (value is None or isinstance(value, str) or several):
            raise BadValue(f"Expected the name of a column as {name}, found {some_of([value])}.")
    return known


def _are_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _method_as_json(method: Method) -> dict[str, Any]:
    """The method of a fit: parameters may be changed after it."""
    return params_as_json(
        asdict(method.weights)
        | {name: getattr(method, name) for name in ("solver", "rounds", "strength")}
        | {"target": method.rule}
    )


def params_as_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON types; a target or solver object as its name and options."""
    found = dict(params)
    found["solver"] = _to_json("solver", found["solver"], SOLVERS)
    found["target"] = _to_json("target", found["target"], TARGETS)
    return {name: plain(value) for name, value in found.items()}


def params_from_json(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters from the result of :func:`params_as_json`."""
    params = dict(stored)
    for name, kinds in (("solver", SOLVERS), ("target", TARGETS)):
        if isinstance(params.get(name), dict):
            options = dict(params[name])
            if options["name"] == "population":  # other targets may have options of these names
                options.pop("ridge", None)  # an option of version 0.1.0
                if "settings" in options:
                    options["settings"] = PopulationSettings.from_json(options["settings"])
            params[name] = kinds[options.pop("name")](**options)
    # In version 0.1.0 the options of the moment target were parameters of the estimator.
    old = {name: params.pop(name) for name in ("variance_matching", "eps") if name in params}
    # Its default was the moment target.
    if (
        params.setdefault("target", "moment") == "moment"
        and old
        and MomentTarget(**old) != MomentTarget()
    ):
        params["target"] = MomentTarget(**old)
    return params


def _moments(tensors: Mapping[str, np.ndarray], part: str, batches: np.ndarray) -> Moments:
    rows = store.row_map(tensors, f"{part}.", batches.size)
    n, mean, m2 = (tensors[f"{part}.{name}"] for name in MOMENTS[1:])
    return Moments(batches, rows, n, mean, m2, tensors.get(f"{part}.anchor"))


def _history(tensors: Mapping[str, np.ndarray]) -> History | Trace:
    """Return the rounds: those of a solver, also for any target of earlier versions, or a trace."""
    if "history.matched" in tensors:
        return Trace(*(tensors[f"history.{name}"] for name in TRACE))
    return History(*(tensors[f"history.{name}"] for name in HISTORY))


def _evidence(stored: store.Stored) -> Evidence:
    """Return the saved evidence; there is none of the moment target, and in files of earlier versions."""
    if "evidence" not in stored.params:
        return Evidence.none()
    batches = np.array(stored.params["evidence"], dtype=stored.batches.dtype)
    unknown = batches[~np.isin(batches, stored.batches)]
    if unknown.size or not (batches[1:] > batches[:-1]).all():
        raise BadValue(
            f"Expected evidence on batches of the model, sorted, found {some_of(batches.tolist())}."
        )
    return Evidence(batches, *(stored.tensors[f"evidence.{name}"] for name in EVIDENCE))


def _consensus(stored: store.Stored) -> Consensus | None:
    """Return the saved consensus; ``None`` for the moment target, and in files of versions 0.1.0 and 0.2.0.

    That of 0.2.0 was made without evidence, so no batch is compared with it.
    """
    known = stored.params.get("consensus")
    if known is None or "variance" not in known:
        return None
    origin, mass, total, cells = (stored.tensors[f"consensus.{name}"] for name in CONSENSUS)
    turning = Turning(*(stored.tensors[f"consensus.{name}"] for name in TURNING))
    (d,), q = stored.tensors["scale"].shape[1:], turning.into.shape[1]
    shapes = [part.shape for part in (origin, mass, total, cells, *turning)]
    K = mass.size
    if shapes != [(d,), (K,), (K, d), (K,), (d, q), (q, d)]:
        raise BadValue(
            f"Expected a consensus of shapes (d,), (K,), (K, d), (K,), (d, q) and (q, d), found {shapes}."
        )
    settings = PopulationSettings.from_json(known["settings"])
    together, smooth = known["together"], known["smooth"]
    if not (isinstance(together, bool) and isinstance(smooth, bool)):
        raise BadValue(
            f"Expected true or false of a consensus, found {some_of([together, smooth])}."
        )
    return Consensus(
        settings, origin, float(known["variance"]), mass, total, cells, turning, together, smooth
    )


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
            if name == "population":
                options["settings"] = options["settings"].to_json()
            return {"name": name} | {key: plain(option) for key, option in options.items()}
    raise BadType(f"Expected a {what} that can be saved ({', '.join(kinds)}), found {value!r}.")
