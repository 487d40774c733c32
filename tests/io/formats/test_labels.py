"""Labels are held as codes and categories, whatever kind of file they come from."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import zarr

from scbatchprox.cells.keys import batch_labels
from scbatchprox.core.labels import Labels
from scbatchprox.errors import BadValue
from scbatchprox.io import formats
from scbatchprox.io.formats import Encoder, arrays, elements, open_cells, tables

N = 300
TEXTS = np.array(["b é", "a", "c, d", "a "])[np.arange(N) % 7 % 4]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Several blocks, and blocks that end in the middle of a stored chunk."""
    for module in (arrays, elements, tables, formats):
        monkeypatch.setattr(module, "BLOCK_LABELS", 70)
    monkeypatch.setattr(tables, "BLOCK_ROWS", 70)


def second(folder, kind, labels):
    """Cells in a .npy file with labels in a second file."""
    path, other = folder / "cells.npy", folder / f"labels.{kind}"
    np.save(path, np.zeros((len(labels), 2)))
    if kind in ("npy", "npz"):
        save = np.save if kind == "npy" else lambda p, x: np.savez_compressed(p, batch=x)
        save(other, labels)
    elif kind == "txt":
        other.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    else:
        frame = pd.DataFrame({"n": np.arange(len(labels)), "batch": labels})
        frame.to_parquet(other) if kind == "parquet" else frame.to_csv(other, index=False)
    return open_cells(path, other)


def stored(folder, kind, column):
    path = folder / f"cells.{kind}"
    adata = ad.AnnData(obs=pd.DataFrame({"batch": column}, index=[f"c{i}" for i in range(N)]))
    if kind == "zarr":
        ad.io.write_elem(zarr.open_group(path, mode="w", zarr_format=2), "/", adata)
    else:
        import h5py

        with h5py.File(path, "w") as file:
            ad.io.write_elem(file, "/", adata)
    return open_cells(path)


def check(file, wanted):
    """A categorical with the labels as they are; one byte per cell."""
    with file:
        found = file.obs(["batch"])["batch"]
    assert isinstance(found.dtype, pd.CategoricalDtype)
    assert found.cat.codes.dtype == np.int8
    assert found.tolist() == list(wanted)
    labels = Labels.of(found, N)
    assert labels.batches.tolist() == sorted(set(wanted))
    assert labels.batches[labels.codes].tolist() == list(wanted)


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "tsv.gz", "parquet"])
def test_text_in_a_second_file(tmp_path, kind):
    wanted = TEXTS.tolist()
    if kind == "tsv.gz":
        pd.DataFrame({"batch": TEXTS}).to_csv(tmp_path / "labels.tsv.gz", sep="\t", index=False)
        np.save(tmp_path / "cells.npy", np.zeros((N, 2)))
        return check(open_cells(tmp_path / "cells.npy", tmp_path / "labels.tsv.gz"), wanted)
    return check(second(tmp_path, kind, TEXTS), wanted)


def test_lines_of_text_lose_their_spaces(tmp_path):
    check(second(tmp_path, "txt", TEXTS), [label.strip() for label in TEXTS.tolist()])


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_bytes(tmp_path, kind):
    raw = np.char.encode(TEXTS, "utf-8")
    raw[3] = b"\xff"
    wanted = TEXTS.tolist()
    wanted[3] = r"\xff"
    check(second(tmp_path, kind, raw), wanted)


def test_half_a_surrogate_pair(tmp_path):
    labels = TEXTS.copy()
    labels[5] = "\ud800"
    check(second(tmp_path, "npy", labels), labels.tolist())


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_text_in_obs_and_an_empty_text_is_a_label(tmp_path, kind):
    labels = TEXTS.astype(object)
    labels[100] = ""
    check(stored(tmp_path, kind, labels), labels.tolist())


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_nullable_text_in_obs(tmp_path, kind):
    labels = pd.array(TEXTS, dtype="string")
    labels[[71, 299]] = pd.NA
    with (
        ad.settings.override(allow_write_nullable_strings=True),
        stored(tmp_path, kind, labels) as file,
    ):
        found = file.obs(["batch"])["batch"]
    assert np.flatnonzero(found.isna()).tolist() == [71, 299]
    assert found.cat.codes.dtype == np.int8
    with pytest.raises(BadValue, match="found 2 missing of 300, the first at row 71"):
        Labels.of(found, N)


@pytest.mark.parametrize("kind", ["npy", "npz", "txt", "csv"])
def test_an_empty_text_is_missing(tmp_path, kind):
    labels = TEXTS.copy()
    labels[[80, 200]] = ""
    with second(tmp_path, kind, labels) as file:
        found = file.obs(["batch"])["batch"]
    assert found.cat.codes.dtype == np.int8
    with pytest.raises(BadValue, match="found 2 missing of 300, the first at row 80"):
        Labels.of(found, N)


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
@pytest.mark.parametrize("values", [np.arange(N) % 3, np.arange(N) % 2 == 0, np.arange(N) % 4 / 2])
def test_numbers_stay_numbers(tmp_path, kind, values):
    with second(tmp_path, kind, values) as file:
        found = file.obs(["batch"])["batch"]
    assert found.dtype == values.dtype
    assert found.tolist() == values.tolist()


def test_codes_grow_with_the_number_of_labels():
    labels, encoder = [f"label{i}" for i in range(40_000)], Encoder()
    for lo in range(0, 40_000, 100):
        encoder.add(labels[lo : lo + 100])
        encoder.add(["", labels[0]])
    found = encoder.series()
    assert found.cat.codes.dtype == np.int32
    assert found[found != "label0"].dropna().tolist() == labels[1:]
    assert int(found.isna().sum()) == 400


def test_a_table_of_labels_parses_no_numbers(tmp_path, monkeypatch):
    monkeypatch.delattr(tables, "ParsedNumbers", raising=True)
    check(second(tmp_path, "csv", TEXTS), TEXTS.tolist())


@pytest.mark.parametrize("kind", ["category", "object"])
def test_combined_keys_are_those_of_a_grouping(rng, kind):
    frame = pd.DataFrame(
        {
            "a": pd.Series(rng.choice(["z", "y", "x w"], N)).astype(kind),
            "b": rng.choice([2.5, 10.0, 1.0], N),
            "c": rng.random(N) < 0.5,
            "d": pd.Categorical(rng.choice(["p", "q"], N), ["q", "unused", "p"]),
        },
        index=np.arange(N)[::-1] // 2,  # neither sorted nor unique
    )
    keys = ["a", "b", "c", "d"]
    group = frame.groupby(keys, observed=True, sort=True)
    found = batch_labels(frame, keys)
    assert found.index.equals(frame.index)
    assert found.cat.codes.tolist() == group.ngroup().tolist()
    names = [" | ".join(map(str, name)) for name in group.size().index]
    assert found.cat.categories.tolist() == names
