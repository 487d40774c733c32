"""How large the package is, how many of its modules a call passes, and how deep tests reach into it.

``.ci/run`` shows what ``python tools/size.py`` prints. A number above its limit is marked.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "scbatchprox", ROOT / "tests"
#: Lines and modules of the wheel, lines of a function, modules that a call passes, and imports of tests from
#: inner modules; at most.
LINES, MODULES, FUNCTION, REFINE, ATLAS_ADD, INNER = 20_000, 170, 60, 30, 45, 150


def main() -> None:
    """Print all numbers."""
    files = sorted(SOURCE.rglob("*.py"))
    lengths = {str(path.relative_to(SOURCE)): path.read_text().count("\n") for path in files}
    long = sorted(((n, name) for path in files for n, name in functions(path)), reverse=True)
    refined, added = walks()
    numbers = [
        ("lines", sum(lengths.values()), LINES),
        ("modules", len(lengths), MODULES),
        ("functions over 60 lines", sum(n > FUNCTION for n, _ in long), 0),
        ("modules that refine passes", refined, REFINE),
        ("modules that atlas add passes", added, ATLAS_ADD),
        ("inner imports of tests", sum(map(inner_imports, TESTS.rglob("*.py"))), INNER),
    ]
    for what, found, most in numbers:
        print(f"{what:30} {found:7,}  of {most:6,}{'  above' if found > most else ''}")
    folders: dict[str, list[int]] = {}
    for name, n in lengths.items():
        folders.setdefault(name.partition("/")[0] if "/" in name else ".", []).append(n)
    for folder, sizes in sorted(folders.items(), key=lambda item: -sum(item[1])):
        print(f"  {folder:28} {sum(sizes):7,}  in {len(sizes)} modules")
    for n, name in long:
        if n > FUNCTION:
            print(f"  {n} lines: {name}")


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """The length of every function, without its docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            docstring = ast.get_docstring(node) is not None
            skipped = (first.end_lineno or 0) - first.lineno + 1 if docstring else 0
            n = (node.end_lineno or 0) - node.lineno + 1 - skipped
            yield n, f"{path.relative_to(SOURCE)}::{node.name}"


def inner_imports(path: Path) -> int:
    """How often a test imports from a module such as ``scbatchprox.core.labels``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return sum(name.startswith("scbatchprox.") and name.count(".") > 1 for name in found)


def walks() -> tuple[int, int]:
    """How many modules ``refine(adata, "batch")`` and ``atlas add`` pass."""
    from typer.testing import CliRunner

    from scbatchprox import refine
    from scbatchprox.cli.app import app
    from scbatchprox.demo import simulate

    adata = simulate("balanced2")
    with tempfile.TemporaryDirectory() as folder:
        atlases, cells = [f"{folder}/first", f"{folder}/second"], f"{folder}/cells.h5ad"
        adata.write_h5ad(cells)

        def command(*words: str) -> None:
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output

        for atlas in atlases:
            command("atlas", "init", atlas)
        add = passed(lambda: command("atlas", "add", atlases.pop(), cells, "--batch-key", "batch"))
    return len(passed(lambda: refine(adata, "batch"))), len(add)


def passed(call: Callable[[], Any]) -> set[str]:
    """The modules of the package whose functions a call calls; what importing runs does not count."""
    call()  # imports
    found: set[str] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            found.add(frame.f_code.co_filename)

    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


if __name__ == "__main__":
    main()
