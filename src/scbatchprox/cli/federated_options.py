"""Options of the commands of ``scbatchprox federated``, and the site that they define."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BadValue

if TYPE_CHECKING:
    from ..federated.folder import Folder
    from ..federated.plan import Plan
    from ..federated.site import Site, Waiting
    from .output import Output

__all__ = ["accepted", "folder_of", "patience", "site_of"]

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


def accepted(output: Output, plan: Plan, question: str, *, yes: bool) -> bool:
    """Say what a plan gives away of single sites; whether the operator accepts that."""
    from ..federated.disclosure import disclosed

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
