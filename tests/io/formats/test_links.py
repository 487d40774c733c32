"""Links of HDF5 and paths in names: no command reads or writes another file through a stranger's file."""

import os
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
from anndata.io import write_elem

from anndata_files import make, read
from command_line import run
from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.atlas.scores import write_scores
from scbatchprox.io.formats import open_cells

SECRET = "of-another-patient"
OUT = ("--out", "out.h5ad")
KEYS = ("--batch-key", "batch")
FIT = ("embed", "fit", "cells.h5ad", "--coordinates", 2, "--genes", "all")
COMMANDS = {
    "refine --out": ("refine", "cells.h5ad", *KEYS, *OUT),
    "refine --in-place": ("refine", "cells.h5ad", *KEYS, "--in-place"),
    "apply": ("apply", "cells.h5ad", "--model", "model.safetensors", *OUT),
    "diagnose": ("diagnose", "cells.h5ad", *KEYS),
    "evaluate": (
        "evaluate", "cells.h5ad", *KEYS, "--label-key", "site", "--reps", "X_pca", "--profile", "fast"
    ),
    "report": ("report", "cells.h5ad", *KEYS, "-o", "page.html"),
    "embed fit": (*FIT, "--out", "new.safetensors"),
    "embed fit --layer": (*FIT, "--layer", "raw", "--out", "new.safetensors"),
    "embed apply": ("embed", "apply", "cells.h5ad", "--upstream", "upstream.safetensors", *OUT),
}  # fmt: skip
WRITERS = {"refine --out", "refine --in-place", "apply", "embed apply"}
READERS = set(COMMANDS) - {"embed fit", "embed fit --layer", "embed apply"}
COUNTERS = {"embed fit", "embed apply"}
#: Who uses each place, and so must refuse a link there. Others leave the link alone.
PLACES = {
    "obsm": READERS | WRITERS,
    "obsm/X_pca": READERS,
    "obs": READERS,
    "obs/batch": READERS,
    "obs/batch/categories": READERS,
    "uns": WRITERS | {"report"},
    "uns/X_pca_batchprox": {"report"},
    "uns/X_pca_batchprox/params/use_rep": {"report"},
    "X": COUNTERS,
    "X/indices": COUNTERS,
    "layers": COUNTERS | {"embed fit --layer"},
    "layers/raw": {"embed fit --layer"},
    "var": COUNTERS | {"embed fit --layer"},
    "var/_index": COUNTERS | {"embed fit --layer"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A refined file, another one with the same elements, a model and an upstream."""
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(7)
    for name in ("cells", "other"):
        cells = make(rng, 60)
        if name == "other":
            cells.obs["batch"] = cells.obs["batch"].cat.rename_categories(lambda b: SECRET + b)
            cells.var_names = [SECRET + gene for gene in cells.var_names]
        cells.write_h5ad(folder / f"{name}.h5ad")
        refine_file(folder / f"{name}.h5ad", "batch", model=BatchProx(target="moment"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(*COMMANDS["refine --in-place"], "--model", "model.safetensors")
        run(*FIT, "--out", "upstream.safetensors")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def link(folder, place, kind):
    with h5py.File(folder / "cells.h5ad", "r+") as file:
        del file[place]
        if kind == "external":
            file[place] = h5py.ExternalLink("other.h5ad", place)
        else:
            file["far"] = h5py.ExternalLink("other.h5ad", "/")
            file[place] = h5py.SoftLink(f"/far/{place}")


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def check_refused(folder, *words):
    """A command ends with one sentence that tells nothing of the other file; nothing is changed or left."""
    before = content(folder)
    shown = run(*words, code=2).output
    assert "Expected" in shown
    assert "cells.h5ad" in shown
    assert "Traceback" not in shown
    assert SECRET not in shown
    assert content(folder) == before
    return " ".join(shown.split())


@pytest.mark.parametrize("kind", ["external", "soft"])
@pytest.mark.parametrize("place", PLACES)
def test_no_command_follows_a_link_to_another_file(folder, place, kind):
    link(folder, place, kind)
    for name in sorted(PLACES[place]):
        said = check_refused(folder, *COMMANDS[name])
        assert "stored in another, which is never followed" in said, name


def test_the_other_file_is_not_even_opened(folder):
    """It need not exist, and may be a pipe, which would never answer."""
    link(folder, "obsm", "external")
    (folder / "other.h5ad").unlink()
    os.mkfifo(folder / "other.h5ad")
    for name in ("refine --out", "refine --in-place", "embed apply"):
        assert "'obsm' stored in another" in " ".join(run(*COMMANDS[name], code=2).output.split())


@pytest.mark.parametrize("name", ["refine --out", "refine --in-place"])
def test_a_link_in_the_place_of_a_result_is_replaced(folder, name):
    other = (folder / "other.h5ad").read_bytes()
    for place in ("obsm/X_pca_batchprox", "uns/X_pca_batchprox"):
        link(folder, place, "external")
    run(*COMMANDS[name])
    assert (folder / "other.h5ad").read_bytes() == other
    (folder / "other.h5ad").unlink()
    found = read(folder / ("cells.h5ad" if name == "refine --in-place" else "out.h5ad"))
    assert found.obsm["X_pca_batchprox"].shape == (60, 6)
    assert found.uns["X_pca_batchprox"]["params"]["use_rep"] == "X_pca"


def test_links_within_a_file_are_followed(folder):
    before = read(folder / "cells.h5ad").obsm["X_pca"]
    with h5py.File("cells.h5ad", "r+") as file:
        for place in ("obs", "obsm/X_pca"):
            file.move(place, f"moved/{place}")
        file["obs"] = h5py.SoftLink("moved/./obs")
        file["obsm/there"] = h5py.SoftLink("/moved//obsm")
        file["obsm/X_pca"] = h5py.SoftLink("there/X_pca")
    run(*COMMANDS["refine --out"])
    with open_cells(folder / "out.h5ad") as file:
        np.testing.assert_array_equal(file.embedding("X_pca")[:], before)
        assert file.record("X_pca_batchprox") is not None


CIRCLES = {
    "a soft link to the top": lambda file, place: h5py.SoftLink("/"),
    "the top": lambda file, place: file["/"],
    "a soft link to obs": lambda file, place: h5py.SoftLink("obs"),
    "obs": lambda file, place: file["obs"],
    "each other": lambda file, place: file["uns" if place == "obsm" else "obsm"],
    "a soft link to each other": lambda file, place: h5py.SoftLink("/uns" if place == "obsm" else "/obsm"),
}  # fmt: skip


@pytest.mark.parametrize("case", CIRCLES)
@pytest.mark.parametrize("place", ["obsm", "uns"])
def test_nothing_is_written_to_a_group_with_two_names(folder, place, case):
    """A result that is written to the top of a file, or to another element, would make it unreadable."""
    with h5py.File("cells.h5ad", "r+") as file:
        kept = file["obsm/X_pca"]
        there = CIRCLES[case](file, place)
        del file[place]
        file[place] = there
        if "X_pca" not in file["obsm"]:
            file["obsm/X_pca"] = kept  # or it would be missed first
    for name in ("refine --out", "refine --in-place"):
        said = check_refused(folder, *COMMANDS[name], "--key-added", "obs")
        assert "as a group with one name to write to, found links between groups" in said


@pytest.mark.parametrize("place", ["obsm", "uns", "layers", "obsm/X_pca"])
def test_a_link_to_nothing_is_damage_and_not_absence(folder, place):
    with h5py.File("cells.h5ad", "r+") as file:
        del file[place]
        file[place] = h5py.SoftLink("/nothing")
    name = "refine --out" if place == "obsm/X_pca" else "embed apply"
    assert "damaged" in check_refused(folder, *COMMANDS[name])


@pytest.mark.parametrize("case", ["a soft link to the top", "the top"])
def test_scores_are_not_written_to_an_obs_with_two_names(folder, case):
    with h5py.File("cells.h5ad", "r+") as file:
        del file["obs"]
        file["obs"] = CIRCLES[case](file, "obs")
    before, path = content(folder), folder / "cells.h5ad"
    with pytest.raises(InputError, match=r"'obs' as a group with one name .* \(in cells.h5ad\)"):
        write_scores(path, path.stat(), np.zeros(60), None, mark=True)
    assert content(folder) == before


def virtual(file, name, old):
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource("other.h5ad", name, old.shape)
    file.create_virtual_dataset(name, layout)


def external(file, name, old):
    file.create_dataset(name, old.shape, old.dtype, external=[("other.h5ad", 0, old.nbytes)])


VALUES = {
    "obsm/X_pca": "refine --out",
    "obsm": "refine --out",
    "layers": "embed fit --layer",
    "obs/batch/codes": "diagnose",
    "uns/X_pca_batchprox/scale": "report",
    "X/data": "embed apply",
    "X/indptr": "embed fit",
    "layers/raw/data": "embed fit --layer",
}


@pytest.mark.parametrize("kind", [virtual, external])
@pytest.mark.parametrize("place", VALUES)
def test_values_of_another_file_are_refused(folder, place, kind):
    with h5py.File("cells.h5ad", "r+") as file:
        old, attributes = file[place], dict(file[place].attrs)
        group = isinstance(old, h5py.Group)  # its entries are listed in an error, if it is one
        values = np.zeros(60, "S8") if group else old[()]
        del file[place]
        kind(file, place, values)
        file[place].attrs.update(attributes)
    said = check_refused(folder, *COMMANDS[VALUES[place]])
    assert ("found an array" if group else "stored in another") in said


def far_index(file):
    file["var"].attrs["_index"] = "/far/var/_index"


def far_column(file):
    file["var"].attrs["column-order"] = ["/far/obs/site"]


def far_categories(file):
    codes = file["obs/batch/codes"][:]
    del file["obs/batch"]
    file["obs/batch"] = codes
    file["obs/batch"].attrs["categories"] = "/far/obs/batch/categories"


def linked_categories(file):
    far_categories(file)
    file["obs/__categories/batch"] = h5py.ExternalLink("other.h5ad", "/obs/batch/categories")
    file["obs/batch"].attrs["categories"] = "__categories/batch"


def far_table(file):
    write_elem(file["uns/X_pca_batchprox"], "table", pd.DataFrame({"a": [1.0]}))
    file["uns/X_pca_batchprox/table"].attrs["column-order"] = ["/far/obs/site"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (far_index, "embed apply"),
        (far_column, "embed fit"),
        (far_categories, "refine --out"),
        (linked_categories, "refine --out"),
        (far_table, "report"),
    ],
)
def test_names_in_a_file_do_not_lead_to_another(folder, change, name):
    """anndata finds columns and categories by names in attributes, which may be paths."""
    with h5py.File("cells.h5ad", "r+") as file:
        file["far"] = h5py.ExternalLink("other.h5ad", "/")
        change(file)
    said = check_refused(folder, *COMMANDS[name])
    assert "a path to another place" in said or "stored in another" in said


def test_categories_of_anndata_0_7_by_reference_and_by_path(folder):
    expected = read(folder / "cells.h5ad").obs["batch"].astype(str).to_numpy()
    with h5py.File("cells.h5ad", "r+") as file:
        codes = file["obs/batch/codes"][:]
        file.move("obs/batch/categories", "obs/__categories/batch")
        del file["obs/batch"]
        file["obs/batch"] = codes
    for way in (lambda file: file["obs/__categories/batch"].ref, lambda file: "__categories/batch"):
        with h5py.File("cells.h5ad", "r+") as file:
            file["obs/batch"].attrs["categories"] = way(file)
        with open_cells(folder / "cells.h5ad") as file:
            np.testing.assert_array_equal(file.obs(["batch"])["batch"].astype(str), expected)
