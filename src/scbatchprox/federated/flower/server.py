"""What sweeps over the sites, on a server.

Each sweep asks every site for its new files, and brings it those of others. A site that does not answer in
time is asked again, without files, and no longer waited for until it answers. So it delays the others by one
timeout, once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .folder import CourierFolder
from .letters import BUDGET, BadLetter, Code, Content, Have, Letter, is_name
from .runs import Settings

__all__ = ["STOP", "Post", "Sweeps"]

#: In the store: its presence ends a run.
STOP = "stop"
#: So many requests in a row may bring files to a site without effect.
STALLS = 3

_log = logging.getLogger(__name__)


class Post(Protocol):
    """What Flower does for a server."""

    def nodes(self) -> Iterable[int]:
        """Return the sites that are connected."""

    def send(self, node: int, records: Mapping[str, Mapping[str, Any]], ttl: float) -> str | None:
        """Send a request, and return its number."""

    def receive(self, numbers: Iterable[str]) -> Mapping[str, Any]:
        """Return answers by the number of their request; None for a request that failed."""


@dataclass
class _Node:
    """One site, as the server knows it."""

    id: int
    have: Have | None = None  # of its last answer
    number: str | None = None  # of the request that it has not answered
    expires: float = 0.0
    late: bool = False
    sent: set[str] = field(default_factory=set)  # names of files in the last request
    stalls: int = 0  # requests in a row whose files had no effect
    refuses: set[str] = field(default_factory=set)  # names that it does not take
    refused: dict[str, Code] = field(default_factory=dict)  # its files that the store does not take
    reported: set[str] = field(default_factory=set)


class Sweeps:
    """Carries files between sites through a store, which is a folder."""

    def __init__(
        self,
        post: Post,
        store: Path,
        settings: Settings,
        *,
        say: Callable[[str], None] = _log.info,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._post, self._settings = post, settings
        self._root, self._store = store, CourierFolder(store)
        self._say, self._clock, self._sleep = say, clock, sleep
        self._nodes: dict[int, _Node] = {}

    def run(self) -> str:
        """Sweep until a limit is reached, and return which: idle, seconds, or stop."""
        limits, start, idle = self._settings, self._clock(), 0
        while True:
            if (self._root / STOP).exists():
                return "stop"
            if limits.seconds and self._clock() - start >= limits.seconds:
                return "seconds"
            began = self._clock()
            answered, moved = self.sweep()
            if moved:
                self._say(
                    f"{answered} sites answered in {self._clock() - began:.1f} s, {moved} parts moved"
                )
            idle = 0 if moved or answered < limits.nodes else idle + 1
            if limits.idle and idle >= limits.idle:
                return "idle"
            if not moved:
                self._sleep(limits.pause)

    def sweep(self) -> tuple[int, int]:
        """Ask every site once, and return how many answered and how many parts were moved."""
        files, moved = self._store.files(), 0
        connected = sorted(set(self._post.nodes()))
        for name in connected:
            if name not in self._nodes:
                self._nodes[name] = _Node(name)
                self._say(f"site {name} is connected")
        have = Have(files, self._store.begun())
        awaited = set()
        for node in [self._nodes[name] for name in connected]:
            if node.number is not None and self._clock() >= node.expires:
                node.number = None
            if node.number is None:
                moved += self._ask(node, have)
            if node.number is not None and not node.late:
                awaited.add(node.id)
        answered = set()
        ends = self._clock() + self._settings.timeout
        while True:
            for node, letter in self._answers():
                awaited.discard(node.id)
                if letter is not None:
                    answered.add(node.id)
                    moved += self._take(node, letter, files)
            if not awaited or self._clock() >= ends:
                break
            self._sleep(self._settings.poll)
        for name in awaited:
            self._nodes[name].late = True
            self._say(f"site {name} is silent; the others go on")
        return len(answered), moved

    def _ask(self, node: _Node, have: Have) -> int:
        parts = []
        if node.have is not None and not node.late:
            files = {name: e for name, e in have.files.items() if name not in node.refuses}
            parts = self._store.parts(files, node.have, BUDGET)
        node.sent = {part.name for part in parts}
        ttl = 2 * self._settings.timeout
        node.number = self._post.send(node.id, Letter(have, parts, node.refused).records(), ttl)
        node.expires = self._clock() + ttl
        return len(parts)

    def _answers(self) -> Iterable[tuple[_Node, Letter | None]]:
        """Yield the answers that have arrived; None for one that is of no use."""
        asked = {node.number: node for node in self._nodes.values() if node.number}
        answers = self._post.receive(list(asked)) if asked else {}
        for number, records in answers.items():
            if number not in asked:
                continue
            node, letter = asked[number], None
            node.number = None
            try:
                letter = Letter.of(records) if records is not None else None
            except BadLetter:
                self._report(node, "", Code.BAD_REQUEST)
            if letter is None:
                node.late = True
            yield node, letter

    def _take(self, node: _Node, letter: Letter, files: dict[str, Content]) -> int:
        """Store what a site sent, and return the number of parts."""
        if node.late:
            self._say(f"site {node.id} answers again")
        node.late = False
        for name, code in letter.codes.items():
            node.refuses.add(name)
            self._report(node, name, code)
        if "" in letter.codes:
            return 0
        node.stalls = node.stalls + 1 if node.sent and node.have == letter.have else 0
        if node.stalls >= STALLS:
            # Neither taken nor refused: a site that lies must not keep a run busy.
            node.refuses |= node.sent
            self._report(node, "", Code.BAD_REQUEST)
        node.have = letter.have
        taken = 0
        for part in letter.parts:
            code = self._store.accept(part, files)
            taken += code is Code.OK
            if code in (Code.OK, Code.OUT_OF_STEP):
                continue
            if is_name(part.name):
                node.refused[part.name] = code
            self._report(node, part.name if is_name(part.name) else "", code)
        for name, entry in sorted(letter.have.files.items()):
            if files.get(name, entry) != entry:
                self._report(node, name, Code.CONFLICT)
        return taken

    def _report(self, node: _Node, name: str, code: Code) -> None:
        """Say something about a file of a site, once."""
        line = f"site {node.id}: {name or 'request'}: {code.value}: {code.sentence}"
        if line not in node.reported:
            node.reported.add(line)
            self._say(line)
