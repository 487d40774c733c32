"""The commands of ``scbatchprox atlas``: their options, and the text that they print."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadKey, BadValue
from . import options as o
from .command import command
from .output import Output

if TYPE_CHECKING:
    import pandas as pd

    from ..atlas import Atlas

__all__ = ["Policies", "atlas"]


class Policies(StrEnum):
    """Policies by name."""

    frozen = "frozen"
    refit = "refit"


At = Annotated[Path, typer.Argument(metavar="ATLAS", help="Folder of the atlas.")]
Upstream = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT|FILE",
        help="Source of the embedding: a reference saved by embed fit, any other file or folder (its "
        "checksum is kept), or any text. Cells from another source are refused.",
    ),
]
Policy = Annotated[
    Policies, typer.Option(help="frozen: no old row changes; refit: all rows are fitted again.")
]


@dataclass
class AddedFile:
    """A file with cells; what is not given is that of the latest file that was added."""

    cells: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="A .h5ad, .zarr, .npy, .npz, .parquet, .csv or .tsv file with cells."
        ),
    ]
    batch_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Column with the batch of each cell; repeat to combine columns; by default that of the "
            "latest file added."
        ),
    ] = None
    use_rep: Annotated[
        str | None,
        typer.Option(help="Embedding; by default that of the latest file added, or X_pca."),
    ] = None
    labels: o.LabelsFile = None

    def of(self, at: Atlas) -> dict[str, Any]:
        """Return the parameters of the methods of an atlas for files."""
        from ..io.formats import kind_of

        latest, use_rep = at.source, self.use_rep
        keys = self.batch_key or latest.get("batch_key")
        if not keys:
            raise BadValue(
                "Expected --batch-key, found none, and no file was added to the atlas yet."
            )
        # Names of embeddings differ between kinds of files.
        if not use_rep and latest and kind_of(latest["name"]) == kind_of(self.cells):
            use_rep = latest["use_rep"]
        return {
            "path": self.cells,
            "batch_key": list(keys),
            "use_rep": use_rep,
            "labels": self.labels,
        }


atlas = typer.Typer(
    name="atlas",
    help="Keep a growing model: add batches, forget them, return to any version.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@command(atlas, "scbatchprox atlas init lung --rounds 3 --upstream pca.safetensors")
def init(output: Output, *, path: At, upstream: Upstream = None, method: o.Method) -> None:
    """Create an atlas without batches."""
    from ..atlas import Atlas

    made = Atlas.create(path, model=o.model_of(method), upstream=upstream)
    output.print_line(f"created {path}, version 1")
    output.print_json(_state(made) | {"upstream": made.upstream, "params": made.params})


@command(atlas, "scbatchprox atlas add lung donor7.h5ad --batch-key donor --dry-run")
def add(
    output: Output,
    *,
    path: At,
    source: AddedFile,
    policy: Policy = Policies.frozen,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Judge the batches, and add nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also add batches that are very far, or cannot be compared with the atlas.",
        ),
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add more cells of batches that the atlas has.")
    ] = False,
    upstream: Upstream = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Write the distance of each cell from the atlas to this .csv."),
    ] = None,
    mark: Annotated[
        bool,
        typer.Option(
            "--mark",
            help="Write the distances to IN (.h5ad): obs columns atlas_distance and atlas_far.",
        ),
    ] = False,
) -> None:
    """Judge the batches of a file, and add them unless one must be forced."""
    with output.progress() as progress:
        at = _open(path)
        # An empty atlas has no batches to score cells against; --scores and --mark are errors then.
        arrival = at.add_file(
            **source.of(at), policy=policy.value, force=force, merge=merge, upstream=upstream,
            dry_run=dry_run, scores=dry_run and bool(at.batches), scores_out=scores, mark=mark,
            progress=progress,
        )  # fmt: skip
    for batch, row in arrival.judgement.iterrows():
        output.print_line(_sentence(batch, row))
    done = f"added as version {at.version}" if arrival.version else "dry run: nothing was added"
    output.print_line(done, *([f"wrote {scores}"] if scores else []))
    judged = {"added": arrival.version is not None, "judgement": _records(arrival.judgement)}
    output.print_json(_state(at) | judged)


@command(atlas, "scbatchprox atlas forget lung donor3")
def forget(
    output: Output,
    path: At,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="The batch to forget.")],
    policy: Policy = Policies.frozen,
) -> None:
    """Remove a batch, as if it had never been added; reads no cells."""
    at = _open(path)
    version = at.forget(_label(at, batch), policy=policy.value)
    output.print_line(f"forgot {batch}: version {version}")
    output.print_json(_state(at))


@command(atlas, "scbatchprox atlas apply lung donor7.h5ad --batch-key donor --out refined.h5ad")
def apply(
    output: Output,
    *,
    path: At,
    source: AddedFile,
    key_added: o.KeyAdded = None,
    result: o.Result,
    cluster: o.Cluster,
) -> None:
    """Refine cells of batches that the atlas holds, with its current version."""
    with output.progress() as progress:
        out = result.place(path=source.cells, labels=source.labels)
        at = _open(path)
        at.apply_file(
            **source.of(at),
            key_added=key_added,
            out=out,
            cluster=cluster.address(),
            progress=progress,
        )
    written = str(out or source.cells)
    output.print_line(f"wrote {written}")
    output.print_json(_state(at) | {"written": written})


@command(atlas, "scbatchprox atlas log lung --json")
def log(output: o.NoQuiet, path: At) -> None:
    """Show all versions: action, batches added and removed, cells and date."""
    import pandas as pd

    from ..atlas.log import action

    at = _open(path)
    table = at.log()
    actions = [action(row) for row in at.entries()]
    shown = pd.DataFrame({"action": actions}, index=table.index).assign(
        added=table["added"].map(_names),
        removed=table["removed"].map(_names),
        batches=table["n_batches"],
        cells=table["n_cells"].map("{:,}".format),
        date=table["when"].str.slice(0, 10),
    )
    output.print_table(shown)
    output.print_json(_state(at) | {"upstream": at.upstream, "versions": at.entries()})


@command(atlas, "scbatchprox atlas diff lung 3 5")
def diff(
    output: o.NoQuiet,
    path: At,
    a: Annotated[int, typer.Argument(metavar="A", help="A version.")],
    b: Annotated[int, typer.Argument(metavar="B", help="Another version.")],
) -> None:
    """Show the changes from version A to version B: batches, parameters, and rows of the adapter."""
    found = _open(path).diff(a, b)
    output.print_line(f"added: {_names(found.added) or 'none'}")
    output.print_line(f"removed: {_names(found.removed) or 'none'}")
    for name, (old, new) in found.params.items():
        output.print_line(f"{name}: {old} changed to {new}")
    same = (found.rows[["scale_change", "shift_change"]] == 0).all(axis=1)
    output.print_line(
        f"batches in both versions: {len(same)}, of which {int(same.sum())} are identical"
    )
    output.print_table(found.rows)
    facts = {"added": found.added, "removed": found.removed, "params": found.params}
    output.print_json({"a": a, "b": b, **facts, "rows": _records(found.rows)})


@command(atlas, "scbatchprox atlas rollback lung 4")
def rollback(
    output: Output,
    path: At,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version to return to.")],
) -> None:
    """Return to an earlier version, by a new version with the same content; no version is lost."""
    at = _open(path)
    number = at.rollback(version)
    output.print_line(f"version {number} is the same as version {version}")
    output.print_json(_state(at) | {"same_as": version})


def _open(path: Path) -> Atlas:
    from ..atlas import Atlas

    return Atlas.open(path)


def _label(at: Atlas, text: str) -> Any:
    """The batch with this label as text: labels may be numbers."""
    from ..core.checks import some_of

    known = list(at.batches)
    for label in known:
        if str(label) == text:
            return label
    raise BadKey(f"Expected a batch of the atlas, found {text!r}; available: {some_of(known)}.")


def _state(at: Atlas) -> dict[str, Any]:
    batches = at.batches
    return {
        "atlas": str(at.path),
        "version": at.version,
        "batches": list(batches),
        "n_cells": sum(batches.values()),
    }


def _names(counts: list[dict[str, Any]]) -> str:
    """List batches with their numbers of cells; only the first few of many."""
    shown = [f"{count['batch']} ({count['n_cells']:,})" for count in counts[:8]]
    more = f", ... ({len(counts)} in all)" * (len(counts) > 8)
    return ", ".join(shown) + more


def _sentence(batch: Any, row: Any) -> str:
    """Return the judgement on a batch as text."""
    sentence = f"{batch} ({row['n_cells']:,} cells) is {row['verdict']}."
    from ..diagnosis.verdict import FIRST

    if row["level"] != FIRST:
        sentence += f" Nearest is {row['nearest']} ({row['nearest_distance']:.2f} spreads)"
        ratio = row["spread_ratio"]
        if ratio == ratio:  # not NaN
            sentence += f"; its spread is {ratio:.2f} times that of the atlas' batches"
        sentence += f"; the adapter moves it by {row['moved']:.2f} of its own spread."
        if "matched" in row and row["matched"] == row["matched"]:
            sentence += f" {row['matched']:.0%} of its cells meet the atlas."
        sentence += f" Advice: {row['advice']}."
    if "far_cells" in row:
        from ..atlas.scores import CELL_FAR

        share = row["far_cells"] / row["n_cells"]
        sentence += (
            f" {row['far_cells']:,} cells ({share:.1%}) are far from all batches of the atlas "
            f"(score above {CELL_FAR:g})."
        )
    return sentence


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, which has no NaN."""
    rows = table.reset_index().to_dict("records")
    return [{str(k): None if v != v else v for k, v in row.items()} for row in rows]
