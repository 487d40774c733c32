"""Batches that are registered to a consensus later: frozen rows, saved consensus and settings."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

from registered_cells import cells
from scbatchprox import BatchProx, PopulationSettings, PopulationTarget

NAMES = np.array(list("abcdef"))
TYPES = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 3], [1, 2, 3, 5], [0, 3], [6, 7, 8]]
#: Values that differ from the defaults, for all settings of the registration.
OTHERS = dict(
    cells=20, most=30, sample=30, bandwidth=1.0, centre_cells=30, few_centres=8, most_centres=40, hot=1.5,
    temperature=0.4, better=5.0, agreement=2.0, evidence=0.6, copies=8, prior=3.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def world():
    Z, batch, _ = cells(0, TYPES, n=40)
    return Z, NAMES[batch]


def of(world, names):
    Z, batch = world
    rows = np.isin(batch, list(names))
    return Z[rows], batch[rows]


def grown(world, first, *arrivals, policy="frozen", **options):
    Z, batch = of(world, first)
    model = BatchProx(**{"target": "population"} | options).fit(Z, batch=batch)
    for names in arrivals:
        Z, batch = of(world, names)
        model.partial_fit(Z, batch=batch, policy=policy)
    return model


def rows(model, name):
    """The rows of one batch."""
    own = model.adapter_.batches[model.adapter_.batch] == name
    return model.scale_[own], model.shift_[own]


def assert_rows(a, b, names):
    for name in names:
        for one, two in zip(rows(a, name), rows(b, name), strict=True):
            np.testing.assert_array_equal(one, two)


def assert_consensus(a, b):
    one, two = a.fit_.consensus, b.fit_.consensus
    assert one.settings == two.settings
    for name in ("variance", "together", "smooth", "origin", "mass", "total", "cells"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    for one_part, two_part in zip(one.turning, two.turning, strict=True):
        np.testing.assert_array_equal(one_part, two_part)


def change_defaults(monkeypatch):
    """Change the defaults, as a later version might."""
    arguments = list(PopulationSettings.__init__.__defaults__)
    names = [f.name for f in fields(PopulationSettings)]
    for name, value in OTHERS.items():
        monkeypatch.setattr(PopulationSettings, name, value)
        arguments[names.index(name)] = value
    monkeypatch.setattr(PopulationSettings.__init__, "__defaults__", tuple(arguments))
    assert set(OTHERS) == set(names)
    assert len(names) == 14
    assert PopulationSettings().copies == OTHERS["copies"]


class TestFrozen:
    def test_old_rows_stay_to_the_bit(self, world):
        before, after = grown(world, "abc"), grown(world, "abc", "d", "ef")
        assert_rows(before, after, "abc")
        assert_consensus(before, after)

    def test_the_order_of_arrival_does_not_matter(self, world):
        together = grown(world, "abc", "def")
        assert np.abs(rows(together, "d")[1]).max() > 0.1
        for order in itertools.permutations("def"):
            assert_rows(grown(world, "abc", *order), together, "abcdef")
        assert_rows(grown(world, "abc", "fd", "e"), together, "abcdef")

    @pytest.mark.parametrize("conditioned", [True, False])
    def test_a_row_does_not_depend_on_what_came_before_it(self, world, conditioned):
        target = PopulationTarget(conditioned=conditioned)
        first = grown(world, "abc", "d", target=target)
        later = grown(world, "abc", "e", "f", "d", target=target)
        Z, batch = of(world, "d")
        np.testing.assert_array_equal(
            later.transform(Z, batch=batch), first.transform(Z, batch=batch)
        )

    def test_new_batches_move_to_the_others(self, world):
        Z, batch, kind = cells(0, TYPES, n=40)
        model = grown(world, "abc", "d", "e", "f")
        result = model.transform(Z, batch=NAMES[batch])
        for b, types in ((3, [1, 2, 3]), (4, [0, 3])):
            for t in types:
                old = (batch < 3) & (kind == t)
                new = (batch == b) & (kind == t)
                before, after = (
                    np.linalg.norm(X[new].mean(0) - result[old].mean(0)) for X in (Z, result)
                )
                assert after < 0.7 * before
        assert np.linalg.norm((result - Z)[batch == 5], axis=1).mean() < 0.5  # no shared types

    def test_forgetting_an_added_batch_does_not_change_the_others(self, world):
        model = grown(world, "abc", "d", "e").forget("d")
        assert_rows(model, grown(world, "abc", "e"), "abce")

    def test_a_refit_is_a_fit(self, world):
        refit = grown(world, "abc", "d", "e", policy="refit")
        whole = grown(world, "abcde")
        for name in "abcde":
            for one, two in zip(rows(refit, name), rows(whole, name), strict=True):
                np.testing.assert_allclose(one, two, atol=1e-8)


class TestSaved:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "model.safetensors"

    @pytest.mark.parametrize(
        "target",
        [
            "population",
            PopulationTarget(seed=3, settings=replace(PopulationSettings(), copies=8, hot=1.5)),
        ],
        ids=["name", "object"],
    )
    def test_consensus_comes_back_to_the_bit(self, world, path, target):
        model = grown(world, "abc", "d", target=target)
        model.save(path)
        back = BatchProx.load(path)
        assert_consensus(model, back)
        assert back.target == model.target
        for one in (model, back):
            one.partial_fit(*of(world, "e")[:1], batch=of(world, "e")[1])
        assert_rows(model, back, "abcde")
        for one in (model, back):
            one.forget("b")
        assert_rows(model, back, "acde")
        assert_consensus(model, back)

    @pytest.mark.parametrize("policy", ["frozen", "refit"])
    def test_settings_are_those_of_the_fit(self, world, path, policy, monkeypatch):
        """Even if the defaults of a later version differ."""
        model = grown(world, "abc")
        model.save(path)
        expected = grown(world, "abc", "e", policy=policy)
        change_defaults(monkeypatch)
        other = grown(world, "abc", "e", policy=policy)
        assert len(rows(other, "e")[0]) != len(rows(expected, "e")[0])  # a check of this test
        Z, batch = of(world, "e")
        back = BatchProx.load(path).partial_fit(Z, batch=batch, policy=policy)
        assert_rows(back, expected, "abce")
        assert_consensus(back, expected)
        back.forget("a")
        monkeypatch.undo()
        assert_rows(back, expected.forget("a"), "bce")

    def test_rounds_are_those_of_the_fit(self, world, path, monkeypatch):
        model = grown(world, "abc")
        model.save(path)
        known = model.rounds_
        change_defaults(monkeypatch)
        assert BatchProx.load(path).rounds_ == known

    def test_without_a_consensus_new_batches_need_a_refit(self, world):
        Z, batch = of(world, "e")
        for change in ({"rounds": 5}, {"lambda_target": 0.5}):
            name = next(iter(change))
            model = grown(world, "abc", **{name: 0})
            model.set_params(**change)
            with pytest.raises(ValueError, match="policy='refit'"):
                model.partial_fit(Z, batch=batch)
            model.partial_fit(Z, batch=batch, policy="refit")
            assert_rows(model, grown(world, "abce", **change), "e")
