"""A site: it answers plans that it has confirmed, and combines the answers of all sites for itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np

from ..errors import BadValue, InputError
from ..io.atomic import replacing
from ..progress import Progress, silent
from .folder import CODES, Folder
from .keys import Card, SiteKeys
from .ledger import Answer, Ledger, Own
from .messages import Message, check_name
from .plan import Plan, check_accepted
from .sums import Addends, Fixed, Kind, Limbs, Totals, masked

__all__ = ["Site", "Terms", "Waiting"]

T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """A round that cannot be combined yet."""

    round: int
    missing: tuple[str, ...]


class Terms(TypedDict, total=False):
    """What the operator of a site says to a plan, and what happens meanwhile.

    ``confirmed`` and ``accepted`` are those of :meth:`Site.check`. ``permitted`` is whether the answer may
    differ from an earlier one in its members or cells. ``progress`` is called after every round. ``wait`` is
    called with a round that is not complete; ``True`` means to look again.
    """

    confirmed: str | None
    accepted: bool
    permitted: bool
    progress: Progress
    wait: Callable[[Waiting], bool]


class _Stopped(Exception):
    """Ends a computation at a round that cannot be combined yet."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting


@dataclass(frozen=True)
class Site:
    """A site with its private folder (keys, ledger, trusted cards) and the folder of messages."""

    private: Path
    folder: Folder
    keys: SiteKeys = field(repr=False)

    def __post_init__(self) -> None:
        _check_private(self.private, self.folder)

    @classmethod
    def create(cls, private: Path, folder: Folder, study: str, name: str) -> Site:
        """Make the keys of a site, and publish its card."""
        if folder.find(f"cards/{check_name('site', name)}.card"):
            raise BadValue(
                f"Expected a new name for the site, found a card of {name} in the folder."
            )
        _check_private(private, folder)  # before the keys are in it
        keys = SiteKeys.known(private, study, name) or SiteKeys.create(private, study, name)
        site = cls(private, folder, keys)
        folder.publish(f"cards/{name}.card", keys.card_message())
        site.trust(name, keys.card.fingerprint)
        return site

    @classmethod
    def open(cls, private: Path, folder: Folder) -> Site:
        """A site whose keys exist."""
        return cls(private, folder, SiteKeys.load(private))

    @property
    def name(self) -> str:
        """The name of the site."""
        return self.keys.site

    @property
    def ledger(self) -> Ledger:
        """What the site has answered."""
        return Ledger(self.private / "ledger")

    def trust(self, name: str, fingerprint: str) -> Card:
        """Accept the card of a site, whose fingerprint was learnt by other means."""
        message, path = self.folder.card_message(name)
        card = Card.of(message, path)
        if card.fingerprint != fingerprint.strip().lower():
            raise BadValue(
                # The other one is not shown: it would be so easy to copy.
                f"Expected the fingerprint of the card of {name} in the folder, found {fingerprint!r}; if "
                f"the site confirms this one, the card in the folder is forged."
            )
        if card.study != self.keys.study:
            raise BadValue(f"Expected a card of {self.keys.study}, found one of {card.study}.")
        place = self.private / "trusted"
        place.mkdir(mode=0o700, exist_ok=True)
        known = place / f"{name}.card"
        if known.exists() and Card.read(known) != card:
            raise BadValue(
                f"Expected the keys of {name} that this site trusts already, found others; a site with new "
                f"keys needs a new name."
            )
        with replacing(known) as temporary:
            # What was checked, and not what is in the folder by now.
            temporary.write_bytes(message.raw)
        return card

    def publish_plan(self, plan: Plan, *, accepted: bool = False) -> None:
        """Publish a plan of this site; ``accepted`` as for :meth:`check`."""
        check_accepted(plan, accepted)
        if plan.member(self.name) != self.keys.card:
            raise BadValue("Expected the keys of this site in the plan, found others.")
        header = {"type": "plan", "site": self.name, "plan": plan.to_json()}
        self.folder.publish(f"plans/{plan.id}.plan", Message.signed(self.keys.signing, header))

    def check(self, plan: Plan, confirmed: str | None, *, accepted: bool = False) -> None:
        """Raise an error unless this site may take part in a plan.

        ``confirmed`` is the plan's fingerprint as its operator learnt it by other means, and ``accepted``
        whether the operator accepts what :func:`.plan.disclosed` says of the plan. Who wrote the plan
        has accepted that for one site, not for this one. Neither is needed again for a plan that this site
        has answered.
        """
        answered = self.ledger.has(plan)
        known = confirmed is None and answered
        if not known and (confirmed or "").replace("-", "").strip().lower() != plan.hash[:32]:
            found = "none" if not confirmed else repr(confirmed)
            raise BadValue(
                f"Expected the fingerprint of plan {plan.id}, as the other sites confirm it by telephone or "
                f"in person, found {found}."
            )
        if plan.member(self.name) != self.keys.card:
            raise BadValue("Expected the keys of this site in the plan, found others.")
        for card in plan.members:
            path = self.private / "trusted" / f"{card.site}.card"
            if not path.exists() or Card.read(path) != card:
                raise BadValue(
                    f"Expected only sites that this site trusts, found {card.site} with other keys or not "
                    f"yet trusted; compare its fingerprint {card.fingerprint} and use scbatchprox federated "
                    f"trust."
                )
        check_accepted(plan, accepted or answered)

    def run(self, plan: Plan, kind: Kind[T], own: Own, **terms: Unpack[Terms]) -> T | Waiting:
        """Answer rounds of a plan until one cannot be combined, and return that or the result.

        ``kind`` is started from the beginning, and given the sums of rounds that are known. ``own`` are
        hashes of this site's numbers.
        """
        self.check(plan, terms.get("confirmed"), accepted=terms.get("accepted", False))
        permitted, progress = terms.get("permitted", False), terms.get("progress", silent)
        wait = terms.get("wait", lambda _: False)
        state, number, computing = "", 0, True

        def add_up(addends: Addends) -> Totals:
            nonlocal state, number, computing
            computing = False
            totals = self._round(plan, number, state, addends, own, permitted, wait)
            progress("rounds", number + 1, number + 1)
            number += 1
            state = hashlib.sha256(state.encode() + totals.limbs.tobytes()).hexdigest()
            computing = True
            return totals

        with self.ledger.held():
            try:
                result = kind(add_up)
            except _Stopped as stopped:
                return stopped.waiting
            except InputError:
                if computing:  # this site does not answer what it was asked for
                    self.tell(plan, "cells")
                raise
            self.ledger.conclude(plan, state)
            return result

    def refuse(self, plan: Plan, code: str) -> None:
        """Publish, by a code only, that this site does not answer."""
        header = {"type": "code", "site": self.name, "plan": plan.hash, "code": code}
        assert code in CODES
        place = f"codes/{plan.id}/{self.name}.code"
        self.folder.publish(place, Message.signed(self.keys.signing, header))

    def tell(self, plan: Plan, code: str) -> None:
        """As :meth:`refuse`, if that is possible: the operator must see why, whatever the folder holds."""
        with suppress(InputError, OSError):
            self.refuse(plan, code)

    def _round(
        self,
        plan: Plan,
        number: int,
        state: str,
        addends: Addends,
        own: Own,
        permitted: bool,
        wait: Callable[[Waiting], bool],
    ) -> Totals:
        """Give what this site adds in a round, or has given before, and return the sums of all sites."""
        message = self.ledger.given(plan, number, self.keys.card)
        if message is None:
            message = self._answer(plan, number, state, addends, own, permitted=permitted)
        elif number == 0:
            self.ledger.enter(Answer.to(plan, own), permitted=permitted)  # with the same cells
        if message.header["state"] != state:
            raise BadValue(
                f"Expected the sums that round {number} was answered for, found others: messages in the "
                f"folder were changed since."
            )
        self.folder.publish(self._place(plan, number, self.name), message)
        count = message.header["count"]
        while isinstance(found := self._combined(plan, number, state, addends, count), Waiting):
            if not wait(found):
                raise _Stopped(found)
        return found

    def _answer(
        self,
        plan: Plan,
        number: int,
        state: str,
        addends: Addends,
        own: Own,
        *,
        permitted: bool,
    ) -> Message:
        """Write this site's answer to the ledger; nothing has left the site before that."""
        fixed = addends.fixed
        try:
            # Every site adds one more number, a 1. Their sum shows that all masks have cancelled.
            limbs = np.concatenate([fixed.encoded([1]), addends.limbs])
        except InputError:  # a number out of range, or cells that cannot be read
            self.tell(plan, "cells")
            raise
        if number == 0:
            self.ledger.enter(Answer.to(plan, own), permitted=permitted)
        body = masked(limbs, fixed, self.keys, plan, number, state).astype("<u8").tobytes()
        header = self._header(plan, self.name, number, state, addends, len(limbs))
        message = Message.signed(self.keys.signing, header, body)
        self.ledger.give(plan, number, message)
        return message

    def _combined(
        self, plan: Plan, number: int, state: str, addends: Addends, count: int
    ) -> Totals | Waiting:
        """The sums of a round, from the messages of all sites."""
        places = {
            card.site: self.folder.find(self._place(plan, number, card.site))
            for card in plan.members
        }
        missing = tuple(site for site, path in places.items() if path is None)
        if missing:
            return Waiting(number, missing)
        fixed = addends.fixed
        total: Limbs = np.zeros((count, fixed.n_limbs), np.uint64)
        for card in plan.members:
            path = places[card.site]
            assert path is not None
            expected = self._header(plan, card.site, number, state, addends, count)
            size = 8 * count * fixed.n_limbs
            message = Message.read(path, most_body=size)
            message.check(bytes.fromhex(card.signing), path, **expected)
            if len(message.body) != size:
                raise BadValue(f"Expected {count} numbers in {path.name}, found another size.")
            body = np.frombuffer(message.body, "<u8").astype(np.uint64)
            total = fixed.added(total, body.reshape(count, fixed.n_limbs))
        if fixed.integers(total[:1]) != [len(plan.members) << fixed.fraction]:
            raise BadValue(
                f"Expected masks that cancel in round {number}, found a sum that they do not: a site has "
                f"used other keys or another plan."
            )
        return Totals(fixed, total[1:])

    @staticmethod
    def _header(
        plan: Plan, site: str, number: int, state: str, addends: Addends, count: int
    ) -> dict[str, Any]:
        fixed: Fixed = addends.fixed
        return {
            "type": "sum",
            "site": site,
            "plan": plan.hash,
            "round": number,
            "state": state,
            "bits": fixed.bits,
            "fraction": fixed.fraction,
            "count": count,
        }

    @staticmethod
    def _place(plan: Plan, number: int, site: str) -> str:
        return f"sums/{plan.id}/{number:04}/{site}.sum"


def _check_private(private: Path, folder: Folder) -> None:
    for shared in (folder.inbox, folder.outbox):
        if private.resolve().is_relative_to(shared.resolve()):
            raise BadValue(
                f"Expected a private folder outside of the folder of messages, found {private}."
            )
