"""A plan: what is summed, by whom and with which parameters. All sites must confirm the same one.

Some plans give more away of single sites than the sums over all sites that they are for: :func:`disclosed`.
Constants of the target decide how much, so a site takes others than its version's only if its operator names
them: :func:`check_settings`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadValue, Parameter
from ..targets.population.settings import PopulationSettings
from .keys import Card
from .messages import as_bytes, check_name, grouped, is_name, shown

__all__ = [
    "KINDS", "LEAST_SITES", "MIN_CELLS", "POPULATION", "Plan", "check_accepted", "check_settings",
    "differing", "disclosed", "parameter_lines",
]  # fmt: skip

#: With two sites, the sum minus one's own part is the part of the other.
LEAST_SITES = 3
#: Cells in a batch, at least: the moments of a batch of one cell are that cell. Also cells with a gene.
MIN_CELLS = 20
#: Characters of a note.
MOST_NOTE = 1000
KINDS = ("refine", "genes", "pca")


@dataclass(frozen=True)
class Plan:
    """A plan of one or more rounds of sums.

    ``kind`` is ``"refine"``, ``"genes"`` or ``"pca"``, and ``parameters`` are what that needs to know: never
    anything that depends on the cells of a site.
    """

    study: str
    kind: str
    members: tuple[Card, ...]  # all sites, by name
    parameters: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # a sentence for people, such as the purpose

    def __post_init__(self) -> None:
        check_name("study", self.study)
        if self.kind not in KINDS:
            raise BadValue(f"Expected a plan for {', '.join(KINDS)}, found {shown(self.kind)}.")
        if len(self.members) < LEAST_SITES:
            raise BadValue(
                f"Expected at least {LEAST_SITES} sites, found {len(self.members)}: from the sum of two, "
                f"each could compute the numbers of the other."
            )
        names = [card.site for card in self.members]
        if names != sorted(set(names)):
            raise BadValue(f"Expected distinct sites in the order of their names, found {names}.")
        if len({name.lower() for name in names}) < len(names):
            raise BadValue(
                f"Expected sites whose names differ not only in capitals, found {names}: many file "
                f"systems cannot tell their files apart."
            )
        keys = {key for card in self.members for key in (card.signing, card.masking)}
        if len(keys) < 2 * len(names):
            raise BadValue("Expected different keys for every site, found some twice.")
        if {card.study for card in self.members} != {self.study}:
            raise BadValue(f"Expected cards of the study {self.study}, found cards of another.")
        if not isinstance(self.note, str) or not isinstance(self.parameters, dict):
            raise BadValue("Expected a note and parameters in a plan, found other types.")
        # A terminal obeys what it is shown, and could be made to show another fingerprint.
        if len(self.note) > MOST_NOTE or not self.note.isprintable():
            raise BadValue(
                f"Expected a note of one line of up to {MOST_NOTE} characters, found {shown(self.note)}."
            )

    @classmethod
    def from_json(cls, stored: Any) -> Plan:
        """The plan from the result of :meth:`to_json`."""
        names = {"study", "kind", "members", "parameters", "note"}
        if not isinstance(stored, dict) or set(stored) != names:
            raise BadValue(f"Expected a plan with {', '.join(sorted(names))}, found another.")
        if not isinstance(stored["members"], list):
            raise BadValue("Expected a list of members in a plan, found another type.")
        members = tuple(Card.from_json(card) for card in stored["members"])
        return cls(**{**stored, "members": members})

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON types."""
        return {**vars(self), "members": [card.to_json() for card in self.members]}

    @property
    def hash(self) -> str:
        """A hash of everything in the plan. It salts every mask."""
        return hashlib.sha256(as_bytes(self.to_json())).hexdigest()

    @property
    def id(self) -> str:
        """The start of the hash, for the names of files."""
        return self.hash[:16]

    @property
    def fingerprint(self) -> str:
        """The start of the hash, for people to compare by telephone or in person."""
        return grouped(self.hash)

    def member(self, site: str) -> Card:
        """The card of a site."""
        for card in self.members:
            if card.site == site:
                return card
        known = ", ".join(card.site for card in self.members)
        raise BadValue(f"Expected a site of the plan, found {site!r}; available: {known}.")

    def place(self, kind: str, site: str, number: int | None = None) -> str:
        """Where the message of a site is: its ``"sum"`` of a round, a ``"code"`` or a ``"result"``."""
        folder = self.id if number is None else f"{self.id}/{number:04}"
        return f"{kind}s/{folder}/{site}.{kind}"

    def number(self, name: str) -> int:
        """A positive parameter, which another site has written."""
        found = self.parameters.get(name)
        if type(found) is not int or not 0 < found < 1 << 31:
            raise self.unknown()
        return found

    def least(self, min_cells: int | None) -> int:
        """Cells in a batch, at least: what a site says for itself, or this plan, which may raise it only."""
        return max(MIN_CELLS, self.number("min_cells")) if min_cells is None else min_cells

    def unknown(self) -> BadValue:
        """The error on parameters of another version."""
        return BadValue(
            f"Expected parameters that this version knows in plan {self.id}, found others: update "
            f"scbatchprox at all sites to one version."
        )


#: Whoever publishes or answers a plan with the population target must have read this.
POPULATION = (
    "With the population target, anyone who can read the messages (in the folder, or as the "
    "Flower server) can work out exact numbers of single sites: the means of populations, and how "
    "many cells a batch has. Sums are over regions and centres; one that holds a single population "
    "of a single site gives its mean and its cells away. Measured: 20 of 33 population means stand "
    "in the sums as they are in a study of three sites with a donor each, 41 of 203 with seven "
    "donors each, 17 of 67 in our demo. This is only reading: working on the sums of an earlier "
    "version found 24 of 24, 92 of 173 and 13 of 71, and the exact cell counts of 10 of 20 "
    "batches. This version has more sums; expect no less. With the published PCA these means are "
    "expression profiles of as few as 20 cells. The moment target did not show this."
)


def disclosed(plan: Plan) -> str:
    """What a plan is known to give away of single sites: a few sentences, or none."""
    if plan.kind != "refine":
        return ""
    target = _target(plan)
    name = target.get("name") if isinstance(target, dict) else target
    return "" if name == "moment" else POPULATION  # of an unknown one we can promise no more


def check_accepted(plan: Plan, accepted: bool) -> None:
    """Raise an error if nobody has accepted what a plan gives away."""
    if disclosed(plan) and not accepted:
        raise BadValue(
            "Expected ", Parameter("accepted=True", "--yes"), f" for plan {plan.id}, found no yes: its "
            f"target lets anyone who can read the messages work out exact numbers of single sites; see "
            f"docs/federated.md.",
        )  # fmt: skip


def other_settings(plan: Plan) -> dict[str, float]:
    """Settings of the target in a plan that are not those of this version, and their values."""
    target = _target(plan)
    found = target.get("settings") if isinstance(target, dict) else None
    if found is None:  # of the moment target
        return {}
    known = PopulationSettings().to_json()
    if not isinstance(found, dict) or set(found) != set(known):
        raise plan.unknown()
    if not all(type(value) in (int, float) for value in found.values()):
        raise plan.unknown()
    return {name: found[name] for name, value in known.items() if found[name] != value}


def differing(plan: Plan) -> str:
    """What in the parameters of a plan is not as in this version: a sentence, or none."""
    try:
        other = other_settings(plan)
    except BadValue as error:
        return str(error)
    if not other:
        return ""
    known = PopulationSettings().to_json()
    return (
        f"settings that are not those of this version: {_listed(other)}; its own are "
        f"{_listed({name: known[name] for name in other})}"
    )


#: Parameters of a plan that are shown one by one, at most (this version has 27), and characters of each.
MOST_LINES, MOST_SHOWN = 100, 200


def parameter_lines(plan: Plan) -> list[str]:
    """Every parameter of a plan, one a line, in letters that no terminal obeys.

    A long one is shown by its start, and by a hash of all of it, so that sites can compare it.
    """
    lines = list(_lines("", plan.parameters))
    return lines if len(lines) <= MOST_LINES else [_brief(plan.parameters)]


def _lines(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not value or name.count(".") > 3:
        yield f"{name}: {_brief(value)}"
        return
    for key, inner in value.items():
        own = key if is_name(key) else _brief(key)
        yield from _lines(f"{name}.{own}" if name else own, inner)


def _brief(value: Any) -> str:
    raw = as_bytes(value)
    text = raw.decode().replace("\x7f", r"\u007f")
    if len(text) <= MOST_SHOWN:
        return text
    entries = f"{len(value):,} entries" if isinstance(value, list) else f"{len(text):,} characters"
    return f"{text[:60]}... ({entries}, hash {grouped(hashlib.sha256(raw).hexdigest())})"


def check_settings(plan: Plan, allowed: Mapping[str, float]) -> None:
    """Raise an error unless a plan has the settings of this version, but for exactly those ``allowed``."""
    other = other_settings(plan)
    not_allowed = {name: value for name, value in other.items() if allowed.get(name) != value}
    if not_allowed:
        known = PopulationSettings().to_json()
        raise BadValue(
            f"Expected {_listed({name: known[name] for name in not_allowed})} in plan {plan.id}, as in this "
            f"version, found {_listed(not_allowed)}: with other settings the sums may give more away of "
            f"single sites; give ", Parameter("settings={name: value}", "--allow-setting NAME=VALUE"),
            " for each if that is acceptable.",
        )  # fmt: skip
    absent = {name: value for name, value in allowed.items() if name not in other}
    if absent:
        raise BadValue(
            f"Expected to allow settings of plan {plan.id} that are not those of this version, found "
            f"{_listed(absent)}; available: {_listed(other) or 'none'}."
        )


def _target(plan: Plan) -> Any:
    """The target in a plan, which another site has written: an object as a dictionary."""
    model = plan.parameters.get("model")
    return model.get("target") if isinstance(model, dict) else None


def _listed(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in settings.items())
