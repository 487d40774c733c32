"""What is damaged, and the commands and functions that then open it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .anndata_files import COUNTED, damage_h5ad, damage_zarr, damaged_h5ad, damaged_zarr
from .arrays import damage_npy, damage_npz
from .damage import damaged_bytes
from .doors import (
    apply_command,
    apply_damaged,
    atlas_add,
    atlas_apply,
    atlas_change,
    atlas_log,
    atlas_open,
    evaluate,
    grow_model,
    inspect,
    load_model,
    mark,
    refine,
    refine_command,
    refine_in_place,
)
from .extremes import damage_values, fit_command, fit_extreme, refine_extreme
from .faults import FAULT_SEEDS, failing_write
from .links import (
    LINK_CHANGING,
    LINK_DOORS,
    SYMLINK_CHANGING,
    SYMLINK_DOORS,
    damage_links,
    damage_names,
    damage_symlinks,
    embed_apply,
    embed_apply_in_place,
    embed_fit,
)
from .models import damage_atlas, damage_model
from .pages import damage_texts, report_page
from .places import PLACE_SEEDS, odd_path, open_odd, put_odd
from .target import Damage, Target
from .text import damage_text

__all__ = ["TARGETS"]


def _journal(rng: np.random.Generator, path: Path) -> None:
    where = path.with_name(f".{path.name}.journal")
    where.write_bytes(damaged_bytes(rng, where.read_bytes()))


def _bytes(rng: np.random.Generator, path: Path) -> None:
    path.write_bytes(damaged_bytes(rng, path.read_bytes()))


def _counts(rng: np.random.Generator, path: Path) -> None:
    (damaged_h5ad if path.suffix == ".h5ad" else damaged_zarr)(rng, path, COUNTED)


def _nothing(rng: np.random.Generator, path: Path) -> None:
    """The file stays valid: something else is wrong."""


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
#: Files that are valid, or damaged in one respect only, and what strangers may do with it.
TARGETS |= {
    "links": Target(
        ("counts.h5ad", "refined.h5ad"), damage_links, LINK_DOORS, ("sentinel.h5ad",), LINK_CHANGING,
        share=1.5, crashes=False, seconds=30,
    ),
    "zarr-names": Target(
        ("counts2.zarr", "counts3.zarr"), damage_names, LINK_DOORS,
        ("sentinel2.zarr", "sentinel3.zarr"), LINK_CHANGING[:-1], share=0.5, seconds=30,
    ),
    "zarr-links": Target(
        ("counts2.zarr", "counts3.zarr"), damage_symlinks, SYMLINK_DOORS,
        ("sentinel-plain2.zarr", "sentinel-plain3.zarr"), SYMLINK_CHANGING, share=0.7, seconds=30,
    ),
    "writes": Target(
        FAULT_SEEDS, _nothing, (), ("cells.h5ad", "labels.txt", "pca.safetensors"), (failing_write,),
        share=1.5, crashes=False, seconds=30,
    ),
    "counts": Target(
        ("counts.h5ad", "counts.h5ad", "counts2.zarr", "counts3.zarr"), _counts,
        (embed_fit, embed_apply), changing=(embed_apply_in_place,), share=1.5,
    ),
    "places": Target(
        PLACE_SEEDS, put_odd, (), ("cells.npy", "labels.txt"), (open_odd,), share=0.7, crashes=False,
        seconds=10,
    ),
    "paths": Target(
        ("cells.h5ad", "cells.npy", "cells2.zarr", "cells.csv", "cells.parquet", "cells.npz"), _nothing,
        (odd_path,), named=False, share=0.3,
    ),
    "reports": Target(
        ("refined.h5ad", "refined.h5ad", "refined.h5ad", "cells.csv", "cells.parquet"), damage_texts,
        (), changing=(report_page,), share=0.4, seconds=30,
    ),
    "extremes": Target(
        ("cells.npy",), damage_values, (fit_extreme, fit_extreme, refine_extreme, fit_command),
        ("labels.txt",), share=1.5, named=False,
    ),
}  # fmt: skip
