"""Molecules: heavy atoms equal counted letters; fingerprints do not depend on the spelling."""

import gzip
import os
import re
import sys

import numpy as np
import pandas as pd
import pytest

from research.datasets import load, molecules
from research.datasets.molecules import read_smiles
from scbatchprox.errors import BadKey, BadValue, MissingExtra

pytest.importorskip("rdkit", reason="rdkit is not installed; it is in the bench extra")
pytestmark = pytest.mark.bench
REAL = os.environ.get("SCBATCHPROX_DATA")

SMILES = ["C", "CO", "CCC", "CCCC", "CC(C)=O", "C1CCCC1", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"]
HEAVY = [1, 2, 3, 4, 4, 5, 6, 13]
BATCH = ["<=3"] * 3 + ["4-5"] * 3 + [">=6"] * 2


def bits(*smiles, **options):
    return molecules(smiles, **options).adata.obsm["X_morgan"]


def test_batches_are_sizes_and_classes():
    data = molecules(SMILES)
    obs = data.adata.obs
    assert list(obs["heavy_atoms"]) == HEAVY
    assert list(obs["batch"]) == list(obs["cell_type"]) == BATCH
    assert obs["batch"].dtype == obs["cell_type"].dtype == "category"
    assert list(obs["smiles"]) == SMILES
    assert (data.counts, data.rep) == (False, "X_morgan")
    assert "radius 2 and 2,048 bits" in data.note


def test_hydrogens_do_not_count():
    data = molecules(["[H]C([H])([H])[H]", "[H]OC([H])([H])C([H])([H])[H]"])
    assert list(data.adata.obs["heavy_atoms"]) == [1, 3]
    np.testing.assert_array_equal(data.adata.obsm["X_morgan"], bits("C", "OCC"))


def test_a_fingerprint_is_of_the_molecule_not_of_its_spelling():
    a, b, c = bits("CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1OC(C)=O", "CC(=O)Nc1ccc(O)cc1")
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_bits_and_length():
    Z = bits(*SMILES, n_bits=256)
    assert Z.shape == (8, 256)
    assert Z.dtype == np.float32
    assert set(np.unique(Z)) == {0.0, 1.0}
    # With radius 0: methane has one kind of atom, propane two (ends and middle), acetone three.
    assert list(bits("C", "CCC", "CC(C)=O", radius=0).sum(1)) == [1, 2, 3]


def test_a_larger_radius_adds_to_a_smaller_one():
    smaller, larger = bits(*SMILES, radius=0), bits(*SMILES, radius=2)
    assert (larger >= smaller).all()
    assert (larger > smaller)[-1].any()


def test_what_cannot_be_read_is_left_out_and_counted():
    data = molecules(["C", "no molecule", "CO", "", "C1CC"])
    assert list(data.adata.obs_names) == ["0", "2"]
    assert list(data.adata.obs["batch"].cat.categories) == ["<=3"]
    assert "3 SMILES that cannot be read left out" in data.note


def test_bad_input(monkeypatch):
    with pytest.raises(BadValue, match="found none among 'no molecule'"):
        molecules(["no molecule"])
    with pytest.raises(BadValue, match="radius >= 0"):
        molecules(["C"], radius=-1)
    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(MissingExtra, match=r"scbatchprox\[bench\]"):
        molecules(["C"])


@pytest.mark.parametrize("name", ["qm8.csv", "qm8.csv.gz"])
def test_the_table_of_the_data_folder(tmp_path, name):
    text = "gdb9_index,smiles,E1-CC2\n" + "".join(f"{i},{s},0.5\n" for i, s in enumerate(SMILES))
    packed = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(packed)
    data = load("qm8", data_dir=tmp_path)
    assert data.name == "qm8"
    assert list(data.adata.obs["heavy_atoms"]) == HEAVY


def test_a_table_of_something_else(tmp_path):
    (tmp_path / "qm8.csv").write_text("name,weight\nwater,18\n")
    with pytest.raises(BadKey, match="'smiles' .*available: 'name', 'weight'"):
        load("qm8", data_dir=tmp_path)


def test_nan_is_a_text_like_any_other(tmp_path):
    (tmp_path / "t.csv").write_text("smiles\nNaN\nC\n")  # pandas would read it as a missing value
    assert read_smiles(tmp_path / "t.csv") == ["NaN", "C"]


@pytest.mark.skipif(REAL is None, reason="SCBATCHPROX_DATA names no folder with real data")
def test_the_papers_batches():
    data = load("qm8", data_dir=REAL)
    obs = data.adata.obs
    assert obs["batch"].value_counts().to_dict() == {"<=3": 17, "4-5": 158, ">=6": 21_611}
    # QM8 has only these elements; aromatic atoms are small letters.
    letters = [len(re.findall("[CNOFcnof]", text)) for text in obs["smiles"]]
    np.testing.assert_array_equal(obs["heavy_atoms"], letters)
    by_letters = pd.cut(letters, [0, 3, 5, 99], labels=["<=3", "4-5", ">=6"])
    assert list(obs["batch"]) == list(by_letters)
