"""All doors have the same defaults."""

import inspect

import pytest

from scbatchprox import BatchProx, refine
from scbatchprox.cli import app, atlas

SHARED = ("target", "rounds", "lambda_target", "mu", "lambda_id", "strength")


@pytest.mark.parametrize("door", [refine, app.refine, atlas.init, app.diagnose])
def test_doors_agree_with_the_estimator(door):
    theirs = {name: p.default for name, p in inspect.signature(door).parameters.items()}
    ours = BatchProx().get_params()
    assert {name: theirs[name] for name in SHARED} == {name: ours[name] for name in SHARED}
    assert ours["target"] == "population"
