"""Parameters and the consensus in files: objects are stored by name and options, and checked on load."""

from dataclasses import dataclass

import numpy as np
import pytest

from model_files import edited
from registered_cells import cells
from scbatchprox import BatchProx, InputError, PopulationSettings, PopulationTarget
from scbatchprox.io.model_file import params_as_json, params_from_json
from scbatchprox.targets.method import TARGETS


@dataclass(frozen=True)
class Toy:
    """A target whose options have names that the population target has, or had."""

    ridge: float = 1.0
    settings: str = "plain"


@pytest.mark.parametrize(
    "target",
    [
        "moment",
        Toy(ridge=7.0, settings="other"),
        PopulationTarget(seed=3, settings=PopulationSettings(cells=25)),
    ],
    ids=["name", "another target", "population"],
)
def test_targets_keep_their_own_options(target, monkeypatch):
    monkeypatch.setitem(TARGETS, "toy", Toy)
    params = {"target": target, "solver": "exact", "rounds": 2}
    assert params_from_json(params_as_json(params)) == params


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a model with a consensus."""
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    Z, batch, _ = cells(0, n=30)
    BatchProx().fit(Z, batch=batch).save(path)
    return path.read_bytes()


@pytest.fixture
def path(saved, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(saved)
    return tmp_path / "model.safetensors"


ARRAYS = ("origin", "mass", "total", "cells", "into", "back")
SHAPES = {
    "cut": lambda a: a[:-1],
    "one more axis": lambda a: a[..., None],
    "empty": lambda a: a[:0],
    "a number": lambda a: np.array(1.0),
}
NUMBERS = {"nan": np.nan, "infinite": np.inf}


def refused(path):
    with pytest.raises(InputError, match=r"^Expected .*model\.safetensors") as error:
        BatchProx.load(path)
    assert "\n" not in str(error.value)


def change_array(path, name, change):
    def changed(_, tensors):
        tensors[f"consensus.{name}"] = np.ascontiguousarray(change(tensors[f"consensus.{name}"]))

    edited(path, changed)


class TestConsensus:
    def test_is_in_the_file(self, path):
        found = BatchProx.load(path).fit_.consensus
        K, d = found.total.shape
        assert found.origin.shape == (d,)
        assert found.mass.shape == found.cells.shape == (K,)
        assert found.turning.into.shape == found.turning.back.T.shape
        assert found.cells.sum() == 360.0  # every cell is nearest to one of the centres
        assert found.settings == PopulationSettings()

    @pytest.mark.parametrize("name", ARRAYS)
    @pytest.mark.parametrize("wrong", SHAPES)
    def test_of_other_shapes(self, path, name, wrong):
        change_array(path, name, SHAPES[wrong])
        refused(path)

    @pytest.mark.parametrize("name", ARRAYS)
    @pytest.mark.parametrize("wrong", NUMBERS)
    def test_that_is_not_finite(self, path, name, wrong):
        def broken(array):
            array = array.copy()
            array.flat[0] = NUMBERS[wrong]
            return array

        change_array(path, name, broken)
        refused(path)

    @pytest.mark.parametrize("name", ["mass", "cells"])
    def test_of_fewer_cells_than_none(self, path, name):
        change_array(path, name, lambda array: -array)
        refused(path)

    def test_without_centres(self, path):
        for name in ("mass", "total", "cells"):
            change_array(path, name, lambda array: array[:0])
        refused(path)

    def test_of_other_coordinates_than_the_model(self, path):
        for name, cut in [
            ("origin", lambda a: a[:-1]), ("total", lambda a: a[:, :-1]),
            ("into", lambda a: a[:-1]), ("back", lambda a: a[:, :-1]),
        ]:  # fmt: skip
            change_array(path, name, cut)
        refused(path)

    @pytest.mark.parametrize("name", ARRAYS)
    def test_that_lacks_a_part(self, path, name):
        edited(path, lambda _, tensors: tensors.pop(f"consensus.{name}"))
        refused(path)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"variance": 0.0}, {"variance": -1.0}, {"variance": float("nan")}, {"variance": "x"},
            {"variance": None}, {"together": "no"}, {"smooth": 2}, {"settings": None},
            {"settings": {"other": 1}}, {"settings": {"copies": 0}},
        ],
        ids=str,
    )  # fmt: skip
    def test_of_wrong_numbers(self, path, wrong):
        edited(path, lambda known, _: known["params"]["consensus"].update(wrong))
        refused(path)
