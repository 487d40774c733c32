"""What a folder holds: cards, plans, and how far their rounds are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import BadValue
from .disclosure import disclosed
from .folder import Folder
from .keys import Card
from .messages import Message
from .names import shown
from .plan import Plan
from .site import CODES

__all__ = ["PlanStatus", "Status", "status_of"]


@dataclass(frozen=True)
class PlanStatus:
    """How far a plan is."""

    plan: Plan
    round: int  # the first one that is not complete, or the last
    missing: tuple[str, ...]
    codes: dict[str, str]

    def sentences(self) -> list[str]:
        """Sentences for people."""
        names = ", ".join(card.site for card in self.plan.members)
        found = [
            f"plan {self.plan.id} ({self.plan.kind}) of {names}; fingerprint {self.plan.fingerprint}"
        ]
        if self.plan.note:
            found.append(f"  {self.plan.note}")
        if disclosed(self.plan):
            found.append(f"  {disclosed(self.plan)}")
        where = f"  round {self.round}: "
        found.append(
            where + (f"waiting for {', '.join(self.missing)}" if self.missing else "complete")
        )
        found += [f"  {site} cannot answer: {CODES[code]}" for site, code in self.codes.items()]
        return found


@dataclass(frozen=True)
class Status:
    """What a folder holds."""

    cards: list[Card]
    plans: list[PlanStatus]

    def sentences(self) -> list[str]:
        """Sentences for people."""
        cards = [f"card of {card.site}; fingerprint {card.fingerprint}" for card in self.cards]
        plans = [sentence for plan in self.plans for sentence in plan.sentences()]
        return [*(cards or ["no cards yet"]), *(plans or ["no plans yet"])]

    def to_json(self) -> dict[str, Any]:
        """The status as JSON types."""
        return {
            "cards": {card.site: card.fingerprint for card in self.cards},
            "plans": [
                {
                    "plan": found.plan.hash,
                    "kind": found.plan.kind,
                    "round": found.round,
                    "missing": list(found.missing),
                    "codes": found.codes,
                }
                | ({"discloses": disclosed(found.plan)} if disclosed(found.plan) else {})
                for found in self.plans
            ],
        }


def status_of(folder: Folder, name: str | None = None) -> Status:
    """The status of all plans in a folder, or of one."""
    names = folder.names("plans", ".plan") if name is None else [folder.plan(name).id]
    return Status(folder.cards(), [_status(folder, folder.plan(plan)) for plan in names])


def _status(folder: Folder, plan: Plan) -> PlanStatus:
    sites = [card.site for card in plan.members]
    number = 0
    missing = tuple(sites)
    while True:
        here = tuple(
            site for site in sites if folder.find(f"sums/{plan.id}/{number:04}/{site}.sum") is None
        )
        if number and len(here) == len(sites):
            number -= 1  # no site has begun this round
            break
        missing = here
        if missing:
            break
        number += 1
    return PlanStatus(plan, number, missing, _codes(folder, plan, missing))


def _codes(folder: Folder, plan: Plan, missing: tuple[str, ...]) -> dict[str, str]:
    """Codes of sites that have not answered."""
    found = {}
    for card in plan.members:
        path = folder.find(f"codes/{plan.id}/{card.site}.code")
        if path is None or card.site not in missing:
            continue
        message = Message.read(path, most_body=0)
        message.check(
            bytes.fromhex(card.signing), path, type="code", site=card.site, plan=plan.hash
        )
        code = message.header.get("code")
        if not isinstance(code, str) or code not in CODES:
            raise BadValue(f"Expected a code of {', '.join(CODES)} in {path}, found {shown(code)}.")
        found[card.site] = code
    return found
