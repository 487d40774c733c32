"""Blocks of the README and of the pages in docs, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALL = [
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if "_build" not in path.parts
]


#: Pages that test_documents.py runs.
RUN = [
    "README.md", "docs/atlas.md", "docs/data.md", "docs/files.md", "docs/plots.md", "docs/populations.md",
    "docs/upstream.md", "docs/index.md", "docs/start.md", "docs/howto/dask.md",
    "docs/howto/larger_than_memory.md", "docs/report.md", "docs/results/README.md",
    "docs/tutorials/scvi_and_harmony.md",
]  # fmt: skip
HOURS = "takes hours; make experiments-quick runs every experiment in small"
#: Commands that are not run: what they begin with, and why. The first that fits counts.
NOT_RUN = {
    r"pip install ": "needs a network; test_page_commands.py looks for the extras",
    r"make ": "test_page_commands.py looks for the target; .ci/run runs those that check something",
    r"scbatchprox federated demo": "tests/federated/test_demo.py runs it",
    r"scbatchprox federated (courier|server|admit|run)": "tests/federated/flower runs them",
    r"scbatchprox .*--scheduler tcp:": "needs a running cluster; tests/cli/test_cli_cluster.py has one",
    r"python -m research .*--out docs/results": HOURS,
    r"python -m research --all --quick": "takes minutes; make experiments-quick runs it",
}
#: Words in a block that needs more than the test extra, and the marker of the tests that run it.
HEAVY = {
    "scanpy": "interop",
    "ScviUpstream": "scvi",
    "import scvi": "scvi",
    "--method scvi": "scvi",
}


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: str
    line: int  # of its first line in the page
    kind: str
    text: str

    @property
    def marker(self):
        return next((HEAVY[word] for word in HEAVY if word in self.text), None)

    @property
    def code(self):
        """Python code; errors show the line in the page."""
        return compile("\n" * (self.line - 1) + self.text, self.page, "exec")


@dataclass(frozen=True)
class Command:
    """A command as a page shows it, without its comment; what the page says it prints, if it does."""

    where: str
    words: tuple[str, ...]
    printed: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.where}: {shlex.join(self.words)}"

    @property
    def code(self):
        """The exit code that a reader expects."""
        return 2 if self.printed and self.printed[0].startswith("Error:") else 0


def blocks(page):
    text = (ROOT / page).read_text()
    for match in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start(2)].count("\n") + 1
        yield Block(page, line, match[1].strip(), match[2])


def markers(page):
    """What the blocks of a page need that run in tests."""
    run = [block for block in blocks(page) if block.kind in ("python", "console")]
    return sorted({block.marker for block in run} - {None})


def commands(block):
    """The commands of a console block. If it has prompts, the other lines are output."""
    lines = block.text.replace("\\\n", "\0").splitlines()  # a command may go on in the next line
    prompts = any(line.startswith("$ ") for line in lines)
    found, at = [], block.line
    for line in lines:
        if line.startswith("$ ") or not prompts:
            words = shlex.split(line.removeprefix("$ ").replace("\0", " "), comments=True)
            found.append((f"{block.page}:{at}", words, []))
        else:
            found[-1][2].append(line)
        at += 1 + line.count("\0")
    return [Command(where, tuple(words), tuple(out)) for where, words, out in found if words]


def reason(command):
    """Why a command is not run, or None if it is."""
    words = shlex.join(command.words)
    return next((why for start, why in NOT_RUN.items() if re.match(start, words)), None)
