"""Weights and values at the limits of their types: a sentence, or a finite result that can be kept."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from scbatchprox import Adam, BatchProx, MomentTarget, PopulationTarget
from scbatchprox.api.files import apply_file, refine_file

from .damage import pick
from .target import Wrong, run

__all__ = ["damage_values", "fit_command", "fit_extreme", "refine_extreme"]

_NUMBERS = (
    *(
        0.0,
        5e-324,
        5e-324,
        5e-324,
        1e-310,
        2.3e-308,
        1e-200,
        1e-45,
        1e-20,
        1e-8,
        0.5,
        1.0,
        1e8,
        1e20,
        1e38,
        3.5e38,
    ),
    *(1e100, 1e150, 1e160, 1e300, 1.7e308),
)
_ODD = (-0.0, -1.0, float("nan"), float("inf"), -5e-324)


def damage_values(rng: np.random.Generator, path: Path) -> None:
    """Give an array extreme values: all of them, a column, a batch, or one; or another type."""
    Z = np.load(path)
    for _ in range(int(rng.integers(3))):
        number = pick(rng, _NUMBERS) * pick(rng, (1.0, -1.0))
        with np.errstate(all="ignore"):
            match int(rng.integers(7)):
                case 0:
                    Z *= number
                case 1:
                    Z[:, 0] *= number
                case 2:
                    Z[: len(Z) // 2] *= number
                case 3:
                    Z += number
                case 4:
                    Z[:, 0] = number
                case 5:
                    Z[: len(Z) // 2] = number
                case _:
                    Z[int(rng.integers(len(Z))), 0] = number
    with np.errstate(all="ignore"):
        np.save(path, Z.astype(pick(rng, ("f8", "f8", "f4", "f4", "f2"))))


def _model(rng: np.random.Generator) -> BatchProx:
    return BatchProx(**_params(rng))


def _params(rng: np.random.Generator) -> dict[str, Any]:
    """Parameters of which some are extreme."""
    found: dict[str, Any] = {"target": pick(rng, ("moment", "moment", "population", _target))}
    if callable(found["target"]):
        found["target"] = found["target"](rng)
    for name in ("lambda_target", "mu", "lambda_id", "strength"):
        if rng.random() < 0.5:
            found[name] = _number(rng)
    if rng.random() < 0.4:
        found["rounds"] = pick(rng, (0, 1, 3, 10_000, None, "auto"))
    if rng.random() < 0.1:
        lr = _number(rng)
        found |= {
            "solver": Adam(lr=lr, local_epochs=1) if rng.random() < 0.5 else "adam",
            "rounds": 2,
        }
        found["target"] = "moment"
    return found


def _target(rng: np.random.Generator) -> Any:
    if rng.random() < 0.7:
        return MomentTarget(eps=_number(rng), variance_matching=bool(rng.random() < 0.7))
    return PopulationTarget(conditioned=bool(rng.random() < 0.5))


def _number(rng: np.random.Generator) -> float:
    return float(pick(rng, _NUMBERS if rng.random() < 0.9 else _ODD))


def fit_extreme(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Fit, save, load, and apply: finite, without a warning of numpy, and the same bits."""
    Z = np.load(path)
    batch = np.repeat(pick(rng, (["a", "b"], ["a", "b", "c"], ["a"])), len(Z))[: len(Z)]
    batch = batch if rng.random() < 0.5 else np.resize(["a", "b", "b"], len(Z))
    with _strict():
        model = _model(rng).fit(Z, batch=batch)
        refined = model.transform(Z, batch=batch)
        _check(refined, model)
        saved = path.with_name("out.safetensors")
        model.save(saved)
        try:
            again = BatchProx.load(saved)
        except Exception as error:
            raise Wrong(f"saved, but not loaded: {error}") from None
        other = again.transform(Z, batch=batch)
        if other.tobytes() != refined.tobytes() or other.dtype != refined.dtype:
            raise Wrong("another result after loading")
        model.movement()
        repr(model)


def refine_extreme(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Refine a file, and apply the saved model to it."""
    out, again = path.with_name("out.npy"), path.with_name("out2.npy")
    labels = path.with_name("labels.txt")
    with _strict():
        model = refine_file(
            path, "b", model=_model(rng), out=out, labels=labels, diagnose=pick(rng, (None, True, False))
        )  # fmt: skip
        _check(np.load(out), model)
        model.save(path.with_name("out.safetensors"))
        try:
            loaded = BatchProx.load(path.with_name("out.safetensors"))
        except Exception as error:
            raise Wrong(f"saved, but not loaded: {error}") from None
        apply_file(path, loaded.adapter_, "b", out=again, labels=labels)
        if out.read_bytes() != again.read_bytes():
            raise Wrong("another result after loading")


def fit_command(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox refine`` with extreme weights."""
    out, saved = path.with_name("out.npy"), path.with_name("out.safetensors")
    more = [
        "--target",
        pick(rng, ("moment", "population")),
        "--labels",
        path.with_name("labels.txt"),
    ]
    for flag in ("--lambda-target", "--mu", "--lambda-id", "--strength"):
        if rng.random() < 0.5:
            more += [f"{flag}={_number(rng)!r}"]
    with _strict():
        run("refine", "refine", path, "--batch-key", "b", "--out", out, "--model", saved, *more)
        run("apply", "apply", path, "--batch-key", "b", "--model", saved, "--out",
            path.with_name("out2.npy"), "--labels", path.with_name("labels.txt"))  # fmt: skip
    if out.read_bytes() != path.with_name("out2.npy").read_bytes():
        raise Wrong("another result after loading")


def _strict() -> warnings.catch_warnings[Any]:
    """Warnings of numpy are errors: a user cannot tell what they mean."""
    return warnings.catch_warnings(action="error", category=RuntimeWarning)


def _check(refined: np.ndarray, model: BatchProx) -> None:
    found = {"result": refined, "scale": model.scale_, "shift": model.shift_}
    broken = [name for name, values in found.items() if not np.isfinite(values).all()]
    if broken:
        raise Wrong(f"{', '.join(broken)} not finite, with {model.get_params(deep=False)}")
