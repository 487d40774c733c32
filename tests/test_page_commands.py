"""What pages show besides Python: every command is known, and other kinds of blocks are looked at too."""

import os
import re
import tomllib
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import typer.main

import command_line
import page_files
import pages
from pages import ROOT
from scbatchprox.demo import Composition, simulate

FEDERATED = "docs/federated.md"
#: Kinds of blocks, and who runs them.
KINDS = {
    "python": "test_documents.py",
    "console": "test_documents.py",
    "{code-cell}": "make docs",
    "r": "test_page_pipelines.py, where R is",
    "make": "test_page_pipelines.py",
    "toml": "tests/research/experiments/test_settings.py",
    "groovy": "no one: needs Nextflow; its command is tested below",
    "nginx": "no one: needs nginx",
    "": "test_page_pipelines.py: a part of the Snakefile",
    # Not code.
    "{toctree}": "", "{literalinclude} config.yaml": "", "{literalinclude} Snakefile": "",
    "{eval-rst}": "", "{autosummary}": "",
}  # fmt: skip


def commands(page):
    console = (block for block in pages.blocks(page) if block.kind == "console")
    return [command for block in console for command in pages.commands(block)]


COMMANDS = [command for page in pages.ALL for command in commands(page)]


def test_blocks_are_of_known_kinds():
    blocks = [block for page in pages.ALL for block in pages.blocks(page)]
    assert len(blocks) > 100
    assert not [block for block in blocks if block.kind not in KINDS]


def test_every_command_is_run_or_listed():
    lost = [command for command in COMMANDS if pages.reason(command) is None]
    assert not [
        command for command in lost if command.where.split(":")[0] not in [*pages.RUN, FEDERATED]
    ]
    assert not [command for command in lost if command_line.program(command.words)[0] is None]


def test_every_reason_is_needed():
    for start in pages.NOT_RUN:
        assert any(re.match(start, " ".join(command.words)) for command in COMMANDS), start


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(command.words, id=str(command))
        for command in COMMANDS
        if command_line.program(command.words)[0] and pages.reason(command) is not None
    ]
    + [
        ("scbatchprox", "refine", "cells", "--batch-key", "x", "--out", "r.h5ad", "--json")
    ],  # Nextflow
)
def test_commands_that_are_not_run_have_known_options(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app, rest = command_line.program(words)
    found, name = typer.main.get_command(app), words[0]
    while hasattr(found, "commands"):
        name, *rest = rest
        found = found.commands[name]
    found.make_context(name, rest)


def test_extras_and_targets_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.words[:2] == ("pip", "install"):
            for word in set(command.words[2:]) - {"-e"}:
                extras = re.fullmatch(r"(?:scbatchprox|\.)(?:\[(.*)\])?", word)[1] or ""
                assert set(filter(None, extras.split(","))) <= set(known), command
        elif command.words[0] == "make":
            for target in command.words[1:]:
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), command


class Federation:
    """Three sites of ``docs/federated.md``. The page is written for north; the others do the same."""

    def __init__(self, folder):
        self.folder, self.share, self.plan = folder, folder / "share", ""
        self.share.mkdir()
        self.cards = {}
        for site in ("east", "south"):
            self.cards[site] = self.at(site, "keys", site, "--study", "lung")["fingerprint"]

    def at(self, site, verb, *words):
        private = self.folder / "home" / "lung" if site == "north" else self.folder / site
        where = ("--private", private, "--folder", self.share)
        return command_line.answer("federated", verb, *words, *where)

    @property
    def name(self):
        """The first digits of the last plan."""
        return self.plan.replace("-", "")[:8]

    def of(self, site, name):
        return self.folder / site / name, "--batch-key", "donor", "--plan", self.name

    def call(self, command):
        """Run a command of north with the names and fingerprints of this test, and the answers to it."""
        words = [
            str(self.share) if w == "/share/lung" else os.path.expanduser(w) for w in command.words
        ]
        verb = words[2]
        if verb == "trust":
            words[4] = self.cards[words[3]]
        for option in ("--confirm", "--plan"):
            if option in words:
                words[words.index(option) + 1] = self.plan if option == "--confirm" else self.name
        if verb == "finish":  # the first site publishes what others check
            out = self.folder / f"east-{words[words.index('--out') + 1]}"
            self.at("east", "finish", *self.of("east", words[3]), "--out", out)
        printed = command_line.run(*words[1:]).output
        fingerprint = re.search(r"fingerprint ([0-9a-f-]{39}):", printed)
        if verb == "keys":
            self.cards["north"] = fingerprint[1]
            self.at("north", "trust", "east", self.cards["east"])
            for site in ("east", "south"):
                for other in {*self.cards} - {site}:
                    self.at(site, "trust", other, self.cards[other])
        elif verb in ("plan", "pca"):
            self.plan = fingerprint[1]
        elif verb == "contribute":
            self.answer(words[3])

    def answer(self, name):
        """Every site answers until all sums are known, as the page says under step 4."""
        waiting = True
        while waiting:
            waiting = False
            for site in self.cards:
                done = self.at(site, "contribute", *self.of(site, name), "--confirm", self.plan)
                waiting |= not done["complete"]


@pytest.mark.filterwarnings("default")
def test_commands_of_the_federated_page_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    names = ("east", "north", "south")
    table = Composition("lung", names, ("T", "B", "NK"), np.full((3, 3), 50))
    cells = simulate(table, n_genes=80, n_components=50)
    cells.obs["donor"] = cells.obs["batch"].astype(str)
    federation = Federation(tmp_path)
    for site in names:
        (tmp_path / site).mkdir(exist_ok=True)
        part = cells[cells.obs["donor"] == site].copy()
        for name in ("cells.h5ad", "counts.h5ad"):
            part.write_h5ad(tmp_path / site / name)
    monkeypatch.chdir(tmp_path / "north")
    Path("genes.txt").write_text("\n".join(cells.var_names))
    page_files.write_upstream()
    before = ad.read_h5ad("cells.h5ad").obsm["X_pca"]
    for command in commands(FEDERATED):
        if pages.reason(command) is None:
            federation.call(command)
    refined = ad.read_h5ad("refined.h5ad").obsm["X_pca_batchprox"]
    assert refined.shape == before.shape
    assert np.abs(refined - before).max() > 0.1
    assert ad.read_h5ad("cells.h5ad").uns["X_pca"]  # embedded by the PCA of all sites
