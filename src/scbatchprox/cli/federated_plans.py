"""Plans of federated studies: ``scbatchprox federated plan``, ``genes`` and ``pca``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import N_COMPONENTS, N_HVGS
from ..errors import BadValue
from . import federated_options as f
from . import options as o
from .output import Output

if TYPE_CHECKING:
    from ..federated.site import Site

__all__ = ["add"]

Genes = Annotated[
    Path,
    typer.Option(
        "--genes",
        help="A public list of genes that all sites have: a text file, one name per line.",
    ),
]
Hvgs = Annotated[int, typer.Option(min=1, help="Number of highly variable genes.")]


def add(app: typer.Typer) -> None:
    """Add the commands that publish plans."""
    app.command(
        epilog="Example: `scbatchprox federated plan --coordinates 50 --embedding 'scVI, reference 3' "
        "--private ~/lung --folder /share/lung`"
    )(plan)
    app.command(
        epilog="Example: `scbatchprox federated genes --genes genes.txt --private ~/lung "
        "--folder /share/lung`"
    )(genes)
    app.command(
        epilog="Example: `scbatchprox federated pca --genes genes.txt --private ~/lung --folder /share/lung`"
    )(pca)


@o.takes_method(target="moment")
def plan(
    private: f.Private,
    coordinates: Annotated[int, typer.Option(min=1, help="Coordinates of the embedding.")],
    embedding: Annotated[
        str,
        typer.Option(
            help="What made the embedding: a file saved by federated pca or embed fit, or a text."
        ),
    ],
    members: f.Members = None,
    min_cells: f.PlanMinCells = 20,
    note: f.Note = "",
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    *,
    yes: f.Yes = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
    **method: Any,
) -> None:
    """Publish a plan for a federated fit, which every site must confirm."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas.provenance import fingerprint
        from ..federated.work import refine_parameters

        model = o.model_of(method)
        site = f.site_of(private, folder, inbox, outbox)
        parameters = refine_parameters(model, coordinates, fingerprint(embedding), min_cells)
        _publish(output, site, "refine", members, parameters, note, yes=yes)


def genes(
    private: f.Private,
    gene_file: Genes,
    hvgs: Hvgs = N_HVGS,
    members: f.Members = None,
    min_cells: f.PlanMinCells = 20,
    note: f.Note = "",
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Publish a plan to choose the highly variable genes of all sites, from counts: one sum."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.counts import counts_parameters

        site = f.site_of(private, folder, inbox, outbox)
        parameters = counts_parameters(_lines(gene_file), n_hvgs=hvgs, min_cells=min_cells)
        _publish(output, site, "genes", members, parameters, note)


def pca(
    private: f.Private,
    gene_file: Genes,
    coordinates: Annotated[int, typer.Option(min=1, help="Number of coordinates.")] = N_COMPONENTS,
    hvgs: Hvgs = N_HVGS,
    members: f.Members = None,
    min_cells: f.PlanMinCells = 20,
    note: f.Note = "",
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Publish a plan for a PCA of the counts of all sites: one sum for the genes, one for the axes."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.counts import counts_parameters

        site = f.site_of(private, folder, inbox, outbox)
        parameters = counts_parameters(
            _lines(gene_file), n_hvgs=hvgs, n_components=coordinates, min_cells=min_cells
        )
        _publish(output, site, "pca", members, parameters, note)


def _lines(path: Path) -> list[str]:
    """The lines of a text file."""
    from ..io.atomic import check_file

    check_file(path, "a list of genes")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [line.strip() for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise BadValue(f"Expected a list of genes, one per line, found {path}.") from None


def _publish(
    output: Output,
    site: Site,
    kind: str,
    members: list[str] | None,
    parameters: dict[str, Any],
    note: str,
    *,
    yes: bool = False,
) -> None:
    """Publish a plan of this site, and say how it is confirmed."""
    from ..federated.disclosure import disclosed
    from ..federated.plan import Plan

    cards = (
        [site.folder.card(name) for name in sorted(set(members))]
        if members
        else site.folder.cards()
    )
    made: Plan = Plan(site.keys.study, kind, tuple(cards), parameters, note)
    site.publish_plan(made, accepted=f.accepted(output, made, "Publish this plan?", yes=yes))
    output.print_line(
        f"plan {made.id} for {', '.join(card.site for card in made.members)} is published",
        f"fingerprint {made.fingerprint}: tell it to all sites by telephone or in person",
    )
    output.print_json(
        {"plan": made.hash, "fingerprint": made.fingerprint}
        | ({"discloses": disclosed(made)} if disclosed(made) else {})
    )
