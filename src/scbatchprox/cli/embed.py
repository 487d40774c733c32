"""The commands of ``scbatchprox embed``: embed counts with a frozen reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import MIN_SHARED, N_COMPONENTS, N_HVGS, N_LATENT, Genes, Methods
from ..errors import BadValue
from . import options as o
from .command import command
from .output import Output

if TYPE_CHECKING:
    from ..upstream import Upstream

__all__ = ["embed"]

embed = typer.Typer(
    name="embed",
    help="Embed counts with a frozen reference: a PCA, or scVI with surgery.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


CountFiles = Annotated[
    list[Path],
    typer.Argument(metavar="COUNTS...", help=".h5ad or .zarr files with counts, which are joined."),
]
CountFile = Annotated[
    Path, typer.Argument(metavar="COUNTS", help="An .h5ad or .zarr file with counts.")
]
Layer = Annotated[str | None, typer.Option(help="Layer with the counts; by default X.")]
Fractional = Annotated[
    bool, typer.Option("--fractional", help="Accept counts that are not whole numbers.")
]
MinShared = Annotated[float, typer.Option(help="Smallest accepted share of the reference's genes.")]
Reference = Annotated[
    Path, typer.Option("--upstream", help="A reference saved by embed fit or embed surgery.")
]
Saved = Annotated[Path, typer.Option(help="Save the reference here (.safetensors).")]
Epochs = Annotated[
    int | None, typer.Option(help="Epochs of scVI's training; by default scVI's choice.")
]
Seed = Annotated[int, typer.Option(help="Seed of scVI's training.")]


@command(embed, "scbatchprox embed fit first.h5ad second.h5ad --out pca.safetensors")
def fit(
    output: Output,
    paths: CountFiles,
    out: Saved,
    method: Annotated[Methods, typer.Option(help="Kind of reference.")] = Methods.pca,
    coordinates: Annotated[
        int | None,
        typer.Option(
            help=f"Number of coordinates; by default {N_COMPONENTS} (pca) or {N_LATENT} (scvi)."
        ),
    ] = None,
    genes: Annotated[
        Genes,
        typer.Option(
            help="Genes to embed with: the most variable ones by scanpy, those flagged in "
            "var['highly_variable'], or all."
        ),
    ] = Genes.scanpy,
    hvgs: Annotated[int, typer.Option(help="Number of genes that scanpy chooses.")] = N_HVGS,
    layer: Layer = None,
    fractional: Fractional = False,
    batch_key: Annotated[
        list[str] | None,
        typer.Option(help="scvi only: column with the batch of each cell; repeat to combine."),
    ] = None,
    max_epochs: Epochs = None,
    seed: Seed = 0,
) -> None:
    """Fit a reference to the counts of one or more files, on the genes that all of them have."""
    from ..upstream import PCAUpstream, ScviUpstream
    from ..upstream.on_disk import read_counts

    if method == Methods.scvi and not batch_key:
        raise BadValue("Expected --batch-key for scVI, found none.")
    if method == Methods.pca and batch_key:
        raise BadValue("Expected --batch-key only with --method scvi, found it with --method pca.")
    _check_place(out, *paths)
    cells = read_counts(paths, layer=layer, batch_key=batch_key, fractional=fractional)
    common: dict[str, Any] = {"genes": genes.value, "n_hvgs": hvgs, "fractional": fractional}
    fitted: Upstream
    if method == Methods.pca:
        fitted = PCAUpstream.fit(cells, n_components=coordinates or N_COMPONENTS, **common)
    else:
        fitted = ScviUpstream.fit(
            cells, batch_key or [], n_latent=coordinates or N_LATENT, max_epochs=max_epochs, seed=seed,
            verbose=output.verbose, **common,
        )  # fmt: skip
    fitted.save(out)
    facts = _facts(fitted, out) | {"n_cells": cells.n_obs, "n_genes": cells.n_vars}
    output.print_line(
        f"{method.value} of {cells.n_obs:,} cells: {facts['n_genes_used']:,} of {cells.n_vars:,} "
        f"genes, {fitted.n_dims} coordinates, fingerprint {fitted.fingerprint[:21]}",
        f"wrote {out}",
    )
    output.print_json(facts)


@command(embed, "scbatchprox embed apply donor7.h5ad --upstream pca.safetensors --in-place")
def apply(
    output: Output,
    *,
    path: CountFile,
    upstream: Reference,
    key_added: Annotated[
        str | None, typer.Option(help="Name of the embedding; by default X_pca or X_scvi.")
    ] = None,
    result: o.Result,
    layer: Layer = None,
    min_shared: MinShared = MIN_SHARED,
    fractional: Fractional = False,
) -> None:
    """Embed cells with a saved reference, and report which of its genes are missing."""
    from ..upstream import load
    from ..upstream.on_disk import embed_file

    out = result.place(path=path, upstream=upstream)
    reference = load(upstream)
    with output.progress() as progress:
        report = embed_file(
            path, reference, layer=layer, key_added=key_added, out=out, min_shared=min_shared,
            fractional=fractional, progress=progress,
        )  # fmt: skip
    written = str(out or path)
    output.print_line(report, f"wrote {written}")
    output.print_json(_facts(reference, upstream) | {"written": written, "genes": report.facts()})


@command(
    embed,
    "scbatchprox embed surgery donor7.h5ad --upstream scvi.safetensors --out scvi7.safetensors",
)
def surgery(
    output: Output,
    path: CountFile,
    upstream: Reference,
    out: Saved,
    layer: Layer = None,
    min_shared: MinShared = MIN_SHARED,
    fractional: Fractional = False,
    max_epochs: Epochs = None,
    seed: Seed = 0,
) -> None:
    """Train weights of an scVI reference for new batches; other cells keep their coordinates."""
    from ..upstream import ScviUpstream
    from ..upstream.on_disk import read_counts

    _check_place(out, path, upstream)
    reference = ScviUpstream.load(upstream)
    cells = read_counts([path], layer=layer, batch_key=reference.batch_key, fractional=fractional)
    grown = reference.surgery(
        cells, min_shared=min_shared, fractional=fractional, max_epochs=max_epochs, seed=seed,
        verbose=output.verbose,
    )  # fmt: skip
    grown.save(out)
    new = grown.batches[len(reference.batches) :]
    output.print_line(
        f"added weights for {', '.join(new)} to those of {len(reference.batches)} batches",
        f"wrote {out}",
    )
    output.print_json(_facts(grown, out) | {"added": list(new), "batches": list(grown.batches)})


def _check_place(out: Path, *others: Path) -> None:
    """Raise an error if the reference cannot be saved, before anything is computed."""
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise BadValue(f"Expected a place for a file as --out, found none at {out}.")
    for path in others:
        o.check_different(path=path, out=out)


def _facts(upstream: Upstream, path: Path) -> dict[str, Any]:
    return {
        "upstream": str(path),
        "method": upstream.method,
        "fingerprint": upstream.fingerprint,
        "coordinates": upstream.n_dims,
        "n_genes_used": upstream.n_genes,
    }
