"""All doors have the same defaults."""

import inspect

import pytest

from scbatchprox import BatchProx, refine
from scbatchprox.cli.app import diagnose as diagnose_command
from scbatchprox.cli.app import refine as refine_command
from scbatchprox.cli.atlas import init

SHARED = ("target", "rounds", "lambda_target", "mu", "lambda_id", "strength")


@pytest.mark.parametrize("door", [refine, refine_command, init, diagnose_command])
def test_doors_agree_with_the_estimator(door):
    theirs = {name: p.default for name, p in inspect.signature(door).parameters.items()}
    ours = BatchProx().get_params()
    assert {name: theirs[name] for name in SHARED} == {name: ours[name] for name in SHARED}
    assert ours["target"] == "population"
