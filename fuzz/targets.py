"""What is damaged, and the commands and functions that then open it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import typer.testing
from typer.testing import CliRunner

from scbatchprox import BatchProx
from scbatchprox.api.files import apply_file, refine_file
from scbatchprox.atlas import Atlas
from scbatchprox.cli.app import app
from scbatchprox.io.formats import kind_of, open_cells

from .anndata_files import damage_h5ad, damage_zarr
from .arrays import damage_npy, damage_npz
from .damage import damaged_bytes, pick
from .models import damage_atlas, damage_model
from .seeds import N
from .text import damage_text

# Otherwise each run of a command would build all commands again.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

__all__ = ["TARGETS", "Target", "Wrong"]

Damage = Callable[[np.random.Generator, Path], None]
Door = Callable[[np.random.Generator, Path, Path], None]


class Wrong(Exception):
    """A command ended in a way that it must not."""


@dataclass(frozen=True)
class Target:
    """Files of one kind: which seeds, how they are damaged, and the doors that read them.

    A door is called with a generator, the damaged file and a folder with the valid files. It returns, or
    raises as the library does. ``beside`` are files that lie beside the damaged one.
    """

    seeds: tuple[str, ...]
    damage: Damage
    doors: tuple[Door, ...]
    beside: tuple[str, ...] = ()
    #: Doors that change their input.
    changing: tuple[Door, ...] = ()
    share: float = 1.0


def _run(name: str, *arguments: object) -> None:
    """Run a command; exit code 2 becomes the library's error again, others are wrong."""
    from scbatchprox.errors import InputError

    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exit_code == 2:
        lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        if len(lines) != 1:
            raise Wrong(f"{name}: exit code 2 with {result.stderr!r}")
        raise InputError(lines[0])
    if result.exit_code != 0:
        shown = re.sub(r"\s+", " ", result.stderr)[-400:]
        raise Wrong(f"{name}: exit code {result.exit_code}: {shown} {result.exception!r}")


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


def _labels(path: Path) -> dict[str, Any]:
    """The file of labels beside an array."""
    found = [item for item in path.parent.iterdir() if item.name.startswith("labels.")]
    return {"labels": found[0]} if kind_of(path) == ".npy" and found else {}


def _check_result(path: Path, name: str | None) -> None:
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
        path, _key(rng, path), use_rep=rep, key_added="done" if _keyed(path) else None, out=out,
        diagnose=diagnose, **_labels(path),
    )  # fmt: skip
    _check_result(out, "done" if _keyed(path) else rep)


def _keyed(path: Path) -> bool:
    return kind_of(path) in (".h5ad", ".zarr", ".npz")


def refine_in_place(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Refine into the file itself."""
    rep = _rep(rng, path)
    refine_file(path, _key(rng, path), use_rep=rep, diagnose=False, **_labels(path))


def refine_command(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox refine``."""
    more = [f"--labels={labels}" for labels in _labels(path).values()]
    out = path.with_name(f"out{kind_of(path)}")
    _run("refine", "refine", path, "--batch-key", _key(rng, path), "--out", out, *more)


def apply_command(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox apply`` or ``inverse``, of a valid model."""
    more = [f"--labels={labels}" for labels in _labels(path).values()]
    more += ["--use-rep", "X_pca", "--key-added", "done"] if _keyed(path) else []
    verb = pick(rng, ("apply", "inverse"))
    out = path.with_name(f"out{kind_of(path)}")
    model = valid / "model.safetensors"
    _run(verb, verb, path, "--batch-key", "batch", "--model", model, "--out", out, *more)


def atlas_add(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas add --dry-run`` to a valid atlas."""
    more = [f"--labels={labels}" for labels in _labels(path).values()]
    more += ["--use-rep", "X_pca"] if _keyed(path) else []
    _run(
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
    rep = "X_pca" if _keyed(path) else "PC"
    keys = ["--batch-key", "batch", "--label-key", "site"]
    _run("evaluate", "evaluate", path, *keys, "--reps", rep, "--profile", "fast", "--runs", "1")


def mark(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Write scores into ``obs`` of an .h5ad file."""
    more = ["--use-rep", "X_pca", "--dry-run", "--mark"]
    _run("mark", "atlas", "add", valid / "atlas", path, "--batch-key", "site", *more)


def load_model(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Load a model and refine with it."""
    model = BatchProx.load(path)
    out = path.with_name("out.npy")
    apply_file(valid / "cells.npy", model.adapter_, "b", labels=valid / "labels.txt", out=out)
    _check_result(out, None)


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
    _run("inspect", "inspect", path, *pick(rng, ([], ["--json"])))


def apply_damaged(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox apply`` of a damaged model to valid cells."""
    out, cells = path.with_name("out.h5ad"), valid / "cells.h5ad"
    _run("apply", "apply", cells, "--model", path, "--out", out)


def atlas_log(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas log`` and ``diff``."""
    _run("log", "atlas", "log", path, *pick(rng, ([], ["--json"])))
    _run("diff", "atlas", "diff", path, *pick(rng, (("2", "3"), ("3", "4"), ("1", "5"))))


def atlas_apply(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas apply``."""
    out = path.with_name("out.h5ad")
    _run("apply", "atlas", "apply", path, valid / "cells.h5ad", "--out", out)


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
            _run("forget", "atlas", "forget", path, "s1")
        case 1:
            _run("rollback", "atlas", "rollback", path, pick(rng, ("1", "2", "3")))
        case _:
            _run("add", "atlas", "add", path, valid / "cells.h5ad", *more)


def _journal(rng: np.random.Generator, path: Path) -> None:
    where = path.with_name(f".{path.name}.journal")
    where.write_bytes(damaged_bytes(rng, where.read_bytes()))


def _bytes(rng: np.random.Generator, path: Path) -> None:
    path.write_bytes(damaged_bytes(rng, path.read_bytes()))


def _second(name: str, damage: Damage) -> Target:
    """A damaged file of labels beside a valid array."""

    def refine_labels(rng: np.random.Generator, path: Path, valid: Path) -> None:
        refine(rng, path.with_name("cells.npy"), valid)

    def command(rng: np.random.Generator, path: Path, valid: Path) -> None:
        refine_command(rng, path.with_name("cells.npy"), valid)

    return Target(
        (name,), damage, (refine_labels, refine_labels, command), ("cells.npy",), share=0.5
    )


_CELLS = (refine, refine, refine, refine_command, apply_command, atlas_add, evaluate)
_TEXT = Target(("cells.csv", "cells.tsv"), damage_text, _CELLS, changing=(refine_in_place,))

TARGETS: dict[str, Target] = {
    "h5ad": Target(
        ("cells.h5ad", "cells.h5ad", "latest.h5ad", "packed.h5ad"), damage_h5ad, _CELLS,
        changing=(refine_in_place, mark), share=3,
    ),
    "zarr": Target(
        ("cells2.zarr", "cells3.zarr"), damage_zarr, _CELLS, changing=(refine_in_place,), share=2
    ),
    "npy": Target(("cells.npy",), damage_npy, _CELLS[:-1], ("labels.txt",), (refine_in_place,)),
    "npz": Target(("cells.npz", "packed.npz"), damage_npz, _CELLS, changing=(refine_in_place,)),
    "parquet": Target(("cells.parquet",), _bytes, _CELLS, changing=(refine_in_place,)),
    "text": _TEXT,
    "gzip": Target(("cells.csv.gz", "cells.tsv.gz"), damage_text, _CELLS, (), (refine_in_place,)),
    "journal": Target(
        ("killed.h5ad",), _journal, (), (".killed.h5ad.journal",), (refine, refine_in_place), 0.5
    ),
    "model": Target(
        ("model.safetensors", "population.safetensors"), damage_model,
        (load_model, grow_model, inspect, apply_damaged), share=1.5,
    ),
    "atlas": Target(
        ("atlas",), damage_atlas, (atlas_open, atlas_log, atlas_apply), (), (atlas_change,), 1.5
    ),
    "labels-txt": _second("labels.txt", damage_text),
    "labels-npy": _second("labels.npy", damage_npy),
    "labels-csv": _second("labels.csv", damage_text),
}  # fmt: skip
