"""The commands of ``scbatchprox federated``: fits over sites that cannot share cells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadValue
from . import federated_flower, federated_plans
from . import federated_options as f
from . import options as o
from .output import Output

if TYPE_CHECKING:
    from ..federated.plan import Plan
    from ..federated.site import Site

__all__ = ["federated"]

federated = typer.Typer(
    name="federated",
    help="Fit over sites that cannot share cells: they share masked numbers, whose sums become known.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
federated_plans.add(federated)
federated_flower.add(federated)


@federated.command(
    epilog="Example: `scbatchprox federated keys north --study lung --private ~/lung --folder /share/lung`"
)
def keys(
    site: Annotated[str, typer.Argument(help="Name of this site.")],
    study: Annotated[str, typer.Option(help="Name of the study.")],
    private: f.Private,
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Make the keys of this site for a study, and publish its card."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.site import Site

        made = Site.create(private, f.folder_of(folder, inbox, outbox), study, site)
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
    private: f.Private,
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Accept the card of another site, after its fingerprint was compared."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        card = f.site_of(private, folder, inbox, outbox).trust(site, fingerprint)
        output.print_line(f"{card.site} is trusted")
        output.print_json({"site": card.site, "fingerprint": card.fingerprint})


@federated.command(
    epilog="Example: `scbatchprox federated contribute cells.h5ad --batch-key donor --confirm 1a2b-... "
    "--private ~/lung --folder /share/lung`"
)
def contribute(
    path: o.In,
    private: f.Private,
    batch_key: o.MaybeBatchKey = None,
    confirm: f.Confirm = None,
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    name: f.PlanName = None,
    use_rep: o.UseRep = None,
    labels: o.LabelsFile = None,
    population_key: o.PopulationKey = None,
    layer: f.Layer = None,
    fractional: f.Fractional = False,
    min_cells: f.MinCells = None,
    allow_difference: f.AllowDifference = False,
    yes: f.Yes = False,
    wait: f.Wait = 0.0,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Answer a plan with the cells of this site; nothing but masked numbers leaves it."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():  # before bars are drawn over the question
        from ..federated.site import Waiting

        site = f.site_of(private, folder, inbox, outbox)
        plan = site.folder.plan(name)
        accepted = site.ledger.has(plan) or f.accepted(output, plan, "Answer this plan?", yes=yes)
    with output.handle_errors(), output.progress() as progress:
        common: dict[str, Any] = {
            "confirmed": confirm,
            "permitted": allow_difference,
            "progress": progress,
            "wait": f.patience(wait),
        }
        found: Any
        if plan.kind == "refine":
            from ..federated.work import CellsFile
            from ..federated.work import contribute as answer

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
    private: f.Private,
    batch_key: o.MaybeBatchKey = None,
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    name: f.PlanName = None,
    use_rep: o.UseRep = None,
    key_added: o.KeyAdded = None,
    out: o.Out = None,
    in_place: o.InPlace = False,
    labels: o.LabelsFile = None,
    population_key: o.PopulationKey = None,
    layer: f.Layer = None,
    fractional: f.Fractional = False,
    model: o.ModelOut = None,
    min_cells: f.MinCells = None,
    wait: f.Wait = 0.0,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Combine the sums of all sites and write the result: refined cells, genes, or a PCA."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors(), output.progress() as progress:
        target_path = o.result_path(out, in_place, path=path, labels=labels, model=model)
        site = f.site_of(private, folder, inbox, outbox)
        plan = site.folder.plan(name)
        if not site.ledger.has(plan):
            raise BadValue(
                f"Expected a plan that this site has answered, found {plan.id}; use scbatchprox federated "
                f"contribute first."
            )
        common: dict[str, Any] = {"progress": progress, "wait": f.patience(wait)}
        if plan.kind == "refine":
            from ..federated.work import CellsFile
            from ..federated.work import contribute as answer

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
    folder: f.SharedFolder = None,
    inbox: f.Inbox = None,
    outbox: f.Outbox = None,
    name: f.PlanName = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    as_json: o.Json = False,
) -> None:
    """Show the cards, plans and rounds in a folder; needs no keys."""
    output = Output(quiet, verbose, as_json)
    with output.handle_errors():
        from ..federated.status import status_of

        found = status_of(f.folder_of(folder, inbox, outbox), name)
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
