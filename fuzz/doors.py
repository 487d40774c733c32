"""Commands and functions that open files, called with a generator, a file and the valid files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scbatchprox import BatchProx
from scbatchprox.api.files import apply_file, refine_file
from scbatchprox.atlas import Atlas
from scbatchprox.io.formats import kind_of, open_cells

from .damage import pick
from .seeds import N
from .target import Wrong, run

__all__ = [
    "apply_command", "apply_damaged", "atlas_add", "atlas_apply", "atlas_change", "atlas_log", "atlas_open",
    "check_result", "evaluate", "grow_model", "inspect", "keyed", "labels_of", "load_model", "mark", "refine",
    "refine_command", "refine_in_place",
]  # fmt: skip


def _rep(rng: np.random.Generator, path: Path) -> str | None:
    if kind_of(path) in (".h5ad", ".zarr"):
        return pick(rng, ("X_pca", "X_pca", "X_pca", "sparse", "column", "frame"))  # type: ignore[no-any-return]
    if kind_of(path) == ".npy" or rng.random() < 0.5:
        return None
    return "X_pca" if kind_of(path) == ".npz" else "PC"


def _key(rng: np.random.Generator, path: Path) -> str:
    if kind_of(path) not in (".h5ad", ".zarr"):
        return str(pick(rng, ("batch", "batch", "site")))
    others = ("site", "whole", "number", *(("old",) if path.name == "cells.h5ad" else ()))
    return str(pick(rng, ("batch",) * 4 + others))


def labels_of(path: Path) -> dict[str, Any]:
    """The file of labels beside an array."""
    found = [item for item in path.parent.iterdir() if item.name.startswith("labels.")]
    return {"labels": found[0]} if kind_of(path) == ".npy" and found else {}


def check_result(path: Path, name: str | None) -> None:
    """A result has a value for every cell, and can be read."""
    with open_cells(path) as file:
        rows = file.embedding(name)
        found = rows[0 : rows.shape[0]]
        if not np.isfinite(np.asarray(found)).all() or len(found.shape) != 2 or not len(found):
            raise Wrong(f"a result of shape {found.shape} that is not finite")


def refine(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Refine to another file."""
    out = path.with_name(f"out{kind_of(path)}")
    rep = _rep(rng, path)
    diagnose = pick(rng, (None, False, False))
    refine_file(
        path, _key(rng, path), use_rep=rep, key_added="done" if keyed(path) else None, out=out,
        diagnose=diagnose, **labels_of(path),
    )  # fmt: skip
    check_result(out, "done" if keyed(path) else rep)


def keyed(path: Path) -> bool:
    """Whether the results in a file have names."""
    return kind_of(path) in (".h5ad", ".zarr", ".npz")


def refine_in_place(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Refine into the file itself."""
    rep = _rep(rng, path)
    refine_file(path, _key(rng, path), use_rep=rep, diagnose=False, **labels_of(path))


def refine_command(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox refine``."""
    more = [f"--labels={labels}" for labels in labels_of(path).values()]
    out = path.with_name(f"out{kind_of(path)}")
    run("refine", "refine", path, "--batch-key", _key(rng, path), "--out", out, *more)


def apply_command(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox apply`` or ``inverse``, of a valid model."""
    more = [f"--labels={labels}" for labels in labels_of(path).values()]
    more += ["--use-rep", "X_pca", "--key-added", "done"] if keyed(path) else []
    verb = pick(rng, ("apply", "inverse"))
    out = path.with_name(f"out{kind_of(path)}")
    model = valid / "model.safetensors"
    run(verb, verb, path, "--batch-key", "batch", "--model", model, "--out", out, *more)


def atlas_add(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas add --dry-run`` to a valid atlas."""
    more = [f"--labels={labels}" for labels in labels_of(path).values()]
    more += ["--use-rep", "X_pca"] if keyed(path) else []
    run(
        "add",
        "atlas",
        "add",
        valid / "atlas",
        path,
        "--batch-key",
        "site",
        "--dry-run",
        "--merge",
        *more,
    )


def evaluate(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox evaluate``."""
    rep = "X_pca" if keyed(path) else "PC"
    keys = ["--batch-key", "batch", "--label-key", "site"]
    run("evaluate", "evaluate", path, *keys, "--reps", rep, "--profile", "fast", "--runs", "1")


def mark(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Write scores into ``obs`` of an .h5ad file."""
    more = ["--use-rep", "X_pca", "--dry-run", "--mark"]
    run("mark", "atlas", "add", valid / "atlas", path, "--batch-key", "site", *more)


def load_model(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Load a model and refine with it."""
    model = BatchProx.load(path)
    out = path.with_name("out.npy")
    apply_file(valid / "cells.npy", model.adapter_, "b", labels=valid / "labels.txt", out=out)
    check_result(out, None)


def grow_model(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Load a model and use all that it holds."""
    model = BatchProx.load(path)
    model.movement()
    more = np.load(valid / "cells.npy")[:, : model.n_features_in_]
    if more.shape[1] == model.n_features_in_:
        model.partial_fit(more, batch=np.repeat(["s1", "new"], N // 2))
        model.forget("new")
        model.save(path.with_name("out.safetensors"))
        BatchProx.load(path.with_name("out.safetensors"))


def inspect(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox inspect``."""
    run("inspect", "inspect", path, *pick(rng, ([], ["--json"])))


def apply_damaged(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox apply`` of a damaged model to valid cells."""
    out, cells = path.with_name("out.h5ad"), valid / "cells.h5ad"
    run("apply", "apply", cells, "--model", path, "--out", out)


def atlas_log(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas log`` and ``diff``."""
    run("log", "atlas", "log", path, *pick(rng, ([], ["--json"])))
    run("diff", "atlas", "diff", path, *pick(rng, (("2", "3"), ("3", "4"), ("1", "5"))))


def atlas_apply(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas apply``."""
    out = path.with_name("out.h5ad")
    run("apply", "atlas", "apply", path, valid / "cells.h5ad", "--out", out)


def atlas_open(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Open an atlas in Python and read all of it."""
    at = Atlas.open(path)
    at.log()
    at.source, at.params  # noqa: B018
    model = at.model
    if model is not None:
        model.movement()


def atlas_change(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Commands that add a version."""
    more = ["--batch-key", "site", "--use-rep", "X_pca", "--force"]
    match int(rng.integers(3)):
        case 0:
            run("forget", "atlas", "forget", path, "s1")
        case 1:
            run("rollback", "atlas", "rollback", path, pick(rng, ("1", "2", "3")))
        case _:
            run("add", "atlas", "add", path, valid / "cells.h5ad", *more)
