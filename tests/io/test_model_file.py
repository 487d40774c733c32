"""Parameters in files: objects are stored by name and options."""

from dataclasses import dataclass

import pytest

from scbatchprox import PopulationSettings, PopulationTarget
from scbatchprox.io.model_file import params_as_json, params_from_json
from scbatchprox.targets.by_name import TARGETS


@dataclass(frozen=True)
class Toy:
    """A target whose options have names that the population target has, or had."""

    ridge: float = 1.0
    settings: str = "plain"


@pytest.mark.parametrize(
    "target",
    [
        "moment",
        Toy(ridge=7.0, settings="other"),
        PopulationTarget(seed=3, settings=PopulationSettings(cells=25)),
    ],
    ids=["name", "another target", "population"],
)
def test_targets_keep_their_own_options(target, monkeypatch):
    monkeypatch.setitem(TARGETS, "toy", Toy)
    params = {"target": target, "solver": "exact", "rounds": 2}
    assert params_from_json(params_as_json(params)) == params
