"""A site: it answers plans that it has confirmed, and combines the answers of all sites for itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np

from ..errors import BadValue, InputError
from ..io.atomic import replacing
from ..progress import Progress, silent
from .folder import CODES, MessageFolder
from .keys import Card, SiteKeys
from .ledger import Answer, Ledger, OwnNumbers
from .messages import Message, check_name
from .plan import Plan, check_accepted, check_settings
from .sums import Addends, FixedPoint, Kind, Limbs, Totals, masked

__all__ = ["Site", "Terms", "Waiting"]

T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """A round that cannot be combined yet."""

    round: int
    missing: tuple[str, ...]


class Terms(TypedDict, total=False):
    """What the operator of a site says to a plan, and what happens meanwhile.

    ``confirmed``, ``accepted`` and ``settings`` are those of :meth:`Site.check`. ``permitted`` is whether the
    answer may differ from an earlier one in its members or cells. ``progress`` is called after every round.
    ``wait`` is called with a round that is not complete; ``True`` means to look again.
    """

    confirmed: str | None
    accepted: bool
    settings: Mapping[str, float]
    permitted: bool
    progress: Progress
    wait: Callable[[Waiting], bool]


class _Stopped(Exception):
    """Ends a computation at a round that cannot be combined yet."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting


@dataclass(frozen=True)
class _Round:
    """A round of a plan, the hash of all sums before it, and the format of its numbers."""

    plan: Plan
    number: int
    state: str
    fixed: FixedPoint

    def header(self, site: str, count: int) -> dict[str, Any]:
        """What the message of a site with so many numbers says."""
        about = {"type": "sum", "site": site, "plan": self.plan.hash, "round": self.number}
        how = {"bits": self.fixed.bits, "fraction": self.fixed.fraction, "count": count}
        return {**about, "state": self.state, **how}


@dataclass(frozen=True)
class Site:
    """A site with its private folder (keys, ledger, trusted cards) and the folder of messages."""

    private: Path
    folder: MessageFolder
    keys: SiteKeys = field(repr=False)

    def __post_init__(self) -> None:
        _check_private(self.private, self.folder)

    @classmethod
    def create(cls, private: Path, folder: MessageFolder, study: str, name: str) -> Site:
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
    def open(cls, private: Path, folder: MessageFolder) -> Site:
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

    def publish_plan(
        self,
        plan: Plan,
        *,
        accepted: bool = False,
        settings: Mapping[str, float] | None = None,
    ) -> None:
        """Publish a plan of this site; ``accepted`` and ``settings`` as for :meth:`check`."""
        check_settings(plan, settings or {})
        check_accepted(plan, accepted)
        self._check_member(plan)
        header = {"type": "plan", "site": self.name, "plan": plan.to_json()}
        self.folder.publish(f"plans/{plan.id}.plan", Message.signed(self.keys.signing, header))

    def check(
        self,
        plan: Plan,
        confirmed: str | None,
        *,
        accepted: bool = False,
        settings: Mapping[str, float] | None = None,
    ) -> None:
        """Raise an error unless this site may take part in a plan.

        ``confirmed`` is the plan's fingerprint as its operator learnt it by other means, and ``accepted``
        whether the operator accepts what :func:`.plan.disclosed` says of the plan. ``settings`` are those of
        its target that may differ from this version's, and their values. Who wrote the plan has accepted
        that for one site, not for this one. None is needed again for a plan that this site has answered.
        """
        answered = self.ledger.has(plan)
        known = confirmed is None and answered
        if not known and (confirmed or "").replace("-", "").strip().lower() != plan.hash[:32]:
            found = "none" if not confirmed else repr(confirmed)
            raise BadValue(
                f"Expected the fingerprint of plan {plan.id}, as the other sites confirm it by telephone or "
                f"in person, found {found}."
            )
        self._check_member(plan)
        for card in plan.members:
            path = self.private / "trusted" / f"{card.site}.card"
            if not path.exists() or Card.read(path) != card:
                raise BadValue(
                    f"Expected only sites that this site trusts, found {card.site} with other keys or not "
                    f"yet trusted; compare its fingerprint {card.fingerprint} and use scbatchprox federated "
                    f"trust."
                )
        if not answered:
            check_settings(plan, settings or {})
            check_accepted(plan, accepted)

    def _check_member(self, plan: Plan) -> None:
        if plan.member(self.name) != self.keys.card:
            raise BadValue("Expected the keys of this site in the plan, found others.")

    def run(
        self, plan: Plan, kind: Kind[T], own: OwnNumbers, **terms: Unpack[Terms]
    ) -> T | Waiting:
        """Answer rounds of a plan until one cannot be combined, and return that or the result.

        ``kind`` is started from the beginning, and given the sums of rounds that are known. ``own`` are
        hashes of this site's numbers.
        """
        self.check(
            plan, terms.get("confirmed"), accepted=terms.get("accepted", False),
            settings=terms.get("settings"),
        )  # fmt: skip
        permitted, progress = terms.get("permitted", False), terms.get("progress", silent)
        wait = terms.get("wait")
        state, number, computing = "", 0, True

        def add_up(addends: Addends) -> Totals:
            nonlocal state, number, computing
            computing = False
            at = _Round(plan, number, state, addends.fixed)
            message = self._given(at, addends, own, permitted)
            while isinstance(totals := self._combined(at, message.header["count"]), Waiting):
                if wait is None or not wait(totals):
                    raise _Stopped(totals)
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
        self.folder.publish(
            plan.place("code", self.name), Message.signed(self.keys.signing, header)
        )

    def tell(self, plan: Plan, code: str) -> None:
        """As :meth:`refuse`, if that is possible: the operator must see why, whatever the folder holds."""
        with suppress(InputError, OSError):
            self.refuse(plan, code)

    def _given(self, at: _Round, addends: Addends, own: OwnNumbers, permitted: bool) -> Message:
        """Publish what this site adds in a round, or has given to it before."""
        given = self.ledger.given(at.plan, at.number, self.keys.card)
        message = given or self._made(at, addends)
        if at.number == 0:  # an answer that was given before must be to the same cells
            self.ledger.enter(Answer.to(at.plan, own), permitted=permitted)
        if given is None:
            self.ledger.give(at.plan, at.number, message)  # nothing has left the site before that
        if message.header["state"] != at.state:
            raise BadValue(
                f"Expected the sums that round {at.number} was answered for, found others: messages in the "
                f"folder were changed since."
            )
        self.folder.publish(at.plan.place("sum", self.name, at.number), message)
        return message

    def _made(self, at: _Round, addends: Addends) -> Message:
        """The message with what this site adds in a round."""
        try:
            # Every site adds one more number, a 1. Their sum shows that all masks have cancelled.
            limbs = np.concatenate([at.fixed.encoded([1]), addends.limbs])
        except InputError:  # a number out of range, or cells that cannot be read
            self.tell(at.plan, "cells")
            raise
        hidden = masked(limbs, at.fixed, self.keys, at.plan, at.number, at.state)
        header = at.header(self.name, len(limbs))
        return Message.signed(self.keys.signing, header, hidden.astype("<u8").tobytes())

    def _combined(self, at: _Round, count: int) -> Totals | Waiting:
        """The sums of a round, from the messages of all sites."""
        plan, fixed = at.plan, at.fixed
        places = {
            card: self.folder.find(plan.place("sum", card.site, at.number)) for card in plan.members
        }
        missing = tuple(card.site for card, path in places.items() if path is None)
        if missing:
            return Waiting(at.number, missing)
        total: Limbs = np.zeros((count, fixed.n_limbs), np.uint64)
        for card, path in places.items():
            assert path is not None
            message = card.message(path, total.nbytes, **at.header(card.site, count))
            if len(message.body) != total.nbytes:
                raise BadValue(f"Expected {count} numbers in {path.name}, found another size.")
            body = np.frombuffer(message.body, "<u8").astype(np.uint64)
            total = fixed.added(total, body.reshape(total.shape))
        if fixed.integers(total[:1]) != [len(places) << fixed.fraction]:
            raise BadValue(
                f"Expected masks that cancel in round {at.number}, found a sum that they do not: a site has "
                f"used other keys or another plan."
            )
        return Totals(fixed, total[1:])


def _check_private(private: Path, folder: MessageFolder) -> None:
    for shared in (folder.inbox, folder.outbox):
        if private.resolve().is_relative_to(shared.resolve()):
            raise BadValue(
                f"Expected a private folder outside of the folder of messages, found {private}."
            )
