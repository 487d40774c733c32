"""What is no regular file where one is expected, and paths that the system does not take."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np

from scbatchprox.errors import InputError

from .damage import pick
from .doors import (
    apply_command,
    apply_damaged,
    atlas_add,
    atlas_apply,
    atlas_change,
    atlas_log,
    atlas_open,
    evaluate,
    inspect,
    load_model,
    refine,
    refine_command,
    refine_in_place,
)
from .links import embed_apply, embed_fit
from .target import Door, Stopped, Wrong, run

__all__ = ["PLACE_SEEDS", "odd_path", "open_odd", "put_odd"]

PLACE_SEEDS = (
    *("cells.h5ad", "cells.npy", "cells.npz", "cells.parquet", "cells.csv", "cells.csv.gz"),
    *("cells2.zarr", "cells3.zarr", "counts.h5ad", "counts3.zarr", "labels.txt"),
    *("model.safetensors", "atlas", "atlas"),
)


def put_odd(rng: np.random.Generator, path: Path) -> None:
    """Put a pipe, a socket, a device, a circle of links or a folder in the place of a file."""
    place: Any = path
    if path.is_dir() and rng.random() < 0.9:
        files = sorted(path.rglob("*"))
        near = [item for item in files if _read(item.relative_to(path))]
        place = pick(rng, near or files)
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    match int(rng.integers(9)):
        case 0 | 1:
            os.mkfifo(place)
        case 2:
            with socket.socket(socket.AF_UNIX) as listener:
                folder = os.open(place.parent, os.O_RDONLY)
                listener.bind(f"/proc/self/fd/{folder}/{place.name}")  # names must be short
                os.close(folder)
        case 3:
            place.symlink_to(place.name)
        case 4:
            place.with_name("round").symlink_to(place.name)
            place.symlink_to("round")
        case 5:
            place.symlink_to(pick(rng, ("/dev/zero", "/dev/null", "/dev/full")))
        case 6:
            place.mkdir()
        case 7:
            os.mkfifo(place.with_name("pipe"))
            place.symlink_to("pipe")
        case _:
            place.symlink_to(pick(rng, ("nothing", "..", ".")))


def _read(place: Path) -> bool:
    """Whether a file of a store or an atlas is one that commands read."""
    return str(place).startswith(
        ("obs", "obsm", "uns", "X", "var", ".z", "zarr.json", "atlas", "ver")
    )


_CELLS: tuple[Door, ...] = (
    refine,
    refine_command,
    apply_command,
    atlas_add,
    evaluate,
    refine_in_place,
)
_DOORS: dict[str, tuple[Door, ...]] = {
    "counts": (embed_fit, embed_apply),
    "model": (load_model, inspect, apply_damaged),
    "atlas": (atlas_open, atlas_log, atlas_apply, atlas_change),
    "labels": (refine, refine_command),
}


def open_odd(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Open it by a command or function for files of its kind."""
    kind = next((kind for kind in _DOORS if path.name.startswith(kind)), "cells")
    door = pick(rng, _DOORS.get(kind, _CELLS))
    if kind == "labels":
        path = path.with_name("cells.npy")
    elif path.name == "cells.npy" and door is evaluate:
        door = refine
    door(rng, path, valid)


def odd_path(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Name a file by a path that is too long, or that no file can have; the sentence shows its beginning."""
    long = pick(rng, ("a" * 300, "a" * 5_000, "a" * 100_000, "a/" * 3_000, "é" * 200))
    name = pick(rng, (long, long, long, "a\nb", "\udcff", "\x1b[2J", " "))
    odd = f"{path.parent}/{name}{path.suffix}"
    keys = ["--batch-key", "batch"]
    out = path.with_name("out.h5ad")
    cells, model = valid / "cells.h5ad", valid / "model.safetensors"
    commands: list[list[object]] = [
        ["refine", odd, *keys, "--out", path.with_name(f"out{path.suffix}")],
        ["refine", cells, *keys, "--out", odd],
        ["refine", valid / "cells.npy", *keys, "--out", path.with_name("out.npy"), "--labels", odd],
        ["apply", cells, *keys, "--model", odd, "--out", out],
        ["apply", odd, *keys, "--model", model, "--out", out],
        ["inspect", odd],
        ["diagnose", odd, *keys],
        ["report", odd, *keys, "--out", path.with_name("out.html")],
        ["report", cells, *keys, "--view", "pca", "--out", f"{odd}.html"],
        ["evaluate", odd, *keys, "--label-key", "site", "--reps", "X_pca"],
        ["embed", "fit", odd, "--out", path.with_name("out.safetensors")],
        ["embed", "apply", odd, "--upstream", valid / "pca.safetensors", "--out", out],
        ["embed", "apply", valid / "counts.h5ad", "--upstream", odd, "--out", out],
        ["atlas", "log", odd],
        ["atlas", "add", valid / "atlas", odd, "--batch-key", "site", "--dry-run"],
        ["atlas", "init", odd],
    ]
    command = pick(rng, commands)
    words = [str(word) for word in command]
    told = " ".join(word.replace(name, f"[{name[:2]} {len(name)} characters]") for word in words)
    try:
        run(told, *command)
    except InputError as error:
        sentence = str(error).replace(name, "", 1)
        if "\n" in sentence or len(sentence) > 2000:
            raise Wrong(f"more than a sentence: {sentence[:300]!r}") from None
        raise Stopped from None
    finally:
        # A name that is odd, but not too long, may have been written to.
        for item in path.parent.iterdir():
            if not item.name.startswith("out") and item.name != path.name:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
