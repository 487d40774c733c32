"""The house: arrows between modules point one way, and importing has no side effects."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import scbatchprox

ROOT = Path(scbatchprox.__file__).parent

#: Folders and modules from the ground up: each may import itself and what stands before it.
HOUSE = [
    {"_version", "errors", "progress"},
    {"kernels"},
    {"io.atomic"},
    {"core.checks", "core.labels"},
    {"io.store"},
    {"core"},
    {"targets"},
    {"io"},
    {"cells"},
    {"diagnosis"},
    {"api"},
    {"upstream"},
    {"atlas"},
    {"plots", "evaluate"},
    {"bench"},
    {"__init__", "cli", "__main__"},
]
#: The corridor, from cells to cells, and what it may use from outside.
CORRIDOR = {"kernels", "core", "targets"}
CORRIDOR_PACKAGES = {"numpy", "numba", "pandas", "scipy", "safetensors", "threadpoolctl"}


def modules():
    paths = sorted(ROOT.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [(name.removesuffix(".__init__"), path) for name, path in zip(names, paths, strict=True)]


def imports(name, path):
    """Modules of the package, and packages from outside, that a file imports anywhere in it."""
    package = [*name.split(".")] if path.name == "__init__.py" else name.split(".")[:-1]
    package = [] if name == "__init__" else package
    known = dict(modules())
    own, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def rank(name):
    """The floor of a module: that of its own name, or of the nearest folder that is listed."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for i, floor in enumerate(HOUSE):
            if ".".join(parts[:end]) in floor:
                return i
    raise AssertionError(f"{name} has no place in the house: add it to this test")


@pytest.mark.parametrize(
    ("name", "path"), modules(), ids=lambda x: str(x) if isinstance(x, str) else ""
)
def test_arrows_point_one_way(name, path):
    own, others = imports(name, path)
    backwards = {other for other in own if rank(other) > rank(name)}
    assert not backwards, f"{name} must not import {backwards}"
    if name.split(".")[0] in CORRIDOR:
        assert others <= CORRIDOR_PACKAGES, f"{name} is in the corridor and imports {others}"


def test_the_walk_sees_a_wrong_arrow(tmp_path):
    path = tmp_path / "moments.py"
    path.write_text("def f():\n    from ..api.estimator import BatchProx\n    import anndata\n")
    own, others = imports("core.moments", path)
    assert own == {"api.estimator"}
    assert others == {"anndata"}
    assert rank("api.estimator") > rank("core.moments")


def test_importing_configures_nothing():
    script = (
        "import logging, sys, warnings;"
        "import anndata, sklearn; known = set(sys.modules);"  # anndata imports dask where it is
        "before = (list(logging.root.handlers), list(warnings.filters));"
        "import scbatchprox;"
        "assert (list(logging.root.handlers), list(warnings.filters)) == before;"
        "names = {'torch', 'matplotlib', 'dask', 'scanpy', 'flwr', 'jax', 'typer', 'rich', 'pyarrow'};"
        "heavy = names & (set(sys.modules) - known);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_names_exist():
    for name in scbatchprox.__all__:
        assert hasattr(scbatchprox, name)
