"""What a plan gives away of single sites, besides the sums over all sites that it is for."""

from __future__ import annotations

from ..errors import BadValue, Parameter
from .plan import Plan

__all__ = ["POPULATION", "check_accepted", "disclosed"]

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
    model = plan.parameters.get("model")
    target = model.get("target") if isinstance(model, dict) else None
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
