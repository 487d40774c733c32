"""The commands of ``scbatchprox federated``: fits over sites that cannot share cells.

First the options, and the site that they define; then the commands that publish plans; then those that make
keys, answer plans and show how far they are. Commands that carry messages are in :mod:`.federated_flower`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..choices import N_COMPONENTS, N_HVGS
from ..errors import BadValue
from . import federated_flower
from . import options as o
from .command import command
from .output import Output

if TYPE_CHECKING:
    from ..federated.folder import MessageFolder
    from ..federated.plan import Plan
    from ..federated.site import Site, Waiting

__all__ = ["federated"]

federated = typer.Typer(
    name="federated",
    help="Fit over sites that cannot share cells: they share masked numbers, whose sums become known.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_study = partial(typer.Option, rich_help_panel="Study")
Private = Annotated[
    Path,
    _study(
        help="This site's private folder: keys, ledger, trusted cards. It never leaves the site."
    ),
]
PlanName = Annotated[
    str | None,
    _study("--plan", help="The start of the plan's hash; by default the only plan."),
]
Wait = Annotated[float, _study(min=0.0, help="Seconds to wait for other sites before giving up.")]
Genes = Annotated[
    Path,
    typer.Option(
        "--genes",
        help="A public list of genes that all sites have: a text file, one name per line.",
    ),
]
Hvgs = Annotated[int, typer.Option(min=1, help="Number of highly variable genes.")]
#: Seconds between two looks at the folder.
LOOK = 0.5


@dataclass
class Messages:
    """Where messages are read and written."""

    folder: Annotated[Path | None, _study("--folder", help="The shared folder of messages.")] = None
    inbox: Annotated[Path | None, _study(help="With a courier: messages of other sites.")] = None
    outbox: Annotated[Path | None, _study(help="With a courier: messages of this site.")] = None

    def open(self) -> MessageFolder:
        """Return the folder, which exists."""
        from ..federated.folder import MessageFolder

        given = [path for path in (self.folder, self.inbox, self.outbox) if path is not None]
        if len(given) != (2 if self.folder is None else 1):
            raise BadValue("Expected --folder, or --inbox and --outbox, found another combination.")
        return MessageFolder(given[0], given[-1])

    def site(self, private: Path) -> Site:
        """Return the site whose keys are in a private folder."""
        from ..federated.site import Site

        return Site.open(private, self.open())


@dataclass
class Publication:
    """What a plan says besides its parameters."""

    members: Annotated[
        list[str] | None, typer.Option("--member", help="A site; by default all with a card.")
    ] = None
    min_cells: Annotated[
        int,
        typer.Option(min=20, help="Cells in a batch (and a population, or with a gene), at least."),
    ] = 20
    note: Annotated[str, typer.Option(help="A sentence for people, such as the purpose.")] = ""

    def publish(
        self,
        output: Output,
        site: Site,
        kind: str,
        parameters: dict[str, Any],
        *,
        yes: bool = False,
    ) -> None:
        """Publish a plan of a site, and say how it is confirmed."""
        from ..federated.plan import Plan, disclosed

        names = sorted(set(self.members or ()))
        cards = [site.folder.card(name) for name in names] if names else site.folder.cards()
        made = Plan(site.keys.study, kind, tuple(cards), parameters, self.note)
        site.publish_plan(made, accepted=_accepts(output, made, "Publish this plan?", yes=yes))
        output.print_line(
            f"plan {made.id} for {', '.join(card.site for card in made.members)} is published",
            f"fingerprint {made.fingerprint}: tell it to all sites by telephone or in person",
        )
        output.print_json(
            {"plan": made.hash, "fingerprint": made.fingerprint}
            | ({"discloses": disclosed(made)} if disclosed(made) else {})
        )


@dataclass
class AnswerFrom:
    """The plan that a site answers, and the cells or counts that it is answered with."""

    path: o.In
    batch_key: o.MaybeBatchKey = None
    use_rep: o.UseRep = None
    name: PlanName = None
    labels: o.LabelsFile = None
    population_key: o.PopulationKey = None
    layer: Annotated[
        str | None, typer.Option(help="Plans of counts: layer with the counts; by default X.")
    ] = None
    fractional: Annotated[
        bool,
        typer.Option(
            "--fractional", help="Plans of counts: accept counts that are not whole numbers."
        ),
    ] = False
    min_cells: Annotated[
        int | None, _study(min=1, help="Cells in a batch, at least; by default the plan's 20.")
    ] = None

    def give(
        self,
        site: Site,
        plan: Plan,
        *,
        key_added: str | None = None,
        result: o.Result | None = None,
        model: Path | None = None,
        **terms: Any,
    ) -> Any:
        """Answer a plan, and return the result or what is waited for; refined cells are written."""
        if plan.kind == "refine":
            from ..federated.fit import CellsFile, contribute
            from ..io.atomic import check_place

            _check_unused(plan, layer=self.layer, fractional=self.fractional)
            if model is not None:
                check_place(model)
            if not self.batch_key:
                raise BadValue("Expected --batch-key, found none.")
            file = CellsFile(
                self.path, self.batch_key, self.use_rep, key_added, result.out if result else None,
                self.labels, self.population_key,
            )  # fmt: skip
            write = result is not None
            return contribute(site, plan, file, min_cells=self.min_cells, write=write, **terms)
        from ..federated.counts import CountsFile, contribute_counts

        _check_unused(
            plan, use_rep=self.use_rep, labels=self.labels, population_key=self.population_key,
            key_added=key_added, in_place=result and result.in_place, model=model,
        )  # fmt: skip
        counts = CountsFile(self.path, self.batch_key or None, self.layer, self.fractional)
        return contribute_counts(site, plan, counts, min_cells=self.min_cells, **terms)


def _check_unused(plan: Plan, **given: Any) -> None:
    """Raise an error if an option is given that a plan of this kind does not use."""
    for name, value in given.items():
        if value not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            raise BadValue(f"Expected no {flag} for a plan of kind {plan.kind}, found {value}.")


def _accepts(output: Output, plan: Plan, question: str, *, yes: bool) -> bool:
    """Say what a plan gives away of single sites; whether the operator accepts that."""
    from ..federated.plan import disclosed

    if not disclosed(plan):
        return False  # nothing that could be accepted
    output.print_note(disclosed(plan))
    return yes or output.asks(question)


def _settings(given: list[str]) -> dict[str, float]:
    """Settings and their values from NAME=VALUE."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise BadValue(f"Expected --allow-setting NAME=VALUE, found {text!r}.") from None
    return found


def _patience(seconds: float) -> Callable[[Waiting], bool]:
    """Whether to go on waiting for other sites."""
    end = time.monotonic() + seconds

    def wait(_: Waiting) -> bool:
        left = end - time.monotonic()
        time.sleep(max(0.0, min(LOOK, left)))
        return left > 0

    return wait


Yes = Annotated[
    bool,
    _study(
        "--yes",
        help="Accept what a plan with the population target gives away of single sites; without it the "
        "command asks.",
    ),
]


@command(
    federated,
    "scbatchprox federated plan --coordinates 50 --embedding 'scVI, reference 3' --private ~/lung "
    "--folder /share/lung",
)
def plan(
    output: Output,
    *,
    private: Private,
    coordinates: Annotated[int, typer.Option(min=1, help="Coordinates of the embedding.")],
    embedding: Annotated[
        str,
        typer.Option(
            help="What made the embedding: a file saved by federated pca or embed fit, or a text."
        ),
    ],
    publication: Publication,
    messages: Messages,
    yes: Yes = False,
    method: Annotated[dict[str, Any], o.method_flags(target="moment")],
) -> None:
    """Publish a plan for a federated fit, which every site must confirm."""
    from ..atlas.versions import fingerprint
    from ..federated.fit import refine_parameters

    model = o.model_of(method)
    site = messages.site(private)
    source, min_cells = fingerprint(embedding), publication.min_cells
    parameters = refine_parameters(model, coordinates, source, min_cells)
    publication.publish(output, site, "refine", parameters, yes=yes)


@command(
    federated,
    "scbatchprox federated genes --genes genes.txt --private ~/lung --folder /share/lung",
)
def genes(
    output: Output,
    *,
    private: Private,
    gene_file: Genes,
    hvgs: Hvgs = N_HVGS,
    publication: Publication,
    messages: Messages,
) -> None:
    """Publish a plan to choose the highly variable genes of all sites, from counts: one sum."""
    _publish_counts(output, messages.site(private), publication, gene_file, hvgs)


@command(
    federated, "scbatchprox federated pca --genes genes.txt --private ~/lung --folder /share/lung"
)
def pca(
    output: Output,
    *,
    private: Private,
    gene_file: Genes,
    coordinates: Annotated[int, typer.Option(min=1, help="Number of coordinates.")] = N_COMPONENTS,
    hvgs: Hvgs = N_HVGS,
    publication: Publication,
    messages: Messages,
) -> None:
    """Publish a plan for a PCA of the counts of all sites: one sum for the genes, one for the axes."""
    _publish_counts(output, messages.site(private), publication, gene_file, hvgs, coordinates)


def _publish_counts(
    output: Output,
    site: Site,
    publication: Publication,
    path: Path,
    hvgs: int,
    coordinates: int | None = None,
) -> None:
    """Publish a plan for a PCA, or without coordinates for the choice of genes."""
    from ..federated.counts import counts_parameters
    from ..io.atomic import check_file

    check_file(path, "a list of genes")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise BadValue(f"Expected a list of genes, one per line, found {path}.") from None
    names = [line.strip() for line in lines if line.strip()]
    parameters = counts_parameters(
        names, n_hvgs=hvgs, n_components=coordinates, min_cells=publication.min_cells
    )
    publication.publish(output, site, "genes" if coordinates is None else "pca", parameters)


federated_flower.add(federated)


@command(
    federated,
    "scbatchprox federated keys north --study lung --private ~/lung --folder /share/lung",
)
def keys(
    output: Output,
    site: Annotated[str, typer.Argument(help="Name of this site.")],
    study: Annotated[str, typer.Option(help="Name of the study.")],
    private: Private,
    messages: Messages,
) -> None:
    """Make the keys of this site for a study, and publish its card."""
    from ..federated.site import Site

    fingerprint = Site.create(private, messages.open(), study, site).keys.card.fingerprint
    output.print_line(
        f"keys of {site} in {private}; its card is published",
        f"fingerprint {fingerprint}: tell it to all other sites by telephone or in person",
    )
    output.print_json({"site": site, "study": study, "fingerprint": fingerprint})


@command(
    federated,
    "scbatchprox federated trust south 1a2b-... --private ~/lung --folder /share/lung",
)
def trust(
    output: Output,
    site: Annotated[str, typer.Argument(help="Name of another site.")],
    fingerprint: Annotated[str, typer.Argument(help="Its fingerprint, as the site told it.")],
    private: Private,
    messages: Messages,
) -> None:
    """Accept the card of another site, after its fingerprint was compared."""
    card = messages.site(private).trust(site, fingerprint)
    output.print_line(f"{card.site} is trusted")
    output.print_json({"site": card.site, "fingerprint": card.fingerprint})


@command(
    federated,
    "scbatchprox federated contribute cells.h5ad --batch-key donor --confirm 1a2b-... "
    "--private ~/lung --folder /share/lung",
)
def contribute(
    output: Output,
    *,
    private: Private,
    confirm: Annotated[
        str | None,
        _study(
            help="The plan's fingerprint, as the other sites told it by telephone or in person."
        ),
    ] = None,
    messages: Messages,
    answer: AnswerFrom,
    allow_difference: Annotated[
        bool,
        _study(
            "--allow-difference",
            help="Answer although an earlier plan had other members or other cells: the difference of the "
            "two sums may reveal one site's numbers.",
        ),
    ] = False,
    allow_setting: Annotated[
        list[str] | None,
        _study(
            metavar="NAME=VALUE",
            help="Answer although the plan has this value of a setting of the target, which is not this "
            "version's: the sums may give more away. Repeat for all.",
        ),
    ] = None,
    yes: Yes = False,
    wait: Wait = 0.0,
) -> None:
    """Answer a plan with the cells of this site; nothing but masked numbers leaves it."""
    from ..federated.site import Waiting

    site = messages.site(private)
    plan = site.folder.plan(answer.name)
    settings = _settings(allow_setting or [])
    # Asked before bars are drawn over the question.
    accepted = site.ledger.has(plan) or _accepts(output, plan, "Answer this plan?", yes=yes)
    with output.progress() as progress:
        found = answer.give(
            site, plan, confirmed=confirm, accepted=accepted, settings=settings,
            permitted=allow_difference, progress=progress, wait=_patience(wait),
        )  # fmt: skip
    facts: dict[str, Any] = {"plan": plan.hash, "complete": not isinstance(found, Waiting)}
    line = f"plan {plan.id}: all sums are complete; next: scbatchprox federated finish"
    if isinstance(found, Waiting):
        facts |= {"round": found.round, "missing": list(found.missing)}
        missing = ", ".join(found.missing)
        line = f"plan {plan.id}: answered round {found.round}, waiting for {missing}"
    output.print_line(line)
    output.print_json(facts)


@command(
    federated,
    "scbatchprox federated finish cells.h5ad --batch-key donor --out refined.h5ad --private ~/lung "
    "--folder /share/lung",
)
def finish(
    output: Output,
    *,
    private: Private,
    messages: Messages,
    answer: AnswerFrom,
    key_added: o.KeyAdded = None,
    result: o.Result,
    model: o.ModelOut = None,
    wait: Wait = 0.0,
) -> None:
    """Combine the sums of all sites and write the result: refined cells, genes, or a PCA."""
    out = result.place(path=answer.path, labels=answer.labels, model=model)
    site = messages.site(private)
    plan = site.folder.plan(answer.name)
    if not site.ledger.has(plan):
        raise BadValue(
            f"Expected a plan that this site has answered, found {plan.id}; use scbatchprox federated "
            f"contribute first."
        )
    waits = _patience(wait)
    with output.progress() as progress:
        found = answer.give(
            site, plan, key_added=key_added, result=result, model=model, progress=progress, wait=waits,
        )  # fmt: skip
        _check_complete(plan, found)
        if plan.kind != "refine":
            assert out is not None  # since --in-place is not for counts
            line = _write_counts(site, plan, found, out, waits)
        else:
            line = f"wrote {out or answer.path}"
            if model is not None:
                found.save(model)
    if plan.kind == "refine":
        output.print_table(found.movement())
    output.print_line(line, *([] if model is None else [f"wrote {model}"]))
    sums = site.ledger.conclusion(plan)
    output.print_line(
        f"fingerprint of all sums {sums}: it is the same at every site that saw the same messages"
    )
    written = {"written": str(out or answer.path), "model": model and str(model)}
    output.print_json({"plan": plan.hash, **written, "sums": sums})


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
    while isinstance(shared := shared_upstream(site, plan, found), Waiting):
        if not wait(shared):
            _check_complete(plan, shared)
    shared.save(out)
    return f"wrote a PCA of {found.pooled.n_cells:,} cells to {out}; next: scbatchprox embed apply"


def _check_complete(plan: Plan, found: Any) -> None:
    """Raise an error if some sites are waited for."""
    from ..federated.site import Waiting

    if isinstance(found, Waiting):
        what = "the published result" if found.round < 0 else f"round {found.round}"
        raise BadValue(
            f"Expected the messages of all sites, found none of {', '.join(found.missing)} for {what} of "
            f"plan {plan.id}; nothing was written."
        )


@command(federated, "scbatchprox federated status --folder /share/lung")
def status(output: Output, messages: Messages, name: PlanName = None) -> None:
    """Show the cards, plans and rounds in a folder; needs no keys."""
    from ..federated.folder import status_of

    found = status_of(messages.open(), name)
    output.print_line(*found.sentences())
    output.print_json(found.to_json())


@command(federated, "scbatchprox federated demo --out federated-output")
def demo(
    output: o.NoJson,
    *,
    out: Annotated[Path, typer.Option(help="Empty folder to write to.")] = Path("federated-output"),
    method: Annotated[dict[str, Any], o.method_flags(only=["target"])],
    flower: Annotated[
        bool,
        typer.Option("--flower", help="Carry messages with Flower instead of a shared folder."),
    ] = False,
) -> None:
    """Run three sites on this machine, from counts to refined cells, and compare with a central fit."""
    from ..demo.federated import run

    run(out, **method, flower=flower)
