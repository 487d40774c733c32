"""The commands of ``scbatchprox atlas``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadKey, BadValue
from . import atlas_words as words
from . import options as o
from .atlas_options import At, BatchKey, Cells, Policies, Policy, Upstream, UseRep
from .output import Output

if TYPE_CHECKING:
    from ..atlas import Arrival, Atlas

__all__ = ["atlas"]

atlas = typer.Typer(
    name="atlas",
    help="Keep a growing model: add batches, forget them, return to any version.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@atlas.command(
    epilog="Example: `scbatchprox atlas init lung --rounds 3 --upstream pca.safetensors`"
)
@o.takes_method()
def init(
    path: At,
    upstream: Upstream = None,
    *,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
    **method: Any,
) -> None:
    """Create an atlas without batches."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas import Atlas

        model = o.model_of(method)
        made = Atlas.create(path, model=model, upstream=upstream)
        output.print_line(f"created {path}, version 1")
        output.print_json(_state(made) | {"upstream": made.upstream, "params": made.params})


@atlas.command(
    epilog="Example: `scbatchprox atlas add lung donor7.h5ad --batch-key donor --dry-run`"
)
def add(
    path: At,
    cells: Cells,
    batch_key: BatchKey = None,
    use_rep: UseRep = None,
    labels: o.LabelsFile = None,
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
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Judge the batches of a file, and add them unless one must be forced."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas import Atlas

        with output.progress() as progress:
            at = Atlas.open(path)
            # An empty atlas has no batches to score cells against; --scores and --mark are errors then.
            arrival = at.add_file(
                cells,
                _keys(at, batch_key),
                use_rep=use_rep or _rep(at, cells),
                labels=labels,
                policy=policy.value,
                force=force,
                merge=merge,
                upstream=upstream,
                dry_run=dry_run,
                scores=dry_run and at.model is not None,
                scores_out=scores,
                mark=mark,
                progress=progress,
            )
        for batch, row in arrival.judgement.iterrows():
            output.print_line(words.judgement(batch, row))
        done = f"added as version {at.version}" if arrival.version else "dry run: nothing was added"
        output.print_line(done, *([f"wrote {scores}"] if scores else []))
        output.print_json(_state(at) | _judgement(arrival))


@atlas.command(epilog="Example: `scbatchprox atlas forget lung donor3`")
def forget(
    path: At,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="The batch to forget.")],
    policy: Policy = Policies.frozen,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Remove a batch, as if it had never been added; reads no cells."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas import Atlas

        at = Atlas.open(path)
        version = at.forget(_label(at, batch), policy=policy.value)
        output.print_line(f"forgot {batch}: version {version}")
        output.print_json(_state(at))


@atlas.command(
    epilog="Example: `scbatchprox atlas apply lung donor7.h5ad --batch-key donor --out refined.h5ad`"
)
def apply(
    path: At,
    cells: Cells,
    batch_key: BatchKey = None,
    use_rep: UseRep = None,
    key_added: o.KeyAdded = None,
    out: o.Out = None,
    in_place: o.InPlace = False,
    labels: o.LabelsFile = None,
    dask: o.Dask = False,
    scheduler: o.Scheduler = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Refine cells of batches that the atlas holds, with its current version."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas import Atlas

        with output.progress() as progress:
            target = o.result_path(out, in_place, path=cells, labels=labels)
            at = Atlas.open(path)
            at.apply_file(
                cells,
                _keys(at, batch_key),
                use_rep=use_rep or _rep(at, cells),
                key_added=key_added,
                out=target,
                labels=labels,
                cluster=o.cluster(dask, scheduler),
                progress=progress,
            )
        output.print_line(f"wrote {target or cells}")
        output.print_json(_state(at) | {"written": str(target or cells)})


@atlas.command(epilog="Example: `scbatchprox atlas log lung --json`")
def log(path: At, verbose: o.Verbose = False, as_json: o.Json = False) -> None:
    """Show all versions: action, batches added and removed, cells and date."""
    output = Output(False, verbose, as_json)
    with output.handle_errors():
        import pandas as pd

        from ..atlas import Atlas
        from ..atlas.log import action

        at = Atlas.open(path)
        table = at.log()
        actions = [action(row) for row in at.entries()]
        shown = pd.DataFrame({"action": actions}, index=table.index).assign(
            added=table["added"].map(words.names),
            removed=table["removed"].map(words.names),
            batches=table["n_batches"],
            cells=table["n_cells"].map("{:,}".format),
            date=table["when"].str.slice(0, 10),
        )
        output.print_table(shown)
        output.print_json(_state(at) | {"upstream": at.upstream, "versions": at.entries()})


@atlas.command(epilog="Example: `scbatchprox atlas diff lung 3 5`")
def diff(
    path: At,
    a: Annotated[int, typer.Argument(metavar="A", help="A version.")],
    b: Annotated[int, typer.Argument(metavar="B", help="Another version.")],
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Show the changes from version A to version B: batches, parameters, and rows of the adapter."""
    output = Output(False, verbose, as_json)
    with output.handle_errors():
        from ..atlas import Atlas

        found = Atlas.open(path).diff(a, b)
        output.print_line(f"added: {words.names(found.added) or 'none'}")
        output.print_line(f"removed: {words.names(found.removed) or 'none'}")
        for name, (old, new) in found.params.items():
            output.print_line(f"{name}: {old} changed to {new}")
        same = (found.rows[["scale_change", "shift_change"]] == 0).all(axis=1)
        output.print_line(
            f"batches in both versions: {len(same)}, of which {int(same.sum())} are identical"
        )
        output.print_table(found.rows)
        output.print_json(
            {
                "a": a,
                "b": b,
                "added": found.added,
                "removed": found.removed,
                "params": found.params,
                "rows": words.records(found.rows),
            }
        )


@atlas.command(epilog="Example: `scbatchprox atlas rollback lung 4`")
def rollback(
    path: At,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version to return to.")],
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Return to an earlier version, by a new version with the same content; no version is lost."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas import Atlas

        at = Atlas.open(path)
        number = at.rollback(version)
        output.print_line(f"version {number} is the same as version {version}")
        output.print_json(_state(at) | {"same_as": version})


def _keys(at: Atlas, given: list[str] | None) -> list[str]:
    keys = given or at.source.get("batch_key")
    if not keys:
        raise BadValue("Expected --batch-key, found none, and no file was added to the atlas yet.")
    return list(keys)


def _rep(at: Atlas, cells: Path) -> str | None:
    """The embedding of the latest file, for a file of the same kind: names differ between kinds."""
    from ..io.formats import kind_of

    source = at.source
    same = bool(source) and kind_of(source["name"]) == kind_of(cells)
    return source["use_rep"] if same else None


def _label(at: Atlas, text: str) -> Any:
    """The batch with this label as text: labels may be numbers."""
    from ..core.checks import some_of

    model = at.model
    known = [] if model is None else model.batches_.tolist()
    for label in known:
        if str(label) == text:
            return label
    raise BadKey(f"Expected a batch of the atlas, found {text!r}; available: {some_of(known)}.")


def _state(at: Atlas) -> dict[str, Any]:
    model = at.model
    return {
        "atlas": str(at.path),
        "version": at.version,
        "batches": [] if model is None else model.batches_.tolist(),
        "n_cells": 0 if model is None else model.moments_.n_cells,
    }


def _judgement(arrival: Arrival) -> dict[str, Any]:
    return {"added": arrival.version is not None, "judgement": words.records(arrival.judgement)}
