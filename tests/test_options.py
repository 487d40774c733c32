"""Options of the method are declared once, and every door has them."""

import inspect
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.base import clone

import scbatchprox
from scbatchprox import BatchProx, diagnose, refine, report
from scbatchprox.atlas import Atlas
from scbatchprox.options import OF_OBJECTS, Options, options_of

ROOT = Path(__file__).parents[1]
#: A new option, as it would be written into the only file that declares options.
NEW = """
    patience: int = own(7, "Rounds without any change, at most.", typed=int)


_OWN = """
#: What every door makes of it, in a new process.
DOORS = """
import inspect, json, runpy, sys
import scbatchprox as s
from scbatchprox.atlas import Atlas
from scbatchprox.cli.app import app
from scbatchprox.federated.fit import refine_parameters
from typer.testing import CliRunner

def shown(*words):
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output

doors = (s.BatchProx, s.refine, s.diagnose, s.report, Atlas.create)
commands = ("refine", "diagnose", "atlas init", "federated plan")
found = {"signatures": [inspect.signature(door).parameters["patience"].default for door in doors]}
found["model"] = s.BatchProx(patience=9).get_params()["patience"]
found["plan"] = refine_parameters(s.BatchProx(patience=9), 5, "pca")["model"]["patience"]
found["docstring"] = "Rounds without any change" in s.BatchProx.__doc__
helps = [shown(*words.split()) for words in commands]
found["helps"] = ["--patience" in text and "Rounds without any change" in text for text in helps]
made = CliRunner().invoke(app, ["atlas", "init", sys.argv[2], "--patience", "8", "--json"])
found["atlas"] = json.loads(made.stdout)["params"]["patience"]
found["page"] = "| `patience=7` | `--patience` | Rounds" in runpy.run_path(sys.argv[1])["page"]()
print(json.dumps(found))
"""


def test_adding_an_option_is_a_change_in_one_place(tmp_path):
    package = tmp_path / "src" / "scbatchprox"
    shutil.copytree(
        Path(scbatchprox.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "bench")
    )  # fmt: skip
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    declared = (package / "options.py").read_text()
    assert declared.count("\n\n\n_OWN = ") == 1
    (package / "options.py").write_text(declared.replace("\n\n\n_OWN = ", NEW))
    done = subprocess.run(
        [sys.executable, "-c", DOORS, tmp_path / "tools" / "options_page.py", tmp_path / "atlas"],
        env=os.environ | {"PYTHONPATH": str(package.parent)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "signatures": [7] * 5, "helps": [True] * 4, "docstring": True, "page": True,
        "model": 9, "plan": 9, "atlas": 8,
    }  # fmt: skip


@pytest.mark.parametrize("door", [BatchProx, refine, diagnose, report, Atlas.create])
def test_signatures_show_them(door):
    shown = inspect.signature(door).parameters
    for option in options_of():
        assert shown[option.name].default == option.default
        assert shown[option.name].annotation == Options.__annotations__[option.name]


def test_the_estimator_has_them_as_scikit_learn_wants():
    model = BatchProx("moment", mu=2.0)
    assert model.get_params() == {one.name: one.default for one in options_of()} | {
        "target": "moment",
        "mu": 2.0,
    }
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "BatchProx(mu=2.0, target='moment')"


def test_options_of_objects_exist():
    from scbatchprox.core.solvers import SOLVERS
    from scbatchprox.targets.method import TARGETS

    for option in OF_OBJECTS:
        for name in option.of:
            made = (SOLVERS | TARGETS)[name]()
            assert hasattr(made, option.name)
            assert option.sets is None or getattr(made, option.name) is not option.sets


def test_the_page_is_as_declared():
    made = runpy.run_path(str(ROOT / "tools" / "options_page.py"))
    assert made["PAGE"].read_text() == made["page"](), "run python tools/options_page.py"
