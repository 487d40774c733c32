"""The folder that carries messages: a share, a stick, or the inbox and outbox of a courier.

::

    cards/SITE.card             identity cards
    plans/PLAN.plan             plans; PLAN is the start of the plan's hash
    sums/PLAN/0000/SITE.sum     what a site adds in round 0, 1, ...
    codes/PLAN/SITE.code        a site that cannot take part
    results/PLAN/SITE.result    a PCA, in the form that all sites use

Files are written once and never change.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadFile, BadValue
from ..io.atomic import sync_folder
from .keys import Card
from .messages import MOST_BYTES, Message, file_bytes
from .names import check_name, is_name
from .plan import Plan

__all__ = ["Folder"]


@dataclass(frozen=True)
class Folder:
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

    def names(self, kind: str, suffix: str) -> list[str]:
        """Names of messages in a subfolder, sorted; other files are left out."""
        found = {
            path.stem
            for folder in (self.inbox, self.outbox)
            for path in (folder / kind).glob(f"*{suffix}")
            if is_name(path.stem) and path.is_file()
        }
        return sorted(found)

    def cards(self) -> list[Card]:
        """All cards, by the names of the sites."""
        return [self.card(site) for site in self.names("cards", ".card")]

    def card(self, site: str) -> Card:
        """The card of a site."""
        return Card.of(*self.card_message(site))

    def card_message(self, site: str) -> tuple[Message, Path]:
        """The message with the card of a site, and its path."""
        path = self.find(f"cards/{check_name('site', site)}.card")
        if path is None:
            known = ", ".join(self.names("cards", ".card")) or "none"
            raise BadFile(f"Expected the card of {site}, found none; available: {known}.")
        return Message.read(path, most_body=0), path

    def plan(self, name: str | None = None) -> Plan:
        """The plan whose hash begins with ``name``, or the only one."""
        wanted = (name or "").replace("-", "").lower()
        known = self.names("plans", ".plan")
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
        author = plan.member(str(message.header.get("site")))
        message.check(bytes.fromhex(author.signing), path, type="plan")
        if plan.id != path.stem or not plan.hash.startswith(wanted):
            raise BadValue(f"Expected the plan {path.stem} at {path}, found the plan {plan.id}.")
        return plan
