"""Cells and embeddings of an experiment, and batches that arrive."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiment_rows import SMALL, trial_of
from research.baselines import Embedding
from research.datasets import Dataset
from research.experiments.arrival import (
    ArrivalSettings,
    FrozenReference,
    add_and_refit,
    add_frozen,
    orders_of,
)
from research.experiments.evolving_page import wall_clock
from research.experiments.imbalance import Case, perturbed
from research.experiments.journal import Key
from research.experiments.settings import Settings
from research.experiments.trial import EmbeddingStore, fingerprint_of, sample
from scbatchprox import BatchProx
from scbatchprox.errors import BadValue
from scbatchprox.upstream import PCAUpstream


class TestCells:
    def test_a_sample_keeps_shares_and_rare_groups(self, cells):
        few = sample(cells, 60, seed=0)
        found = pd.crosstab(few.adata.obs["batch"], few.adata.obs["cell_type"]).to_numpy()
        expected = np.where(SMALL.counts > 0, np.maximum(5, np.round(SMALL.counts * 60 / 240)), 0)
        np.testing.assert_array_equal(found, expected)
        assert fingerprint_of(few) == fingerprint_of(sample(cells, 60, seed=0))
        assert fingerprint_of(few) != fingerprint_of(sample(cells, 60, seed=1))
        assert sample(cells, 240, seed=0) is cells

    def test_perturbations_remove_cells_of_one_type_and_batch(self, cells, rng):
        obs, case = cells.adata.obs, Case("T", "a")
        before = pd.crosstab(obs["batch"], obs["cell_type"])
        for regime, left in (("balanced", 60), ("downsample", 6), ("ablation", 0)):
            kept = obs[perturbed(obs, case, regime, 0.1, rng)]
            after = pd.crosstab(kept["batch"], kept["cell_type"])
            expected = before.copy()
            expected.loc["a", "T"] = left
            pd.testing.assert_frame_equal(after, expected)

    def test_a_subset_is_embedded_without_the_other_cells(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, Settings(n_components=4))
        chosen = (cells.adata.obs["batch"] != "b").to_numpy()
        counts = cells.adata[chosen].copy()
        expected = PCAUpstream.fit(counts, n_components=4).embed(counts).Z
        np.testing.assert_array_equal(trial.embed_some(chosen, "pca").Z, expected)

    def test_embeddings_are_made_once(self, tmp_path):
        made, said = [], []

        def make():
            made.append(1)
            return Embedding(np.eye(3), 2.0, 1.0)

        for _ in range(2):  # the second time as after a restart
            store = EmbeddingStore(tmp_path, said.append)
            for _ in range(2):
                found = store.get("scvi", ("data", {"epochs": 3}), make, "scVI of it")
        assert (len(made), said) == (1, ["scVI of it"])
        np.testing.assert_array_equal(found.Z, np.eye(3))
        assert (found.seconds, found.before) == (2.0, 1.0)
        store.get("scvi", ("data", {"epochs": 4}), make)
        assert len(made) == 2

    def test_a_failed_embedding_is_tried_once_in_a_run(self, tmp_path):
        tried = []

        def make():
            tried.append(1)
            raise BadValue("no counts")

        store = EmbeddingStore(tmp_path)
        for _ in range(2):
            with pytest.raises(BadValue, match="no counts"):
                store.get("pca", ("x",), make)
        assert len(tried) == 1

    def test_the_unrefined_embedding_is_always_there(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, Settings(methods=("harmony",)))
        assert trial.methods_on("pca") == ("unrefined", "harmony")
        assert trial.methods_on("labels") == ("unrefined",)

    def test_data_without_counts_use_their_embedding(self, cells, tmp_path, rng):
        adata = cells.adata.copy()
        adata.obsm["X_mine"] = rng.normal(size=(adata.n_obs, 3))
        bare = Dataset("bare", adata, False, "X_mine")
        trial = trial_of(bare, tmp_path, Settings())
        assert trial.upstreams == ("X_mine",)
        np.testing.assert_array_equal(trial.embed("X_mine").Z, adata.obsm["X_mine"])
        both = trial_of(replace(bare, counts=True), tmp_path, Settings())
        assert both.upstreams == ("pca", "scvi")
        asked = trial_of(replace(bare, counts=True), tmp_path, Settings(use_rep="X_mine"))
        assert asked.upstreams == ("X_mine",)


class TestArrival:
    def test_both_orders(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, ArrivalSettings(order=("c", "a", "b")))
        assert orders_of(trial) == {"forward": ("c", "a", "b"), "reverse": ("b", "a", "c")}
        for settings in (
            ArrivalSettings(order=("a", "b")),
            ArrivalSettings(order=("a", "b", "b")),
            ArrivalSettings(order=("a", "b", "x")),
            ArrivalSettings(first=3),
            ArrivalSettings(first=0),
        ):
            with pytest.raises(BadValue, match="Expected (an order of all batches|first between)"):
                orders_of(trial_of(cells, tmp_path, settings))

    def test_a_fixed_reference_does_not_use_later_batches(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, ArrivalSettings(n_components=4))
        reference = FrozenReference(trial, "pca", ("a", "b"))
        batch = cells.adata.obs["batch"]
        first, later = (cells.adata[batch.isin(names)].copy() for names in (["a", "b"], ["c"]))
        model = PCAUpstream.fit(first, n_components=4)
        np.testing.assert_array_equal(reference.part(("a", "b")).Z, model.embed(first).Z)
        np.testing.assert_array_equal(reference.part(("c",)).Z, model.embed(later).Z)
        # After a restart all parts are on disk, and no reference is fitted.
        again = FrozenReference(trial, "pca", ("a", "b"))
        again.part(("c",))
        assert "model" not in vars(again)

    @pytest.mark.parametrize("params", [{}, {"target": "population", "rounds": "auto"}])
    def test_frozen_arrivals_move_no_old_cell(self, params, rng):
        parts = [rng.normal(at, 1 + at, (30 + at, 4)) for at in range(4)]
        batches = [np.repeat(["a", "b"], 15), *(np.full(30 + at, f"new{at}") for at in range(1, 4))]
        before, _ = add_frozen(parts[:2], batches[:2], **params)
        after, seconds = add_frozen(parts, batches, **params)
        np.testing.assert_array_equal(after[: len(before)], before)
        assert seconds > 0
        swapped, _ = add_frozen(
            [parts[at] for at in (0, 2, 1, 3)], [batches[at] for at in (0, 2, 1, 3)], **params
        )
        np.testing.assert_array_equal(swapped[30:62], after[61:93])

    @pytest.mark.parametrize("params", [{}, {"target": "population", "rounds": "auto"}])
    def test_refitted_arrivals_are_a_fit_to_all(self, params, rng):
        parts = [rng.normal(at, 1 + at, (30, 4)) for at in range(3)]
        batches = [np.full(30, name) for name in "abc"]
        found, _ = add_and_refit(parts, batches, **params)
        expected = BatchProx(**{"target": "moment"} | params).fit_transform(
            np.concatenate(parts), batch=np.repeat(list("abc"), 30)
        )
        np.testing.assert_allclose(found, expected, atol=1e-10)

    def test_the_wall_clock_adds_up_each_order_and_method(self):
        rows = []
        for order, upstream, method, seconds in (
            ("forward", "pca", "unrefined", [1.0, 2.0, 4.0]),
            ("reverse", "pca", "unrefined", [3.0, 3.0, 3.0]),
            ("forward", "pca", "batchprox_adam", [0.5, 0.25, 0.125]),
        ):
            for at, value in enumerate(seconds):
                key = Key("cumulative", "d", upstream, method, order, str(at + 1))._asdict()
                rows += [key | {"metric": "seconds", "value": value}]
                rows += [key | {"metric": "seconds_total", "value": value + 10}]
        table = wall_clock(pd.DataFrame(rows))
        assert table["Run"].tolist() == [1, 2, 4, 3, 3, 3, 0.5, 0.25, 0.125]
        assert table["Cum."].tolist() == [1, 3, 7, 3, 6, 9, 0.5, 0.75, 0.875]
        np.testing.assert_array_equal(table["Total"], table["Run"] + 10)
        theirs = table["paper's Run / Total / Cum."]
        assert theirs.iloc[1] == "0.24 / 236.19 / 0.41"
        assert theirs.iloc[6] == "3.35 / 14.93 / 3.35"
        assert "paper" not in " ".join(wall_clock(pd.DataFrame(rows), frozen=True))
