"""``scbatchprox federated``: a study of three sites that share a folder, by commands."""

import os
import pty
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from anndata_files import read
from command_line import answer, printed_on, run
from data import make_cells
from scbatchprox import BatchProx, PopulationSettings, PopulationTarget
from scbatchprox.demo import Composition, simulate
from scbatchprox.demo.federated import central_fit
from scbatchprox.federated import POPULATION, MessageFolder, Plan, Site, refine_parameters

SITES = ("east", "north", "south")


class Study:
    """Folders and commands of three sites."""

    def __init__(self, root):
        self.root, self.share = root, root / "share"
        self.share.mkdir()
        cards = {site: self.at(site, "keys", site, "--study", "lung") for site in SITES}
        for site in SITES:
            for other, card in cards.items():
                self.at(site, "trust", other, card["fingerprint"])

    def where(self, site):
        return ["--private", self.root / site, "--folder", self.share]

    def at(self, site, verb, *arguments, code=0):
        return answer("federated", verb, *arguments, *self.where(site), code=code)

    def refused(self, site, verb, *arguments):
        """The sentence with which a command is refused."""
        return self.at(site, verb, *arguments, code=2)["error"]


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


@pytest.fixture
def tables(study, rng):
    """A table of cells for each site; donor 1 is at all of them."""
    found = {}
    for i, site in enumerate(SITES):
        c = make_cells(rng, [60, 40 + 10 * i], 4)
        frame = pd.DataFrame(c.Z + i, columns=[f"PC{j}" for j in range(4)])
        found[site] = study.root / f"{site}.csv"
        frame.assign(donor=np.where(c.codes == 0, "1", f"d{i}")).to_csv(found[site], index=False)
    return found


def options(table):
    return [table, "--batch-key", "donor", "--use-rep", "PC"]


@pytest.mark.parametrize("target", ["moment", pytest.param("population", marks=pytest.mark.slow)])
def test_from_keys_to_refined_cells(study, tables, target):
    yes = ["--yes"] * (target == "population")
    plan = study.at(
        "east", "plan", "--coordinates", 4, "--embedding", "a text", "--target", target, *yes
    )
    waiting = dict.fromkeys(SITES, True)
    while any(waiting.values()):
        for site, table in tables.items():
            found = study.at(
                site, "contribute", *options(table), "--confirm", plan["fingerprint"], *yes
            )
            waiting[site] = not found["complete"]
    sums = {
        study.at(
            site, "finish", *options(table), "--out", study.root / f"out-{site}.csv",
            "--model", study.root / f"{site}.safetensors",
        )["sums"]
        for site, table in tables.items()
    }  # fmt: skip
    assert len(sums) == 1  # all sites saw the same messages
    before = {site: pd.read_csv(table, dtype={"donor": str}) for site, table in tables.items()}
    batch = np.concatenate([f"{site}/" + frame["donor"] for site, frame in before.items()])
    Z = np.concatenate([frame.filter(like="PC").to_numpy() for frame in before.values()])
    central = central_fit(Z, batch.astype(str), target)
    after = [pd.read_csv(study.root / f"out-{site}.csv").filter(like="PC") for site in SITES]
    np.testing.assert_allclose(np.concatenate(after), central, atol=1e-8)
    model = BatchProx.load(study.root / "east.safetensors")
    assert model.batches_.tolist() == ["east/1", "east/d0"]
    assert model.provenance_["plan"] == plan["plan"]


def test_status_needs_no_keys(study, tables):
    plan = study.at("east", "plan", "--coordinates", 4, "--embedding", "text", "--note", "a note")
    study.at("north", "contribute", *options(tables["north"]), "--confirm", plan["fingerprint"])
    found = answer("federated", "status", "--folder", study.share)
    assert set(found["cards"]) == set(SITES)
    parameters = refine_parameters(BatchProx(target="moment"), 4, "text")
    assert found["plans"] == [
        {
            "plan": plan["plan"], "fingerprint": plan["fingerprint"], "study": "lung", "kind": "refine",
            "members": found["cards"], "note": "a note", "parameters": parameters,
            "round": 0, "missing": ["east", "south"], "codes": {},
        }
    ]  # fmt: skip
    printed = run("federated", "status", "--folder", study.share).stdout
    assert "waiting for east, south" in printed
    assert "a note" in printed
    assert plan["fingerprint"] in printed
    assert "    n_dims: 4\n" in printed
    assert '    model.target: "moment"\n' in printed


def test_others_learn_a_code_of_a_batch_that_is_too_small(study, tables):
    plan = study.at("east", "plan", "--coordinates", 4, "--embedding", "text")["fingerprint"]
    frame = pd.read_csv(tables["east"])
    small = frame[frame["donor"] == "d0"][:5]
    frame = pd.concat([frame[frame["donor"] != "d0"], small])
    frame.to_csv(tables["east"], index=False)
    sentence = study.refused("east", "contribute", *options(tables["east"]), "--confirm", plan)
    assert "at least 20 cells in every batch, found fewer in 'east/d0'" in sentence
    found = answer("federated", "status", "--folder", study.share)["plans"][0]
    assert found["codes"] == {"east": "cells"}
    lowered = study.at(
        "east", "contribute", *options(tables["east"]), "--confirm", plan, "--min-cells", 5
    )
    assert lowered["missing"] == ["north", "south"]


def test_genes(study):
    counts = np.array([[60, 40], [50, 50], [40, 60]])
    cells = simulate(
        Composition("three", SITES, ("T", "B"), counts), n_genes=80, n_components=3, seed=0
    )
    genes = study.root / "genes.txt"
    genes.write_text("\n".join(cells.var_names))
    plan = study.at("east", "genes", "--genes", genes, "--hvgs", 20)["fingerprint"]
    for site in SITES:
        cells[cells.obs["batch"] == site].copy().write_h5ad(study.root / f"{site}.h5ad")
        study.at(site, "contribute", study.root / f"{site}.h5ad", "--confirm", plan)
    chosen = {}
    for site in SITES:
        out = study.root / f"{site}.txt"
        study.at(site, "finish", study.root / f"{site}.h5ad", "--out", out)
        chosen[site] = out.read_text().split()
    assert chosen["east"] == chosen["north"] == chosen["south"]
    assert 20 <= len(chosen["east"]) < 40
    assert set(chosen["east"]) <= set(cells.var_names)
    assert read(study.root / "east.h5ad").n_obs == 100


class TestRefused:
    @pytest.fixture
    def plan(self, study):
        return study.at("east", "plan", "--coordinates", 4, "--embedding", "text")["fingerprint"]

    def test_plans_that_were_not_confirmed(self, study, tables, plan):
        for given in ([], ["--confirm", "0" * 32], ["--confirm", plan[:-1]]):
            sentence = study.refused("east", "contribute", *options(tables["east"]), *given)
            assert "as the other sites confirm it by telephone" in sentence
        assert not (study.share / "sums").exists()

    def test_finish_before_contribute(self, study, tables):
        study.at("east", "plan", "--coordinates", 4, "--embedding", "text")
        place = study.root / "out.csv"
        sentence = study.refused("east", "finish", *options(tables["east"]), "--out", place)
        assert "Expected a plan that this site has answered" in sentence

    def test_finish_before_the_others(self, study, tables, plan):
        study.at("east", "contribute", *options(tables["east"]), "--confirm", plan)
        place = study.root / "out.csv"
        sentence = study.refused("east", "finish", *options(tables["east"]), "--out", place)
        assert "found none of north, south for round 0" in sentence
        assert not place.exists()

    def test_other_cells(self, study, tables, plan):
        study.at("east", "contribute", *options(tables["east"]), "--confirm", plan)
        pd.read_csv(tables["east"])[:-1].to_csv(tables["east"], index=False)
        sentence = study.refused("east", "contribute", *options(tables["east"]))
        assert "a site answers a plan once" in sentence

    @pytest.mark.usefixtures("plan")
    def test_options_of_another_kind(self, study, tables):
        sentence = study.refused("east", "contribute", *options(tables["east"]), "--layer", "raw")
        assert "Expected no --layer for a plan of kind refine, found raw." in sentence
        sentence = study.refused("east", "contribute", tables["east"])
        assert "Expected --batch-key, found none." in sentence

    def test_folders(self, study):
        for given in ([], ["--folder", study.share, "--inbox", study.share]):
            printed = answer("federated", "status", *given, code=2)["error"]
            assert "Expected --folder, or --inbox and --outbox" in printed

    def test_a_wrong_fingerprint(self, study):
        sentence = study.refused("east", "trust", "south", "0000-" * 7 + "0000")
        assert "the card in the folder is forged" in sentence

    def test_too_few_sites(self, study):
        sentence = study.refused(
            "east", "plan", "--coordinates", 4, "--embedding", "text", "--member", "east",
            "--member", "south",
        )  # fmt: skip
        assert "Expected at least 3 sites, found 2" in sentence


class TestSettings:
    """A plan with other settings of the target, which only Python can make."""

    @pytest.fixture
    def plan(self, study):
        folder = MessageFolder(study.share, study.share)
        site = Site.open(study.root / "east", folder)
        target = PopulationTarget(settings=PopulationSettings(evidence=0.01, copies=500))
        given = refine_parameters(BatchProx(target=target), 4, "text")
        plan = Plan("lung", "refine", tuple(folder.cards()), given)
        site.publish_plan(plan, accepted=True, settings={"evidence": 0.01, "copies": 500})
        return plan

    def words(self, tables, plan, *allowed):
        given = [word for text in allowed for word in ("--allow-setting", text)]
        return [
            "contribute", *options(tables["north"]), "--confirm", plan.fingerprint, "--yes", *given,
        ]  # fmt: skip

    def test_refused(self, study, tables, plan):
        for allowed in ([], ["copies=32"], ["evidence=0.01"], ["evidence=0.01", "copies=501"]):
            sentence = study.refused("north", *self.words(tables, plan, *allowed))
            assert sentence.startswith("Expected ")
            assert f"copies=32 in plan {plan.id}, as in this version, found " in sentence
            assert "copies=500: " in sentence
            assert "give --allow-setting NAME=VALUE for each if that is acceptable." in sentence
        for typed in ("evidence", "evidence=", "evidence=much"):
            sentence = study.refused("north", *self.words(tables, plan, typed))
            assert sentence == f"Expected --allow-setting NAME=VALUE, found {typed!r}."
        assert not (study.share / "sums").exists()
        assert not (study.share / "codes").exists()
        assert not (study.root / "north" / "ledger").exists()

    def test_shown_before_they_are_allowed(self, study, plan):
        stored = answer("federated", "status", "--folder", study.share)["plans"][0]
        assert stored["parameters"] == plan.parameters
        assert stored["fingerprint"] == plan.fingerprint
        printed = run("federated", "status", "--folder", study.share).stdout
        for sentence in (
            "model.target.settings.evidence: 0.01", "model.target.settings.copies: 500",
            "model.target.settings.prior: 0.2", stored["differs"],
        ):  # fmt: skip
            assert sentence in printed
        assert stored["differs"] == (
            "settings that are not those of this version: evidence=0.01, copies=500; its own are "
            "evidence=1.3, copies=32"
        )

    def test_allowed(self, study, tables, plan):
        found = study.at("north", *self.words(tables, plan, "evidence=0.01", "copies=500"))
        assert found["missing"] == ["east", "south"]
        again = study.at("north", "contribute", *options(tables["north"]))  # asked once
        assert again["missing"] == ["east", "south"]


class TestWhatThePopulationTargetGivesAway:
    """Who publishes or answers such a plan has read what it gives away, and has said yes."""

    PLAN = ("plan", "--coordinates", 4, "--embedding", "text", "--target", "population")

    def test_no_plan_without_a_yes(self, study):
        sentence = study.refused("east", *self.PLAN)
        assert sentence.startswith("Expected --yes for plan ")
        assert "work out exact numbers of single sites" in sentence
        assert not (study.share / "plans").exists()

    def test_the_yes_of_one_site_is_not_that_of_another(self, study, tables):
        plan = study.at("east", *self.PLAN, "--yes")
        for site in SITES:
            words = [*options(tables[site]), "--confirm", plan["fingerprint"]]
            assert study.refused(site, "contribute", *words).startswith("Expected --yes for plan ")
            assert not (study.share / "sums").exists()
            assert not (study.root / site / "ledger" / plan["plan"]).exists()
        # A fixed sentence to the others would say that the cells are at fault.
        assert not (study.share / "codes").exists()
        study.at(
            "east",
            "contribute",
            *options(tables["east"]),
            "--confirm",
            plan["fingerprint"],
            "--yes",
        )
        study.at("east", "contribute", *options(tables["east"]))  # asked once

    def test_all_who_must_agree_are_told(self, study, tables):
        words = [*self.PLAN, *study.where("east"), "--yes"]
        assert POPULATION in run("federated", *words).stderr
        found = run("federated", "status", "--folder", study.share)
        assert POPULATION in found.stdout
        stored = answer("federated", "status", "--folder", study.share)["plans"][0]
        assert stored["discloses"] == POPULATION
        fingerprint = found.stdout.split("; fingerprint ")[-1].split()[0]
        words = [
            *options(tables["north"]),
            "--confirm",
            fingerprint,
            *study.where("north"),
            "--yes",
        ]
        assert POPULATION in run("federated", "contribute", *words).stderr

    def test_the_moment_target_asks_nothing(self, study, tables):
        plan = study.at(
            "east", "plan", "--coordinates", 4, "--embedding", "text", "--target", "moment"
        )
        assert "discloses" not in plan
        study.at("east", "contribute", *options(tables["east"]), "--confirm", plan["fingerprint"])
        assert POPULATION not in run("federated", "status", "--folder", study.share).stdout

    @pytest.mark.parametrize(
        ("typed", "code"), [(b"n\n", 2), (b"\n", 2), (b"\x04", 1), (b"y\n", 0)]
    )
    def test_asked_at_a_terminal(self, study, typed, code):
        terminal, end = pty.openpty()
        words = ["federated", *self.PLAN, *study.where("east")]
        process = subprocess.Popen(
            [sys.executable, "-m", "scbatchprox", *map(str, words)],
            stdin=end, stdout=end, stderr=end, env=os.environ | {"COLUMNS": "1000"},
        )  # fmt: skip
        os.close(end)
        os.write(terminal, typed)
        shown = printed_on(terminal).decode()
        assert process.wait() == code, shown
        assert POPULATION in shown
        assert "Publish this plan? [y/N]" in shown
        assert (study.share / "plans").exists() is (code == 0)
