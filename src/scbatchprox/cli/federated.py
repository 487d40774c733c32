"""The commands of ``scbatchprox federated``: fits over sites that cannot share cells.

First the options, and the site that they define; then the commands that publish plans; then those that make
keys, answer plans and show how far they are. Commands that carry messages are in :mod:`.federated_flower`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import N_COMPONENTS, N_HVGS
from ..errors import BadValue
from . import federated_flower
from . import options as o
from .output import Output

if TYPE_CHECKING:
    from ..federated.folder import Folder
    from ..federated.plan import Plan
    from ..federated.site import Site, Waiting

__all__ = ["federated"]

federated = typer.Typer(
    name="federated",
    help="Fit over sites that cannot share cells: they share masked numbers, whose sums become known.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_STUDY = "Study"
Private = Annotated[
    Path,
    typer.Option(
        help="This site's private folder: keys, ledger, trusted cards. It never leaves the site.",
        rich_help_panel=_STUDY,
    ),
]
SharedFolder = Annotated[
    Path | None,
    typer.Option("--folder", help="The shared folder of messages.", rich_help_panel=_STUDY),
]
Inbox = Annotated[
    Path | None,
    typer.Option(help="With a courier: messages of other sites.", rich_help_panel=_STUDY),
]
Outbox = Annotated[
    Path | None,
    typer.Option(help="With a courier: messages of this site.", rich_help_panel=_STUDY),
]
PlanName = Annotated[
    str | None,
    typer.Option(
        "--plan",
        help="The start of the plan's hash; by default the only plan.",
        rich_help_panel=_STUDY,
    ),
]
Confirm = Annotated[
    str | None,
    typer.Option(
        help="The plan's fingerprint, as the other sites told it by telephone or in person.",
        rich_help_panel=_STUDY,
    ),
]
MinCells = Annotated[
    int | None,
    typer.Option(
        min=1, help="Cells in a batch, at least; by default the plan's 20.", rich_help_panel=_STUDY
    ),
]
AllowDifference = Annotated[
    bool,
    typer.Option(
        "--allow-difference",
        help="Answer although an earlier plan had other members or other cells: the difference of the two "
        "sums may reveal one site's numbers.",
        rich_help_panel=_STUDY,
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Accept what a plan with the population target gives away of single sites; without it the "
        "command asks.",
        rich_help_panel=_STUDY,
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        min=0.0, help="Seconds to wait for other sites before giving up.", rich_help_panel=_STUDY
    ),
]
Layer = Annotated[
    str | None, typer.Option(help="Plans of counts: layer with the counts; by default X.")
]
Fractional = Annotated[
    bool,
    typer.Option("--fractional", help="Plans of counts: accept counts that are not whole numbers."),
]
Members = Annotated[
    list[str] | None, typer.Option("--member", help="A site; by default all with a card.")
]
PlanMinCells = Annotated[
    int, typer.Option(min=20, help="Cells in a batch (and a population, or with a gene), at least.")
]
Note = Annotated[str, typer.Option(help="A sentence for people, such as the purpose.")]
#: Seconds between two looks at the folder.
LOOK = 0.5


def folder_of(folder: Path | None, inbox: Path | None, outbox: Path | None) -> Folder:
    """Where messages are read and written."""
    from ..federated.folder import Folder

    if folder is not None and inbox is None and outbox is None:
        return Folder(folder, folder)
    if folder is None and inbox is not None and outbox is not None:
        return Folder(inbox, outbox)
    raise BadValue("Expected --folder, or --inbox and --outbox, found another combination.")


def site_of(private: Path, folder: Path | None, inbox: Path | None, outbox: Path | None) -> Site:
    """The site whose keys are in a private folder."""
    from ..federated.site import Site

    return Site.open(private, folder_of(folder, inbox, outbox))


def _accepts(output: Output, plan: Plan, question: str, *, yes: bool) -> bool:
    """Say what a plan gives away of single sites; whether the operator accepts that."""
    from ..federated.plan import disclosed

    if not disclosed(plan):
        return False  # nothing that could be accepted
    output.print_note(disclosed(plan))
    return yes or output.asks(question)


def patience(seconds: float) -> Callable[[Waiting], bool]:
    """Whether to go on waiting for other sites."""
    end = time.monotonic() + seconds

    def wait(_: Waiting) -> bool:
        if time.monotonic() >= end:
            return False
        time.sleep(min(LOOK, max(0.0, end - time.monotonic())))
        return True

    return wait


Genes = Annotated[
    Path,
    typer.Option(
        "--genes",
        help="A public list of genes that all sites have: a text file, one name per line.",
    ),
]
Hvgs = Annotated[int, typer.Option(min=1, help="Number of highly variable genes.")]


@federated.command(
    epilog="Example: `scbatchprox federated plan --coordinates 50 --embedding 'scVI, reference 3' "
    "--private ~/lung --folder /share/lung`"
)
@o.takes_method(target="moment")
def plan(
    private: Private,
    coordinates: Annotated[int, typer.Option(min=1, help="Coordinates of the embedding.")],
    embedding: Annotated[
        str,
        typer.Option(
            help="What made the embedding: a file saved by federated pca or embed fit, or a text."
        ),
    ],
    members: Members = None,
    min_cells: PlanMinCells = 20,
    note: Note = "",
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    *,
    yes: Yes = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
    **method: Any,
) -> None:
    """Publish a plan for a federated fit, which every site must confirm."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..atlas.cells import fingerprint
        from ..federated.fit import refine_parameters

        model = o.model_of(method)
        site = site_of(private, folder, inbox, outbox)
        parameters = refine_parameters(model, coordinates, fingerprint(embedding), min_cells)
        _publish(output, site, "refine", members, parameters, note, yes=yes)


@federated.command(
    epilog="Example: `scbatchprox federated genes --genes genes.txt --private ~/lung "
    "--folder /share/lung`"
)
def genes(
    private: Private,
    gene_file: Genes,
    hvgs: Hvgs = N_HVGS,
    members: Members = None,
    min_cells: PlanMinCells = 20,
    note: Note = "",
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Publish a plan to choose the highly variable genes of all sites, from counts: one sum."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.counts import counts_parameters

        site = site_of(private, folder, inbox, outbox)
        parameters = counts_parameters(_lines(gene_file), n_hvgs=hvgs, min_cells=min_cells)
        _publish(output, site, "genes", members, parameters, note)


@federated.command(
    epilog="Example: `scbatchprox federated pca --genes genes.txt --private ~/lung --folder /share/lung`"
)
def pca(
    private: Private,
    gene_file: Genes,
    coordinates: Annotated[int, typer.Option(min=1, help="Number of coordinates.")] = N_COMPONENTS,
    hvgs: Hvgs = N_HVGS,
    members: Members = None,
    min_cells: PlanMinCells = 20,
    note: Note = "",
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Publish a plan for a PCA of the counts of all sites: one sum for the genes, one for the axes."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.counts import counts_parameters

        site = site_of(private, folder, inbox, outbox)
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
    from ..federated.plan import Plan, disclosed

    cards = (
        [site.folder.card(name) for name in sorted(set(members))]
        if members
        else site.folder.cards()
    )
    made: Plan = Plan(site.keys.study, kind, tuple(cards), parameters, note)
    site.publish_plan(made, accepted=_accepts(output, made, "Publish this plan?", yes=yes))
    output.print_line(
        f"plan {made.id} for {', '.join(card.site for card in made.members)} is published",
        f"fingerprint {made.fingerprint}: tell it to all sites by telephone or in person",
    )
    output.print_json(
        {"plan": made.hash, "fingerprint": made.fingerprint}
        | ({"discloses": disclosed(made)} if disclosed(made) else {})
    )


federated_flower.add(federated)


@federated.command(
    epilog="Example: `scbatchprox federated keys north --study lung --private ~/lung --folder /share/lung`"
)
def keys(
    site: Annotated[str, typer.Argument(help="Name of this site.")],
    study: Annotated[str, typer.Option(help="Name of the study.")],
    private: Private,
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Make the keys of this site for a study, and publish its card."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.site import Site

        made = Site.create(private, folder_of(folder, inbox, outbox), study, site)
        fingerprint = made.keys.card.fingerprint
        output.print_line(
            f"keys of {site} in {private}; its card is published",
            f"fingerprint {fingerprint}: tell it to all other sites by telephone or in person",
        )
        output.print_json({"site": site, "study": study, "fingerprint": fingerprint})


@federated.command(
    epilog="Example: `scbatchprox federated trust south 1a2b-... --private ~/lung --folder /share/lung`"
)
def trust(
    site: Annotated[str, typer.Argument(help="Name of another site.")],
    fingerprint: Annotated[str, typer.Argument(help="Its fingerprint, as the site told it.")],
    private: Private,
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Accept the card of another site, after its fingerprint was compared."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        card = site_of(private, folder, inbox, outbox).trust(site, fingerprint)
        output.print_line(f"{card.site} is trusted")
        output.print_json({"site": card.site, "fingerprint": card.fingerprint})


@federated.command(
    epilog="Example: `scbatchprox federated contribute cells.h5ad --batch-key donor --confirm 1a2b-... "
    "--private ~/lung --folder /share/lung`"
)
def contribute(
    path: o.In,
    private: Private,
    batch_key: o.MaybeBatchKey = None,
    confirm: Confirm = None,
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    name: PlanName = None,
    use_rep: o.UseRep = None,
    labels: o.LabelsFile = None,
    population_key: o.PopulationKey = None,
    layer: Layer = None,
    fractional: Fractional = False,
    min_cells: MinCells = None,
    allow_difference: AllowDifference = False,
    yes: Yes = False,
    wait: Wait = 0.0,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Answer a plan with the cells of this site; nothing but masked numbers leaves it."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():  # before bars are drawn over the question
        from ..federated.site import Waiting

        site = site_of(private, folder, inbox, outbox)
        plan = site.folder.plan(name)
        accepted = site.ledger.has(plan) or _accepts(output, plan, "Answer this plan?", yes=yes)
    with output.handle_errors(), output.progress() as progress:
        common: dict[str, Any] = {
            "confirmed": confirm,
            "permitted": allow_difference,
            "progress": progress,
            "wait": patience(wait),
        }
        found: Any
        if plan.kind == "refine":
            from ..federated.fit import CellsFile
            from ..federated.fit import contribute as answer

            _check_unused(plan, layer=layer, fractional=fractional)
            file = CellsFile(path, _needed(batch_key), use_rep, None, None, labels, population_key)
            found = answer(site, plan, file, accepted=accepted, min_cells=min_cells, **common)
        else:
            _check_unused(
                plan,
                use_rep=use_rep,
                labels=labels,
                population_key=population_key,
            )
            common["min_cells"] = min_cells
            found = _counts(site, plan, path, batch_key, layer, fractional, common)
    with output.handle_errors():
        waiting = found if isinstance(found, Waiting) else None
        output.print_line(
            f"plan {plan.id}: all sums are complete; next: scbatchprox federated finish"
            if waiting is None
            else f"plan {plan.id}: answered round {waiting.round}, waiting for {', '.join(waiting.missing)}"
        )
        output.print_json(
            {"plan": plan.hash, "complete": waiting is None}
            | (
                {}
                if waiting is None
                else {"round": waiting.round, "missing": list(waiting.missing)}
            )
        )


@federated.command(
    epilog="Example: `scbatchprox federated finish cells.h5ad --batch-key donor --out refined.h5ad "
    "--private ~/lung --folder /share/lung`"
)
def finish(
    path: o.In,
    private: Private,
    batch_key: o.MaybeBatchKey = None,
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    name: PlanName = None,
    use_rep: o.UseRep = None,
    key_added: o.KeyAdded = None,
    out: o.Out = None,
    in_place: o.InPlace = False,
    labels: o.LabelsFile = None,
    population_key: o.PopulationKey = None,
    layer: Layer = None,
    fractional: Fractional = False,
    model: o.ModelOut = None,
    min_cells: MinCells = None,
    wait: Wait = 0.0,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Combine the sums of all sites and write the result: refined cells, genes, or a PCA."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors(), output.progress() as progress:
        target_path = o.result_path(out, in_place, path=path, labels=labels, model=model)
        site = site_of(private, folder, inbox, outbox)
        plan = site.folder.plan(name)
        if not site.ledger.has(plan):
            raise BadValue(
                f"Expected a plan that this site has answered, found {plan.id}; use scbatchprox federated "
                f"contribute first."
            )
        common: dict[str, Any] = {"progress": progress, "wait": patience(wait)}
        if plan.kind == "refine":
            from ..federated.fit import CellsFile
            from ..federated.fit import contribute as answer

            _check_unused(plan, layer=layer, fractional=fractional)
            if model is not None:
                from ..io.atomic import check_place

                check_place(model)
            file = CellsFile(
                path, _needed(batch_key), use_rep, key_added, target_path, labels, population_key
            )
            fitted = _complete(
                plan, answer(site, plan, file, min_cells=min_cells, write=True, **common)
            )
            if model is not None:
                fitted.save(model)
            lines, table = [f"wrote {target_path or path}"], fitted.movement()
        else:
            _check_unused(
                plan, use_rep=use_rep, labels=labels, population_key=population_key,
                key_added=key_added, in_place=in_place, model=model,
            )  # fmt: skip
            common["min_cells"] = min_cells
            found = _complete(plan, _counts(site, plan, path, batch_key, layer, fractional, common))
            assert target_path is not None  # result_path refuses neither --out nor --in-place
            lines, table = [_write_counts(site, plan, found, target_path, common["wait"])], None
    with output.handle_errors():
        if table is not None:
            output.print_table(table)
        output.print_line(*lines, *([] if model is None else [f"wrote {model}"]))
        sums = site.ledger.conclusion(plan)
        output.print_line(
            f"fingerprint of all sums {sums}: it is the same at every site that saw the same messages"
        )
        output.print_json(
            {
                "plan": plan.hash,
                "written": str(target_path or path),
                "model": model and str(model),
                "sums": sums,
            }
        )


@federated.command(epilog="Example: `scbatchprox federated status --folder /share/lung`")
def status(
    folder: SharedFolder = None,
    inbox: Inbox = None,
    outbox: Outbox = None,
    name: PlanName = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Show the cards, plans and rounds in a folder; needs no keys."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.folder import status_of

        found = status_of(folder_of(folder, inbox, outbox), name)
        output.print_line(*found.sentences())
        output.print_json(found.to_json())


def _counts(
    site: Site,
    plan: Plan,
    path: Path,
    batch_key: list[str] | None,
    layer: str | None,
    fractional: bool,
    common: dict[str, Any],
) -> Any:
    """Answer a plan with counts."""
    from ..federated.counts import CountsFile, contribute_counts

    return contribute_counts(
        site, plan, CountsFile(path, batch_key or None, layer, fractional), **common
    )


def _write_counts(site: Site, plan: Plan, found: Any, out: Path, wait: Any) -> str:
    """Write the genes or the PCA of a plan; return a sentence about it."""
    from ..federated.counts import shared_upstream
    from ..federated.site import Waiting
    from ..io.atomic import replacing

    if plan.kind == "genes":
        names = found.chosen.tolist()
        with replacing(out) as temporary:
            temporary.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        return f"wrote {len(names):,} of {found.names.size:,} genes to {out}"
    shared = shared_upstream(site, plan, found)
    while isinstance(shared, Waiting) and wait(shared):
        shared = shared_upstream(site, plan, found)
    _complete(plan, shared).save(out)
    return f"wrote a PCA of {found.pooled.n_cells:,} cells to {out}; next: scbatchprox embed apply"


def _complete(plan: Plan, found: Any) -> Any:
    """Return a result; raise if some sites are waited for."""
    from ..federated.site import Waiting

    if not isinstance(found, Waiting):
        return found
    what = "the published result" if found.round < 0 else f"round {found.round}"
    raise BadValue(
        f"Expected the messages of all sites, found none of {', '.join(found.missing)} for {what} of plan "
        f"{plan.id}; nothing was written."
    )


def _needed(batch_key: list[str] | None) -> list[str]:
    if not batch_key:
        raise BadValue("Expected --batch-key, found none.")
    return batch_key


def _check_unused(plan: Plan, **given: Any) -> None:
    """Raise an error if an option is given that a plan of this kind does not use."""
    for name, value in given.items():
        if value not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            raise BadValue(f"Expected no {flag} for a plan of kind {plan.kind}, found {value}.")


@federated.command(epilog="Example: `scbatchprox federated demo --out federated-output`")
@o.takes_method(only=["target"])
def demo(
    out: Annotated[Path, typer.Option(help="Empty folder to write to.")] = Path("federated-output"),
    *,
    flower: Annotated[
        bool,
        typer.Option("--flower", help="Carry messages with Flower instead of a shared folder."),
    ] = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    **method: Any,
) -> None:
    """Run three sites on this machine, from counts to refined cells, and compare with a central fit."""
    output = Output(quiet, verbose)
    with output.handle_errors():
        from ..demo.federated import run

        run(out, **method, flower=flower)
