"""The commands of ``scbatchprox embed``: from counts to an embedding by a frozen reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import Genes, Methods
from ..errors import BadValue
from . import options as o
from .output import Speaker

if TYPE_CHECKING:
    from ..upstream import Upstream

__all__ = ["embed"]

embed = typer.Typer(
    name="embed",
    help="Embed counts with a reference that stays as it is: a frozen PCA, or scVI with surgery.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


CountFiles = Annotated[
    list[Path],
    typer.Argument(metavar="COUNTS...", help=".h5ad or .zarr files with counts, taken together."),
]
CountFile = Annotated[
    Path, typer.Argument(metavar="COUNTS", help="An .h5ad or .zarr file with counts.")
]
Layer = Annotated[str | None, typer.Option(help="Layer with the counts; by default X.")]
Fractional = Annotated[
    bool, typer.Option("--fractional", help="Take other numbers than whole ones as counts too.")
]
MinShared = Annotated[
    float, typer.Option(help="Smallest share of the reference's genes that is enough.")
]
Reference = Annotated[
    Path, typer.Option("--upstream", help="A reference saved by embed fit or embed surgery.")
]
Saved = Annotated[Path, typer.Option(help="Save the reference here (.safetensors).")]
Epochs = Annotated[int | None, typer.Option(help="Of scVI's training; by default scVI's choice.")]
Seed = Annotated[int, typer.Option(help="Of scVI's training.")]


@embed.command(
    epilog="Example: `scbatchprox embed fit first.h5ad second.h5ad --out pca.safetensors`"
)
def fit(
    paths: CountFiles,
    out: Saved,
    method: Annotated[Methods, typer.Option(help="Kind of reference.")] = Methods.pca,
    coordinates: Annotated[
        int | None, typer.Option(help="Width of the embedding; by default 40 (pca) or 10 (scvi).")
    ] = None,
    genes: Annotated[
        Genes,
        typer.Option(
            help="Genes to embed with: the most variable ones by scanpy, those flagged in "
            "var['highly_variable'], or all."
        ),
    ] = Genes.scanpy,
    hvgs: Annotated[int, typer.Option(help="How many genes scanpy chooses.")] = 2500,
    layer: Layer = None,
    fractional: Fractional = False,
    batch_key: Annotated[
        list[str] | None,
        typer.Option(help="scvi only: column with the batch of each cell; repeat to combine."),
    ] = None,
    max_epochs: Epochs = None,
    seed: Seed = 0,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Fit a reference to the first batches, or to all batches so far, on the genes that all files have."""
    speaker = Speaker(quiet, verbose, as_json)
    with speaker.answering():
        from ..upstream import PCAUpstream, ScviUpstream
        from ..upstream.on_disk import read_counts

        if method == Methods.scvi and not batch_key:
            raise BadValue("Expected --batch-key for scVI, found none.")
        if method == Methods.pca and batch_key:
            raise BadValue("Expected --batch-key only with --method scvi, found it for a PCA.")
        _check_place(out, *paths)
        cells = read_counts(paths, layer=layer, batch_key=batch_key, fractional=fractional)
        common: dict[str, Any] = {"genes": genes.value, "n_hvgs": hvgs, "fractional": fractional}
        fitted: Upstream
        if method == Methods.pca:
            fitted = PCAUpstream.fit(cells, n_components=coordinates or 40, **common)
        else:
            fitted = ScviUpstream.fit(
                cells, batch_key or [], n_latent=coordinates or 10, max_epochs=max_epochs, seed=seed,
                verbose=verbose, **common,
            )  # fmt: skip
        fitted.save(out)
        facts = _facts(fitted, out) | {"n_cells": cells.n_obs, "n_genes": cells.n_vars}
        speaker.say(
            f"{method.value} of {cells.n_obs:,} cells: {facts['n_genes_used']:,} of {cells.n_vars:,} "
            f"genes, {fitted.n_dims} coordinates, fingerprint {fitted.fingerprint[:21]}\nwrote {out}"
        )
        speaker.answer(facts)


@embed.command(
    epilog="Example: `scbatchprox embed apply donor7.h5ad --upstream pca.safetensors --in-place`"
)
def apply(
    path: CountFile,
    upstream: Reference,
    key_added: Annotated[
        str | None, typer.Option(help="Name of the embedding; by default X_pca or X_scvi.")
    ] = None,
    out: o.Out = None,
    in_place: o.InPlace = False,
    layer: Layer = None,
    min_shared: MinShared = 0.5,
    fractional: Fractional = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Embed cells with a saved reference, and say which of its genes they lack."""
    speaker = Speaker(quiet, verbose, as_json)
    with speaker.answering(), speaker.progress() as progress:
        from ..upstream import load
        from ..upstream.on_disk import embed_file

        place = o.where(out, in_place, path=path, upstream=upstream)
        reference = load(upstream)
        report = embed_file(
            path,
            reference,
            layer=layer,
            key_added=key_added,
            out=place,
            min_shared=min_shared,
            fractional=fractional,
            progress=progress,
        )
    with speaker.answering():
        written = str(place or path)
        speaker.say(f"{report}\nwrote {written}")
        speaker.answer(_facts(reference, upstream) | {"written": written, "genes": report.facts()})


@embed.command(
    epilog="Example: `scbatchprox embed surgery donor7.h5ad --upstream scvi.safetensors --out "
    "scvi7.safetensors`"
)
def surgery(
    path: CountFile,
    upstream: Reference,
    out: Saved,
    layer: Layer = None,
    min_shared: MinShared = 0.5,
    fractional: Fractional = False,
    max_epochs: Epochs = None,
    seed: Seed = 0,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Give an scVI reference weights for new batches; cells of others keep their coordinates."""
    speaker = Speaker(quiet, verbose, as_json)
    with speaker.answering():
        from ..upstream import ScviUpstream
        from ..upstream.on_disk import read_counts

        _check_place(out, path, upstream)
        reference = ScviUpstream.load(upstream)
        cells = read_counts(
            [path], layer=layer, batch_key=reference.batch_key, fractional=fractional
        )
        grown = reference.surgery(
            cells, min_shared=min_shared, fractional=fractional, max_epochs=max_epochs, seed=seed,
            verbose=verbose,
        )  # fmt: skip
        grown.save(out)
        new = grown.batches[len(reference.batches) :]
        speaker.say(
            f"weights for {', '.join(new)} beside {len(reference.batches)} batches\nwrote {out}"
        )
        speaker.answer(_facts(grown, out) | {"added": list(new), "batches": list(grown.batches)})


def _check_place(out: Path, *others: Path) -> None:
    """Say before anything is computed where the reference cannot be saved."""
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise BadValue(f"Expected a place for a file as --out, found none at {out}.")
    for path in others:
        o.apart(path=path, out=out)


def _facts(upstream: Upstream, path: Path) -> dict[str, Any]:
    return {
        "upstream": str(path),
        "method": upstream.method,
        "fingerprint": upstream.fingerprint,
        "coordinates": upstream.n_dims,
        "n_genes_used": upstream.n_genes,
    }
