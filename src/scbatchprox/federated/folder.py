"""The folder that carries messages: a share, a stick, or the inbox and outbox of a courier.

::

    cards/SITE.card             identity cards
    plans/PLAN.plan             plans; PLAN is the start of the plan's hash
    sums/PLAN/0000/SITE.sum     what a site adds in round 0, 1, ...
    codes/PLAN/SITE.code        a site that cannot take part
    results/PLAN/SITE.result    a PCA, in the form that all sites use

Files are written once and never change. They also tell how far the rounds of a plan are (:func:`status_of`).
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadFile, BadValue
from ..io.atomic import sync_folder
from .keys import Card
from .messages import MOST_BYTES, Message, check_name, file_bytes, is_name, shown
from .plan import Plan, differing, disclosed, parameter_lines

__all__ = ["CODES", "MessageFolder", "PlanStatus", "Status", "status_of"]

#: What other sites learn of a site that cannot answer: a code for one of these sentences, and no more.
CODES = {
    "cells": "its cells do not meet the conditions of the plan",
    "refused": "its operator does not take part",
}


@dataclass(frozen=True)
class MessageFolder:
    """Where messages of other sites are read, and where own ones are written: often the same folder."""

    inbox: Path
    outbox: Path

    def __post_init__(self) -> None:
        for folder in (self.inbox, self.outbox):
            if not folder.is_dir():
                raise BadFile(f"Expected a folder for messages, found none at {folder}.")

    def publish(self, place: str, message: Message) -> None:
        """Write a message, completely or not at all; the same message may be there already."""
        path = self.outbox / place
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.partial"
        try:
            with open(temporary, "xb") as file:
                file.write(message.raw)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                # What is there may be a pipe or of any size: others can write to the folder.
                if file_bytes(path, MOST_BYTES) != message.raw:
                    raise BadValue(
                        f"Expected no other message at {path}, found one: messages are never replaced."
                    )
                return
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        sync_folder(path.parent)

    def find(self, place: str) -> Path | None:
        """The path of a message, of another site or an own one; ``None`` if there is none."""
        for folder in dict.fromkeys((self.outbox, self.inbox)):
            if (folder / place).is_file():
                return folder / place
        return None

    def names(self, kind: str) -> list[str]:
        """Names of all of a ``"card"`` or ``"plan"``, sorted; other files are left out."""
        found = {
            path.stem
            for folder in (self.inbox, self.outbox)
            for path in (folder / f"{kind}s").glob(f"*.{kind}")
            if is_name(path.stem) and path.is_file()
        }
        return sorted(found)

    def cards(self) -> list[Card]:
        """All cards, by the names of the sites."""
        return [self.card(site) for site in self.names("card")]

    def card(self, site: str) -> Card:
        """The card of a site."""
        return Card.of(*self.card_message(site))

    def card_message(self, site: str) -> tuple[Message, Path]:
        """The message with the card of a site, and its path."""
        path = self.find(f"cards/{check_name('site', site)}.card")
        if path is None:
            known = ", ".join(self.names("card")) or "none"
            raise BadFile(f"Expected the card of {site}, found none; available: {known}.")
        return Message.read(path, most_body=0), path

    def plan(self, name: str | None = None) -> Plan:
        """The plan whose hash begins with ``name``, or the only one."""
        wanted = (name or "").replace("-", "").lower()
        known = self.names("plan")
        found = [plan for plan in known if plan.startswith(wanted[:16])]
        if len(found) != 1:
            raise BadValue(
                f"Expected the start of one plan's hash, found {name!r}; available: "
                f"{', '.join(known) or 'none'}."
            )
        path = self.find(f"plans/{found[0]}.plan")
        if path is None:  # removed just now
            raise BadFile(f"Expected the plan {found[0]}, found none.")
        message = Message.read(path, most_body=0)
        plan = Plan.from_json(message.header.get("plan"))
        plan.member(str(message.header.get("site"))).check(message, path, type="plan")
        if plan.id != path.stem or not plan.hash.startswith(wanted):
            raise BadValue(f"Expected the plan {path.stem} at {path}, found the plan {plan.id}.")
        return plan


@dataclass(frozen=True)
class PlanStatus:
    """How far a plan is."""

    plan: Plan
    round: int  # the first one that is not complete, or the last
    missing: tuple[str, ...]
    codes: dict[str, str]

    def sentences(self) -> list[str]:
        """Sentences for people."""
        plan, names = self.plan, ", ".join(card.site for card in self.plan.members)
        waiting = f"waiting for {', '.join(self.missing)}" if self.missing else "complete"
        return [
            f"plan {plan.id} ({plan.kind}) of {names}; fingerprint {plan.fingerprint}",
            *(f"  {text}" for text in (plan.note, disclosed(plan)) if text),
            f"  parameters, in the study {plan.study}:",
            *(f"    {line}" for line in parameter_lines(plan)),
            *(f"  {text}" for text in (differing(plan),) if text),
            f"  round {self.round}: {waiting}",
            *(f"  {site} cannot answer: {CODES[code]}" for site, code in self.codes.items()),
        ]

    def to_json(self) -> dict[str, Any]:
        """The status as JSON types."""
        plan = self.plan
        remarks = {"discloses": disclosed(plan), "differs": differing(plan)}
        return {
            "plan": plan.hash,
            "fingerprint": plan.fingerprint,
            "study": plan.study,
            "kind": plan.kind,
            "members": {card.site: card.fingerprint for card in plan.members},
            "note": plan.note,
            "parameters": plan.parameters,
            "round": self.round,
            "missing": list(self.missing),
            "codes": self.codes,
            **{name: text for name, text in remarks.items() if text},
        }


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
        cards = {card.site: card.fingerprint for card in self.cards}
        return {"cards": cards, "plans": [plan.to_json() for plan in self.plans]}


def status_of(folder: MessageFolder, name: str | None = None) -> Status:
    """The status of all plans in a folder, or of one."""
    names = folder.names("plan") if name is None else [name]
    return Status(folder.cards(), [_status(folder, folder.plan(plan)) for plan in names])


def _status(folder: MessageFolder, plan: Plan) -> PlanStatus:
    sites = tuple(card.site for card in plan.members)

    def absent(number: int) -> tuple[str, ...]:
        return tuple(site for site in sites if not folder.find(plan.place("sum", site, number)))

    number = 0
    while not (missing := absent(number)):
        number += 1
    if number and missing == sites:  # no site has begun this round
        number, missing = number - 1, ()
    return PlanStatus(plan, number, missing, _codes(folder, plan, missing))


def _codes(folder: MessageFolder, plan: Plan, missing: tuple[str, ...]) -> dict[str, str]:
    """Codes of sites that have not answered."""
    found = {}
    for card in plan.members:
        path = folder.find(plan.place("code", card.site))
        if path is None or card.site not in missing:
            continue
        message = card.message(path, most_body=0, type="code", site=card.site, plan=plan.hash)
        code = message.header.get("code")
        if not isinstance(code, str) or code not in CODES:
            raise BadValue(f"Expected a code of {', '.join(CODES)} in {path}, found {shown(code)}.")
        found[card.site] = code
    return found
