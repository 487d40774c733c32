"""The ledger of a site: what it has given to which sum. It is written before anything leaves the site.

The difference of two sums over almost the same cells reveals what differs. So a site answers a plan once: the
same bytes again, or nothing. An answer to a second plan with other members or other cells needs the explicit
permission of the operator.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..errors import BadValue, Parameter
from ..io.atomic import replacing, sync_folder
from ..io.locks import locked_by
from .keys import OWNER_ONLY, Card
from .messages import Message, as_bytes, grouped
from .plan import Plan

__all__ = ["Answer", "Ledger", "OwnNumbers"]

#: Parameters of plans that do not change what a site adds, but only what is done with the sums.
AFTERWARDS = ("model", "min_cells")


@dataclass(frozen=True)
class OwnNumbers:
    """The number of cells of a site, and hashes of what it has: they stay in its ledger."""

    n_cells: int
    sizes: str
    numbers: str

    @classmethod
    def of(cls, batches: list[str], n: np.ndarray, *arrays: np.ndarray) -> OwnNumbers:
        """Hashes of batches, their numbers of cells, and all other numbers."""
        sizes = hashlib.sha256(as_bytes([batches, n.tolist()]))
        numbers = sizes.copy()
        for array in arrays:
            numbers.update(np.ascontiguousarray(array).data)
        return cls(int(n.sum()), sizes.hexdigest(), numbers.hexdigest())


@dataclass(frozen=True)
class Answer:
    """A plan that this site takes part in."""

    plan: str  # its hash
    kind: str
    summed: str  # hash of the parameters that decide what is summed
    members: list[str]  # names and public keys
    n_cells: int
    sizes: str  # hash of this site's batches and their numbers of cells
    numbers: str  # hash of all numbers of this site

    @classmethod
    def to(cls, plan: Plan, own: OwnNumbers) -> Answer:
        """The answer to a plan with the numbers of this site."""
        members = [f"{card.site} {card.signing} {card.masking}" for card in plan.members]
        used = {name: x for name, x in plan.parameters.items() if name not in AFTERWARDS}
        summed = hashlib.sha256(as_bytes(used)).hexdigest()
        return cls(plan.hash, plan.kind, summed, members, own.n_cells, own.sizes, own.numbers)


@dataclass(frozen=True)
class Ledger:
    """A folder with an entry for each plan, and the messages of each round."""

    folder: Path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only process that answers for this site."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_by(self.folder / "lock", f"the ledger {self.folder}"):
            yield

    def enter(self, answer: Answer, *, permitted: bool) -> None:
        """Enter a plan before its first answer; raise if that would reveal more than the plan says."""
        known = self.answers()
        # First: what was permitted once is not asked again.
        for before in known:
            if before.plan == answer.plan:
                if before.numbers != answer.numbers:
                    raise BadValue(
                        f"Expected the cells that plan {answer.plan[:16]} was answered with, found others: "
                        f"a site answers a plan once; make a new plan for other cells."
                    )
                return
        for before in known:
            differs = _difference(before, answer)
            if differs and not permitted:
                raise BadValue(
                    f"Expected the members and cells of plan {before.plan[:16]}, which this site has "
                    f"answered, found {differs}: the difference of the two sums may reveal the numbers "
                    f"of one site alone; give ", Parameter("permitted=True", "--allow-difference"),
                    " if that is acceptable.",
                )  # fmt: skip
        place = self._place(answer.plan)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(self.folder)
        with replacing(place / "answer.json", mode=OWNER_ONLY) as temporary:
            temporary.write_bytes(as_bytes(asdict(answer)))

    def answers(self) -> list[Answer]:
        """All plans that were answered."""
        found = []
        for path in sorted(self.folder.glob("*/answer.json")):
            try:
                answer = Answer(**json.loads(path.read_bytes()))
                if self._place(answer.plan) != path.parent:
                    raise ValueError
                found.append(answer)
            except (ValueError, TypeError):
                # Without its memory a site might answer twice.
                raise BadValue(
                    f"Expected an entry of the ledger at {path}, found a damaged file; nothing is sent."
                ) from None
        return found

    def has(self, plan: Plan) -> bool:
        """Whether a plan was answered."""
        return any(answer.plan == plan.hash for answer in self.answers())

    def given(self, plan: Plan, number: int, own: Card) -> Message | None:
        """What this site has given to a round, if anything."""
        path = self._round(plan, number)
        if not path.exists():
            return None
        return own.message(path, type="sum", plan=plan.hash, round=number)

    def give(self, plan: Plan, number: int, message: Message) -> None:
        """Record what this site gives to a round."""
        with replacing(self._round(plan, number)) as temporary:
            temporary.write_bytes(message.raw)

    def conclude(self, plan: Plan, state: str) -> None:
        """Record the hash of all sums of a plan."""
        with replacing(self._place(plan.hash) / "sums.txt") as temporary:
            temporary.write_text(state)

    def conclusion(self, plan: Plan) -> str:
        """The fingerprint of all sums of a plan: the same at all sites, if they saw the same messages."""
        return grouped((self._place(plan.hash) / "sums.txt").read_text())

    def _round(self, plan: Plan, number: int) -> Path:
        return self._place(plan.hash) / f"{number:04}.sum"

    def _place(self, plan: str) -> Path:
        return self.folder / plan  # all of the hash: its start can be made to agree with another's


def _difference(before: Answer, answer: Answer) -> str:
    """What differs between two answers, so that the difference of the sums is of few sites or cells."""
    if before.members != answer.members:
        return "other members"
    # Of every kind: the moments of an embedding also follow from the sums that it is computed from.
    if before.n_cells != answer.n_cells:
        return "other cells"
    if before.kind != answer.kind:
        return ""
    # Sums of other numbers of the same cells, such as two embeddings, have no meaningful difference.
    same = before.sizes == answer.sizes
    if same and before.summed == answer.summed:
        same = before.numbers == answer.numbers
    return "" if same else "other cells"
