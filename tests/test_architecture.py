"""The architecture: modules import only from lower layers, and importing has no side effects."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import scbatchprox

ROOT = Path(scbatchprox.__file__).parent

#: Layers of folders and modules, lowest first: each may import from its own layer and those before it.
LAYERS = [
    {"_version", "choices", "errors", "progress"},
    {"kernels"},
    {"io.atomic"},
    {"core.checks", "core.labels", "core.shown"},
    {"io.store"},
    {"core"},
    {"options"},
    {"targets"},
    {"io"},
    {"cells"},
    {"diagnosis"},
    {"api"},
    {"upstream"},
    {"atlas", "federated"},
    {"pl", "plots", "evaluate"},
    {"reporting"},
    {"demo"},
    {"__init__", "cli", "__main__"},
]
#: The numerical core, and the packages that it may import.
CORE = {"kernels", "core", "targets"}
CORE_PACKAGES = {"numpy", "numba", "pandas", "scipy", "safetensors", "threadpoolctl"}


def modules():
    paths = sorted(ROOT.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [(name.removesuffix(".__init__"), path) for name, path in zip(names, paths, strict=True)]


def imports(name, path, nodes=None):
    """Return the modules of this package and the other packages that a file (or some nodes) imports."""
    package = [*name.split(".")] if path.name == "__init__.py" else name.split(".")[:-1]
    package = [] if name == "__init__" else package
    known = dict(modules())
    own, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text())) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            others |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            others.add(node.module.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                target = ".".join([*base, alias.name])
                own.add(target if target in known else ".".join(base) or "__init__")
    assert "scbatchprox" not in others, f"{name} imports the package by its full name"
    return own, others - set(sys.stdlib_module_names)


def layer_of(name):
    """Return the layer of a module: that of its name, or of the nearest folder that is listed."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for i, layer in enumerate(LAYERS):
            if ".".join(parts[:end]) in layer:
                return i
    raise AssertionError(f"{name} is in no layer: add it to this test")


@pytest.mark.parametrize(
    ("name", "path"), modules(), ids=lambda x: str(x) if isinstance(x, str) else ""
)
def test_imports_are_from_lower_layers(name, path):
    own, others = imports(name, path)
    higher = {other for other in own if layer_of(other) > layer_of(name)}
    assert not higher, f"{name} must not import {higher}"
    if name.split(".")[0] in CORE:
        assert others <= CORE_PACKAGES, f"{name} is part of the core and imports {others}"


def test_a_wrong_import_is_found(tmp_path):
    path = tmp_path / "moments.py"
    path.write_text("def f():\n    from ..api.estimator import BatchProx\n    import anndata\n")
    own, others = imports("core.moments", path)
    assert own == {"api.estimator"}
    assert others == {"anndata"}
    assert layer_of("api.estimator") > layer_of("core.moments")


#: What lies beside the package, and is not installed with it.
BESIDE = {"research", "benchmarks", "fuzz", "tests", "tools"}


@pytest.mark.parametrize(
    ("name", "path"), modules(), ids=lambda x: str(x) if isinstance(x, str) else ""
)
def test_nothing_imports_research_code(name, path):
    _, others = imports(name, path)
    assert not others & BESIDE, f"{name} imports {others & BESIDE}, which are not installed"


@pytest.mark.parametrize(
    "source",
    [
        "import research.experiments",
        "from research import datasets",
        "if True:\n    from research.datasets import load",
        "def f():\n    from research.datasets import load",
    ],
)
def test_imports_of_research_code_are_found(tmp_path, source):
    path = tmp_path / "app.py"
    path.write_text(source)
    assert imports("cli.app", path) == (set(), {"research"})


def test_importing_configures_nothing():
    script = (
        "import logging, sys, warnings;"
        "import anndata, sklearn; known = set(sys.modules);"  # anndata imports dask if it is installed
        "before = (list(logging.root.handlers), list(warnings.filters));"
        "import scbatchprox;"
        "assert (list(logging.root.handlers), list(warnings.filters)) == before;"
        "names = {'torch', 'matplotlib', 'dask', 'scanpy', 'flwr', 'jax', 'typer', 'rich', 'pyarrow'};"
        "heavy = names & (set(sys.modules) - known);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


#: Packages that are slow to import, so they are imported only when needed.
HEAVY = {
    "numpy", "numba", "sklearn", "scipy", "scipy.stats", "pandas", "anndata", "h5py", "zarr", "dask",
    "torch", "matplotlib", "bokeh",
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        None,
        "--help",
        "--version",
        "refine --help",
        "apply --help",
        "inspect --help",
        "demo --help",
        "evaluate --help",
        "report --help",
        "atlas --help",
        "atlas add --help",
        "embed fit --help",
        "federated --help",
        "federated contribute --help",
        "federated courier --help",
    ],
)
def test_nothing_is_loaded_before_it_is_used(words):
    script = "import sys, scbatchprox\n"
    if words is not None:
        script += (
            f"sys.argv = ['scbatchprox', *{words!r}.split()]\n"
            "from scbatchprox.cli import main\n"
            "try:\n    main()\n"
            "except SystemExit as done:\n    assert done.code == 0, done.code\n"
        )
    script += f"print('loaded:', *sorted(set({sorted(HEAVY)!r}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_completion_loads_nothing():
    asked = {
        "_SCBATCHPROX_COMPLETE": "complete_bash",
        "COMP_WORDS": "scbatchprox refine --solver ",
        "COMP_CWORD": "3",
    }
    script = (
        "import sys; sys.argv = ['scbatchprox']\n"
        "from scbatchprox.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print('loaded:', *sorted(set({sorted(HEAVY)!r}) & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | asked, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["exact", "adam", "loaded:"]


def test_choices_match_the_library():
    """The command line lists names without importing what they refer to: both must be equal."""
    from scbatchprox import choices
    from scbatchprox.cli.atlas import Policies
    from scbatchprox.core.solvers import SOLVERS
    from scbatchprox.upstream import _METHODS

    assert list(choices.Solvers) == list(SOLVERS)
    assert list(choices.Methods) == list(_METHODS)
    names = ", ".join(repr(policy.value) for policy in Policies)
    with pytest.raises(ValueError, match=f"one of {names}, found 'other'"):
        scbatchprox.BatchProx(target="moment").partial_fit([[0.0]], batch=["a"], policy="other")


def test_public_names_exist():
    for name in scbatchprox.__all__:
        assert hasattr(scbatchprox, name)
