"""Check the built packages as a new user would: `python tools/check_dist.py dist`.

The wheel is installed into an empty environment outside of the repository, so that only the wheel can be
imported. The source package is unpacked, and some of its tests are run there. ``make dist`` runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: First steps of a user; needs no extra.
FIRST_STEPS = """
import sys
from pathlib import Path
import anndata, numpy as np, pandas as pd
import scbatchprox
from scbatchprox import BatchProx, refine

assert scbatchprox.__version__ == sys.argv[1], scbatchprox.__version__
assert "site-packages" in scbatchprox.__file__, scbatchprox.__file__
assert Path(scbatchprox.__file__).with_name("py.typed").exists()
for name in scbatchprox.__all__:
    getattr(scbatchprox, name)

rng = np.random.default_rng(0)
batch = np.repeat(["a", "b"], 100)
Z = rng.normal(size=(200, 5)) + 12.0 * np.eye(5)[rng.integers(0, 4, 200)]  # four types
Z[batch == "b"] += 3.0
cells = anndata.AnnData(obs=pd.DataFrame({"batch": batch}, map(str, range(200))), obsm={"X_pca": Z})
cells.write_h5ad("cells.h5ad")
refine(cells, "batch", target="moment", rounds=None)
refined = cells.obsm["X_pca_batchprox"]

def distance(Z):
    return abs(Z[:100].mean() - Z[100:].mean())

assert distance(refined) < distance(Z) / 10, distance(refined)
model = BatchProx(target="moment", rounds=None).fit(Z, batch=batch)
model.save("model.safetensors")
assert (BatchProx.load("model.safetensors").transform(Z, batch=batch) == refined).all()
"""

#: Checks the output of the command, whose input FIRST_STEPS wrote.
CHECK_OUTPUT = """
import anndata
cells = anndata.read_h5ad("refined.h5ad")
assert cells.obsm["X_pca_batchprox"].shape == cells.obsm["X_pca"].shape == (200, 5)
assert (cells.obsm["X_pca_batchprox"] != cells.obsm["X_pca"]).any()
"""

#: Tests in the source package that read other files of the repository. Of the pages with examples one is
#: enough: ``make test-slow`` runs all.
TESTS = [
    "-k",
    "not examples or start",
    "tests/test_documents.py",
    "tests/io/test_version_0_1_0.py",
    "tests/targets/test_target.py",
]


def main(folder: Path) -> None:
    """Check the wheel and the source package in a folder."""
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    check_wheel_content(wheel)
    with tempfile.TemporaryDirectory() as place:
        check_wheel_installs(wheel, version, Path(place))
    with tempfile.TemporaryDirectory() as place:
        check_sdist(sdist, Path(place))


def check_wheel_content(wheel: Path) -> None:
    """Check for every module, ``py.typed`` and the licence; no tests, no docs, no research code."""
    names = set(zipfile.ZipFile(wheel).namelist())
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
    others = {name for name in names if name.split("/")[0] not in ("scbatchprox", info)}
    expect(not others, f"only the package in {wheel.name}", sorted(others))
    files = (path for kind in ("py", "html", "css") for path in (ROOT / "src").rglob(f"*.{kind}"))
    modules = {str(path.relative_to(ROOT / "src")) for path in files}
    needed = modules | {"scbatchprox/py.typed", f"{info}/licenses/LICENSE"}
    expect(needed <= names, f"the whole package in {wheel.name}", f"no {sorted(needed - names)}")
    report(f"{wheel.name}: {len(modules)} modules, py.typed, licence, nothing else")


def check_wheel_installs(wheel: Path, version: str, place: Path) -> None:
    """Install without extras, and refine with the library and with the command."""
    venv.create(place / "venv", with_pip=True)
    bin = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python, command = str(bin / "python"), str(bin / "scbatchprox")

    install(python, str(wheel))
    call([python, "-c", FIRST_STEPS, version], place)
    report(f"{wheel.name}: without extras it imports, refines an AnnData, saves and loads a model")
    output = call([command, "--version"], place).strip()
    expect(output == version, f"version {version}", output)
    call([command, "refine", "cells.h5ad", "--batch-key", "batch", "--out", "refined.h5ad"], place)
    call([python, "-c", CHECK_OUTPUT], place)
    report(f"{wheel.name}: the command prints its version and refines a file")


def check_sdist(sdist: Path, place: Path) -> None:
    """Check for all files of the repository, and run tests that read other files."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (unpacked,) = place.iterdir()
    needed = [
        path.relative_to(ROOT)
        for folder in ("src", "tests", "docs", "benchmarks", "fuzz", "research", "tools", ".ci")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", "_build", "generated"} & set(path.parts)
    ]
    needed += map(Path, ("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "LICENSE"))
    missing = [str(path) for path in needed if not (unpacked / path).exists()]
    expect(not missing, f"all sources in {sdist.name}", f"no {missing}")
    call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], unpacked)
    report(f"{sdist.name}: {len(needed)} files, and its tests run")


def install(python: str, what: str) -> None:
    """Install into the environment of an interpreter."""
    call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what], ROOT)


def call(command: list[str], folder: Path) -> str:
    """Run a command in a folder; return its output."""
    own = folder / "src"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if own.exists() and folder != ROOT:
        environment["PYTHONPATH"] = str(own)  # takes precedence over the installed package
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    expect(
        done.returncode == 0,
        f"{' '.join(command)[:200]!r} to end with 0",
        f"{done.returncode}:\n{done.stdout}",
    )
    return done.stdout


def expect(holds: bool, expected: str, found: object) -> None:
    """Exit with an error message unless a condition holds."""
    if not holds:
        sys.exit(f"Expected {expected}, found {found}")


def report(sentence: str) -> None:
    """Print a check that passed."""
    print(sentence, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
