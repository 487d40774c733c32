"""The command ``scbatchprox report``: one HTML file on what a refinement does."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from ..choices import Views
from . import options as o
from .output import Output

__all__ = ["report"]


def report(
    output: Output,
    *,
    source: o.CellFileOptions,
    out: Annotated[Path, o.files("--out", "-o", help="The report, an .html file.")],
    label_key: Annotated[
        str | None, o.files(help="Column with the type of each cell, for names and scores.")
    ] = None,
    key_added: o.KeyAdded = None,
    target: Annotated[
        str | None,
        o.how(
            help="Refine anew with this target, moment or population. By default a refined embedding in "
            "the file is shown, and otherwise the default target is used."
        ),
    ] = None,
    view: Annotated[
        Views,
        o.printing(
            help="Axes of the pictures. auto: UMAPs in the file, or a UMAP if umap-learn is installed, "
            "or else principal axes."
        ),
    ] = Views.auto,
    seed: Annotated[int, o.how(help="Seed of the samples.")] = 0,
) -> None:
    """Write a report on what a refinement does to each batch; IN is not changed."""
    o.check_different(path=source.path, labels=source.labels, out=out)
    given = dict(vars(source))
    with output.progress() as progress:
        from ..reporting.report import report as write

        write(
            given.pop("path"), **given, label_key=label_key, key_added=key_added, out=out,
            view=view.value, seed=seed, progress=progress,
            call=shlex.join(["scbatchprox", *map(_name, sys.argv[1:])]),
            **({} if target is None else {"target": target}),
        )  # fmt: skip
    size = out.stat().st_size
    output.print_line(f"wrote {out} ({size / 1e6:.1f} MB)")
    output.print_json({"written": str(out), "bytes": size})


def _name(word: str) -> str:
    """Return a path without its folders, which are nobody else's business."""
    return Path(word).name if "/" in word else word
