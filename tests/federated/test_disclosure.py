"""Plans that give away numbers of single sites: no site publishes or answers one unasked."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from federated_study import D, run
from scbatchprox import BatchProx, MomentTarget, PopulationTarget
from scbatchprox.errors import BadValue
from scbatchprox.federated import (
    POPULATION,
    CellsFile,
    Waiting,
    contribute,
    disclosed,
    refine_parameters,
)

pytestmark = pytest.mark.usefixtures("no_power_failure")
PAGE = Path(__file__).parents[2] / "docs" / "federated.md"


@pytest.fixture
def plan(study):
    """A plan with the population target, which is not published."""
    parameters = refine_parameters(BatchProx(target="population"), D, "an embedding")
    return replace(study.plan(), parameters=parameters)


@pytest.mark.parametrize(
    ("target", "known"),
    [
        ("moment", True),
        (MomentTarget(variance_matching=False), True),
        ("population", False),
        (PopulationTarget(seed=3), False),
    ],
)
def test_which_targets(study, target, known):
    plan = replace(
        study.plan(), parameters=refine_parameters(BatchProx(target=target), D, "an embedding")
    )
    assert disclosed(plan) == ("" if known else POPULATION)


@pytest.mark.parametrize("model", [None, 3, {}, {"target": None}, {"target": {"name": ["moment"]}}])
def test_nothing_is_promised_of_an_unknown_target(study, model):
    assert disclosed(replace(study.plan(), parameters={"model": model})) == POPULATION


def test_a_plan_is_published_after_a_yes(study, plan):
    site = study.sites["east"]
    before = sorted((study.shared / "plans").iterdir())
    with pytest.raises(BadValue, match=r"Expected accepted=True \(--yes\) for plan"):
        site.publish_plan(plan)
    assert sorted((study.shared / "plans").iterdir()) == before
    site.publish_plan(plan, accepted=True)
    assert site.folder.plan(plan.id) == plan


def test_every_site_says_yes_for_itself(study, plan, moments, tmp_path):
    study.sites["east"].publish_plan(plan, accepted=True)
    for site in study.sites.values():
        # Before any cell is read: there is no such file.
        with pytest.raises(BadValue, match=r"Expected accepted=True \(--yes\) for plan"):
            contribute(site, plan, CellsFile(tmp_path / "none", "b"), confirmed=plan.fingerprint)
        with pytest.raises(BadValue, match=r"Expected accepted=True \(--yes\) for plan"):
            run(site, plan, moments[site.name])
        assert not (site.private / "ledger" / plan.hash).exists()
    assert not (study.shared / "sums").exists()
    assert not (study.shared / "codes").exists()
    east = study.sites["east"]
    assert isinstance(run(east, plan, moments["east"], accepted=True), Waiting)
    assert isinstance(run(east, plan, moments["east"]), Waiting)  # asked once


def test_the_guide_says_the_same():
    text = re.sub(r"\s+", " ", PAGE.read_text().replace("\n> ", "\n"))
    assert POPULATION in text
