"""Arrays and tables as files, of all kinds: the cells are refined, and nothing else changes."""

import os
import shutil

import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, InputError, apply_file, refine_file
from scbatchprox.io.formats import open_cells
from table_files import KINDS, PCS, TABLES, check_only, expected, load, options_for, save

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["in place", "out", "out is in"])
def test_equal_to_the_library(tmp_path, frame, kind, to):
    path, args = save(frame, tmp_path, kind), options_for(frame, tmp_path, kind)
    before = path.read_bytes()
    out = {"in place": None, "out": tmp_path / f"out.{kind}", "out is in": path}[to]
    refine_file(path, "sample", out=out, model=BatchProx(target="moment"), **args)
    wanted = expected(frame[PCS].to_numpy(), frame["sample"])
    np.testing.assert_allclose(load(out or path), wanted, rtol=0, atol=1e-12)
    assert (path.read_bytes() == before) == (to == "out")
    check_only(tmp_path, path, out or path, args.get("labels", path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", ["lane", ["sample", "lane"]])
def test_keys_of_numbers_and_several_keys(tmp_path, frame, kind, keys):
    path, args = save(frame, tmp_path, kind), options_for(frame, tmp_path, kind)
    args.pop("use_rep", None)
    if (
        kind in TABLES
    ):  # without use_rep all other columns of numbers are coordinates; "lane" must not be one
        frame = frame[["cell_id", "sample", "lane", *PCS]]
        path = save(frame, tmp_path, kind)
    model = refine_file(
        path, keys, out=tmp_path / f"out.{kind}", model=BatchProx(target="moment"), **args
    )
    batch = frame["lane"] if keys == "lane" else frame["sample"] + " | " + frame["lane"].astype(str)
    wanted = expected(frame[PCS].to_numpy(), batch)
    np.testing.assert_allclose(load(tmp_path / f"out.{kind}"), wanted, rtol=0, atol=1e-12)
    assert len(model.batches_) == batch.nunique()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("second", [*TABLES, "npz", "npy", "txt"])
def test_labels_from_a_second_file(tmp_path, frame, kind, second):
    path, labels = save(frame, tmp_path, kind), tmp_path / f"labels.{second}"
    if second == "npy":
        np.save(labels, frame["sample"].to_numpy().astype(str))
    elif second == "txt":
        labels.write_text("\n".join(frame["sample"]) + "\n")
    else:
        save(
            frame[["note", "sample"]], tmp_path, second, "labels"
        ) if second != "npz" else np.savez(labels, sample=frame["sample"].to_numpy().astype("S"))
    args = {"use_rep": "PC"} if kind in TABLES else {}
    model = refine_file(path, "sample", labels=labels, model=BatchProx(target="moment"), **args)
    assert model.batches_.tolist() == ["a", "b", 'c, "d"']
    wanted = expected(frame[PCS].to_numpy(), frame["sample"])
    np.testing.assert_allclose(load(path), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(tmp_path, frame, kind):
    path, args = save(frame, tmp_path, kind), options_for(frame, tmp_path, kind)
    model = refine_file(path, "sample", model=BatchProx(target="moment"), **args)
    if kind == "npz":
        args |= {"use_rep": "X_pca_batchprox", "key_added": "back"}
    apply_file(path, model.adapter_, "sample", inverse=True, **args)
    if kind == "npz":
        with np.load(path) as arrays:
            back = arrays["back"]
    else:
        back = load(path)
    np.testing.assert_allclose(back, frame[PCS].to_numpy(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_adam_keeps_the_cells_in_memory(tmp_path, frame, kind):
    path, args = save(frame, tmp_path, kind), options_for(frame, tmp_path, kind)
    refine_file(path, "sample", model=BatchProx(solver="adam", rounds=1, target="moment"), **args)
    wanted = expected(frame[PCS].to_numpy(), frame["sample"], solver="adam", rounds=1)
    np.testing.assert_allclose(load(path), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("out", [None, "new", "old"])
def test_an_error_in_the_middle_changes_nothing(tmp_path, frame, kind, error, out):
    path, args = save(frame, tmp_path, kind), options_for(frame, tmp_path, kind)
    out = out and tmp_path / f"{out}.{kind}"
    if out and out.stem.startswith("old"):
        out.write_bytes(b"older")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}

    def progress(stage, done, total):
        if stage == "refine" and done > total / 2:
            raise error

    with pytest.raises(type(error)):
        refine_file(
            path, "sample", out=out, progress=progress, model=BatchProx(target="moment"), **args
        )
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_table_that_changes_while_it_is_read(tmp_path, frame):
    path = save(frame, tmp_path, "csv")

    def progress(stage, done, total):
        if stage == "moments" and done == total:
            save(frame.head(100), tmp_path, "csv")

    with pytest.raises(ValueError, match="not to change while it is read, found 100 cells"):
        refine_file(
            path, "sample", use_rep="PC", progress=progress, model=BatchProx(target="moment")
        )
    check_only(tmp_path, path)


@pytest.mark.parametrize("out", [None, "same kind", "npy"])
@pytest.mark.parametrize("how", ["replaced", "written to"])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "npz", "npy"])
def test_rows_in_another_order_while_it_is_read(tmp_path, frame, kind, how, out):
    """No coordinates beside the names of other cells."""
    args = options_for(frame, tmp_path, kind)
    path = save(frame, tmp_path, kind)
    (tmp_path / "other").mkdir()
    other = save(frame[::-1], tmp_path / "other", kind)
    written = tmp_path / f"out.{kind if out == 'same kind' else out}" if out else None

    def progress(stage, done, total):
        if stage == "moments" and done == total and how == "replaced":
            shutil.copy(other, tmp_path / "new")
            os.replace(tmp_path / "new", path)
        elif stage == "moments" and done == total:
            path.write_bytes(other.read_bytes())

    before = {p.name for p in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"to stay as it was .* changed since; try again"):
        refine_file(
            path, "sample", out=written, progress=progress, model=BatchProx(target="moment"), **args
        )
    assert path.read_bytes() == other.read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_stays_a_link(tmp_path, frame, kind):
    args = options_for(frame, tmp_path, kind)
    (tmp_path / "far").mkdir()
    far = save(frame, tmp_path / "far", kind)
    link = tmp_path / far.name
    far = far.rename(tmp_path / "far" / "blob")  # as in stores that name files by their content
    link.symlink_to(far)
    refine_file(link, "sample", model=BatchProx(target="moment"), **args)
    assert link.is_symlink()
    wanted = expected(frame[PCS].to_numpy(), frame["sample"])
    np.testing.assert_allclose(load(link), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_keys_before_and_after_the_embedding(tmp_path, kind):
    frame = pd.DataFrame({"u": [0.5, 2.5, 1.0], "b": [1, 1, 2]})
    path = save(frame, tmp_path, kind)
    with open_cells(path) as file:
        rows = file.embedding(None)
        file.obs(["b"])
        assert rows.shape == (3, 1)
    with open_cells(path) as file:
        file.obs(["b"])
        assert file.embedding(None).shape == (3, 1)
    with open_cells(path) as file:
        assert file.embedding(None).shape == (3, 2)
        with pytest.raises(ValueError, match="found 'b', which was already read as a coordinate"):
            file.obs(["b"])
