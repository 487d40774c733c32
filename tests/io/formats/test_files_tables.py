"""Arrays and tables as files: what goes in comes out refined, and nothing else changes."""

import csv
import gzip
import io
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from data import make_cells
from scbatchprox import BatchProx, apply_file, refine_file
from scbatchprox.cells import file as stream
from scbatchprox.errors import InputError
from scbatchprox.io.formats import open_cells

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXT = ["csv", "tsv", "csv.gz", "tsv.gz"]
TABLES = [*TEXT, "parquet"]
KINDS = [*TABLES, "npy", "npz"]
D = 3
PCS = [f"PC{j + 1}" for j in range(D)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks and several blocks, so that their seams are tested too."""
    from scbatchprox.io.formats import text

    monkeypatch.setattr(stream, "CHUNK_BYTES", 64 * 8 * D)
    monkeypatch.setattr(text, "BLOCK_ROWS", 50)


@pytest.fixture
def frame(rng):
    """A table of cells: names, labels of text and of numbers, coordinates, notes."""
    cells = make_cells(rng, [90, 70, 60], D)
    n = len(cells.Z)
    return pd.DataFrame(
        {"cell_id": np.arange(n) + 1000, "sample": np.array(["a", "b", 'c, "d"'])[cells.codes]}
        | {"PC1": cells.Z[:, 0], "lane": np.where(rng.random(n) < 0.5, 1, 2)}
        | {"PC2": cells.Z[:, 1], "PC3": cells.Z[:, 2]}
        | {"ok": rng.random(n) < 0.5, "note": ["", "NA", "1_0", "é"] * (n // 4)}
    )


def expected(Z, batch, **params):
    return BatchProx(**params).fit_transform(Z, batch=batch)


def save(frame, folder, kind, name="cells"):
    """Write the table (or, where there is no table, its arrays) as a kind of file."""
    path = folder / f"{name}.{kind}"
    if kind == "npy":
        np.save(path, frame[PCS].to_numpy())
    elif kind == "npz":
        labels = {key: frame[key].to_numpy() for key in frame if key not in PCS}
        labels = {k: v.astype(str) if v.dtype == object else v for k, v in labels.items()}
        np.savez_compressed(path, X_pca=frame[PCS].to_numpy(), **labels)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if "tsv" in kind else ",", index=False)
    return path


def load(path):
    """The coordinates, or the result, of a file."""
    name = path.name
    if name.endswith(".npy"):
        return np.load(path)
    if name.endswith(".npz"):
        with np.load(path) as arrays:
            return arrays["X_pca_batchprox"]
    if name.endswith(".parquet"):
        return pd.read_parquet(path)[PCS].to_numpy()
    sep = "\t" if "tsv" in name else ","
    return pd.read_csv(path, sep=sep)[PCS].to_numpy()


def plan(frame, folder, kind):
    """What a call needs for a kind of file: its prefix, and labels where it has none."""
    args = {"use_rep": "PC"} if kind in TABLES else {}
    if kind == "npy":
        args["labels"] = save(frame, folder, "csv", "labels")
    return args


def fields(path):
    packed = path.name.endswith(".gz")
    text = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    sep = "\t" if "tsv" in path.name else ","
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=sep))


def only(folder, *paths):
    """Nothing half-written is left."""
    assert sorted(p.name for p in folder.iterdir()) == sorted({p.name for p in paths})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["in place", "out", "out is in"])
def test_equal_to_the_library(tmp_path, frame, kind, to):
    path, args = save(frame, tmp_path, kind), plan(frame, tmp_path, kind)
    before = path.read_bytes()
    out = {"in place": None, "out": tmp_path / f"out.{kind}", "out is in": path}[to]
    refine_file(path, "sample", out=out, **args)
    wanted = expected(frame[PCS].to_numpy(), frame["sample"])
    np.testing.assert_allclose(load(out or path), wanted, rtol=0, atol=1e-12)
    assert (path.read_bytes() == before) == (to == "out")
    only(tmp_path, path, out or path, args.get("labels", path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys", ["lane", ["sample", "lane"]])
def test_keys_of_numbers_and_several_keys(tmp_path, frame, kind, keys):
    path, args = save(frame, tmp_path, kind), plan(frame, tmp_path, kind)
    args.pop("use_rep", None)
    if kind in TABLES:  # then every other column of numbers is a coordinate; "lane" must not be one
        frame = frame[["cell_id", "sample", "lane", *PCS]]
        path = save(frame, tmp_path, kind)
    model = refine_file(path, keys, out=tmp_path / f"out.{kind}", **args)
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
    model = refine_file(path, "sample", labels=labels, **args)
    assert model.batches_.tolist() == ["a", "b", 'c, "d"']
    wanted = expected(frame[PCS].to_numpy(), frame["sample"])
    np.testing.assert_allclose(load(path), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(tmp_path, frame, kind):
    path, args = save(frame, tmp_path, kind), plan(frame, tmp_path, kind)
    model = refine_file(path, "sample", **args)
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
def test_adam_holds_the_cells(tmp_path, frame, kind):
    path, args = save(frame, tmp_path, kind), plan(frame, tmp_path, kind)
    refine_file(path, "sample", model=BatchProx(solver="adam", rounds=1), **args)
    wanted = expected(frame[PCS].to_numpy(), frame["sample"], solver="adam", rounds=1)
    np.testing.assert_allclose(load(path), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", TEXT)
def test_other_fields_are_the_same_text(tmp_path, frame, kind):
    frame["weight"] = [
        f"{i / 7:.3f}0" for i in range(len(frame))
    ]  # numbers that are no coordinates
    path, out = save(frame, tmp_path, kind), tmp_path / f"out.{kind}"
    refine_file(path, "sample", use_rep="PC", out=out)
    refined = expected(frame[PCS].to_numpy(), frame["sample"])
    old, new = fields(path), fields(out)
    assert new[0] == old[0]
    at = [old[0].index(name) for name in PCS]
    for i, (a, b) in enumerate(zip(old[1:], new[1:], strict=True)):
        np.testing.assert_allclose([float(b[j]) for j in at], refined[i], rtol=0, atol=1e-12)
        for j in at:
            assert b[j] == repr(float(b[j]))
            a[j] = b[j]
        assert a == b
    assert (out.read_bytes()[:2] == b"\x1f\x8b") == kind.endswith("gz")
    again = tmp_path / f"again.{kind}"
    refine_file(path, "sample", use_rep="PC", out=again)
    assert again.read_bytes() == out.read_bytes()


def write(tmp_path, text, kind="csv", encoding="utf-8"):
    path = tmp_path / f"cells.{kind}"
    path.write_bytes(text.encode(encoding))
    return path


ROWS = [
    ("c1", 0.5, "x", 1.5),
    ("c2", 2.0, "x", -1.0),
    ("c3", 1.0, "y", 0.25),
    ("c4", 4.0, "y", 3.0),
]


BAD = {
    "empty": ("", "Expected a line with names of columns, found none"),
    "only names": ("b,u\n", "Expected at least one cell, found only names"),
    "twice": ("b,u,u\nx,1,2\n", "columns of different names .* found 'u' more than once"),
    "long row": ("b,u\nx,1\nx,2\ny,3,4\n", "Expected 2 fields .* found 3 in line 4"),
    "short row": ("b,u\nx,1\nx\n", "Expected 2 fields .* found 1 in line 3"),
    "trailing comma": ("b,u\nx,1,\n", "Expected 2 fields .* found 3 in line 2"),
    "quote": ('b,u\nx,1\n"x,2\n', "found a mistake after line 2"),
    "no key": ("c,u\nx,1\n", "Expected batch_key .* found no 'b'; available: 'c', 'u'"),
    "no numbers": ("b,u\nx,1\nx,one\n", "Expected columns of numbers .* available: 'b', 'u'"),
    "only the key": ("b\n1\n2\n", "Expected columns of numbers .* available: 'b'"),
    "no label": ("b,u\nx,1\n,2\n", "found 1 missing of 2, the first at row 1"),
    "no number": ("b,u\nx,1\nx,\n", "Expected finite values, found 1 NaN"),
    "infinite": ("b,u\nx,1\nx,inf\n", "Expected finite values, found 0 NaN and 1 infinite"),
}


@pytest.mark.filterwarnings("ignore:Expected batches of cells")
class TestText:
    def test_bom_line_ends_quotes_and_blank_lines_stay(self, tmp_path):
        lines = [f'"{c}, {c}",{u},{b},{v}' for c, u, b, v in ROWS]
        text = "\ufeffcell,u,b,v\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        path = write(tmp_path, text)
        refine_file(path, "b")
        raw = path.read_bytes()
        assert raw.startswith(b"\xef\xbb\xbfcell,u,b,v\r\n")
        assert raw.count(b"\n") == raw.count(b"\r\n") == 6
        assert raw.endswith(b"\r\n\r\n")
        assert b'\r\n"c2, c2",' in raw
        wanted = expected(np.array([[u, v] for _, u, _, v in ROWS]), [b for _, _, b, _ in ROWS])
        found = pd.read_csv(path)[["u", "v"]].to_numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("name", ["", "cell_id", "Barcode", "anything"])
    def test_a_first_column_that_names_cells_is_kept(self, tmp_path, name):
        lines = "".join(f"{i},{u},{b},{v}\n" for i, (_, u, b, v) in enumerate(ROWS))
        path = write(tmp_path, f"{name},u,b,v\n{lines}")
        refine_file(path, "b")
        assert [row[0] for row in fields(path)] == [name, "0", "1", "2", "3"]

    def test_a_header_as_r_writes_it(self, tmp_path):
        lines = "".join(f"{i + 7}\t{u}\t{b}\t{v}\n" for i, (_, u, b, v) in enumerate(ROWS))
        path = write(tmp_path, f"u\tb\tv\n{lines}", "tsv")
        refine_file(path, "b")
        new = fields(path)
        assert new[0] == ["u", "b", "v"]
        assert [(row[0], row[2]) for row in new[1:]] == [
            (str(i + 7), r[2]) for i, r in enumerate(ROWS)
        ]
        wanted = expected(np.array([[u, v] for _, u, _, v in ROWS]), [b for _, _, b, _ in ROWS])
        np.testing.assert_allclose(np.array(new[1:])[:, [1, 3]].astype(float), wanted, atol=1e-12)

    def test_ids_with_underscores_and_empty_columns_are_no_numbers(self, tmp_path):
        lines = "".join(f"{b},{u},1_{i},\n" for i, (_, u, b, _) in enumerate(ROWS))
        path = write(tmp_path, f"b,u,tag,empty\n{lines}")
        assert refine_file(path, "b").adapter_.n_dims == 1

    def test_labels_are_text(self, tmp_path):
        lines = "".join(f"{i // 2:02d},{u}\n" for i, (_, u, _, _) in enumerate(ROWS))
        model = refine_file(write(tmp_path, f"b,u\n{lines}"), "b")
        assert model.batches_.tolist() == ["00", "01"]

    @pytest.mark.parametrize("case", BAD)
    @pytest.mark.parametrize("packed", [False, True])
    def test_bad_tables(self, tmp_path, case, packed):
        text, message = BAD[case]
        path = tmp_path / ("cells.csv" + ".gz" * packed)
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        check_refused(path, "b", message)

    def test_several_keys_with_a_missing_label(self, tmp_path):
        check_refused(
            write(tmp_path, "b,c,u\nx,y,1\nx,,2\n"), ["b", "c"], "1 of 2 cells .* missing"
        )

    def test_foreign_bytes(self, tmp_path):
        message = "Expected a table of text in UTF-8 .* damaged or of another kind"
        check_refused(write(tmp_path, "b,u\né,1\n", encoding="latin-1"), "b", message)
        check_refused(write(tmp_path, "b,u\nx,1\n", "csv.gz"), "b", message)
        whole = gzip.compress(b"b,u\n" + b"".join(b"x,%d\n" % i for i in range(9999)))
        (tmp_path / "cells.csv.gz").write_bytes(whole[: len(whole) // 2])
        check_refused(tmp_path / "cells.csv.gz", "b", message)
        (tmp_path / "cells.csv").write_bytes(whole)
        check_refused(tmp_path / "cells.csv", "b", message)

    def test_prefix(self, tmp_path):
        path = write(tmp_path, "b,P1,P2,Q1,Q2\nx,1,2,3,z\nx,2,1,5,4\nx,2,7,5,4\n")
        assert refine_file(path, "b", use_rep="P").adapter_.n_dims == 2
        assert [row[3] for row in fields(path)] == ["Q1", "3", "5", "5"]
        check_refused(path, "b", "found none that begins with 'R'; available: 'b'", use_rep="R")
        check_refused(path, "b", "Expected numbers in all columns .* text in 'Q2'", use_rep="Q")
        check_refused(path, "Q2", "Expected columns of numbers that begin with 'Q2'", use_rep="Q2")
        check_refused(path, "b", "Expected key_added only", use_rep="P", key_added="new")

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_keys_before_and_after_the_embedding(self, tmp_path, kind):
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
            with pytest.raises(ValueError, match="found 'b', which was taken for a coordinate"):
                file.obs(["b"])


def check_refused(path, key, message, **args):
    before = sorted((p, p.read_bytes()) for p in path.parent.iterdir())
    with pytest.raises(InputError, match=message) as error:
        refine_file(path, key, **args)
    assert "\n" not in str(error.value)
    assert sorted((p, p.read_bytes()) for p in path.parent.iterdir()) == before


class TestParquet:
    def test_everything_else_is_kept(self, tmp_path, frame):
        frame["sample"] = frame["sample"].astype("category")
        frame["when"] = pd.Timestamp("2026-01-01", tz="Europe/Oslo")
        table = pa.Table.from_pandas(frame.set_index("cell_id"))
        table = table.replace_schema_metadata(table.schema.metadata | {b"lab": b"ours"})
        table = table.append_column("parts", pa.array([[1, 2], None] * (len(frame) // 2)))
        path, out = tmp_path / "cells.parquet", tmp_path / "out.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=100)
        refine_file(path, "sample", use_rep="PC", out=out)
        new = pq.ParquetFile(out)
        assert new.metadata.row_group(0).column(0).compression == "ZSTD"
        assert new.metadata.num_row_groups == 3
        assert new.schema_arrow.equals(pq.read_schema(path), check_metadata=True)
        rest = [name for name in table.column_names if name not in PCS]
        assert new.read(rest).equals(pq.read_table(path, columns=rest), check_metadata=True)
        new.close()
        assert pd.read_parquet(out).index.name == "cell_id"

    @pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4"])
    def test_codecs(self, tmp_path, frame, codec):
        path = tmp_path / "cells.parquet"
        frame.to_parquet(path, compression=None if codec == "none" else codec)
        before = pq.read_metadata(path).row_group(0).column(0).compression
        refine_file(path, "sample", use_rep="PC")
        assert pq.read_metadata(path).row_group(0).column(0).compression == before

    def test_precision(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        single = frame.astype(dict.fromkeys(PCS, np.float32))
        single.to_parquet(path)
        refine_file(path, "sample", use_rep="PC")
        new = pd.read_parquet(path)
        assert (new[PCS].dtypes == np.float32).all()
        wanted = expected(single[PCS].to_numpy(), frame["sample"])
        np.testing.assert_allclose(new[PCS], wanted, rtol=1e-5, atol=1e-5)

    def test_mixed_types(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        mixed = frame.assign(PC1=frame["PC1"].astype(np.float32), PC2=frame["PC2"].astype(int))
        mixed = mixed.rename(
            columns={"PC2": "PC", "PC3": "PC.x"}
        )  # one name is another's beginning
        mixed.to_parquet(path)
        refine_file(path, "sample", use_rep="PC")
        new = pd.read_parquet(path)
        names = ["PC1", "PC", "PC.x"]
        assert [str(kind) for kind in new[names].dtypes] == ["float32", "float64", "float64"]
        wanted = expected(mixed[names].to_numpy(np.float64), frame["sample"])
        np.testing.assert_allclose(new[names[1:]], wanted[:, 1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose(new["PC1"], wanted[:, 0], rtol=1e-6, atol=1e-6)

    def test_folders_are_no_columns(self, tmp_path, frame):
        (tmp_path / "lane=5").mkdir()
        path = save(frame, tmp_path / "lane=5", "parquet")
        assert refine_file(path, "lane", use_rep="PC").batches_.tolist() == [1, 2]

    def test_the_index_is_no_coordinate(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        frame[[*PCS, "sample"]].set_index(frame.index * 3).to_parquet(path)
        assert refine_file(path, "sample").adapter_.n_dims == D
        assert pd.read_parquet(path).index.equals(pd.Index(frame.index * 3))

    def test_bad_tables(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        path.write_bytes(b"no table at all, but long enough")
        check_refused(path, "sample", "Expected a .parquet file, .* damaged or of another kind")
        path.write_bytes(b"")
        check_refused(path, "sample", "Expected a .parquet file, .* damaged or of another kind")
        whole = save(frame, tmp_path, "parquet").read_bytes()
        path.write_bytes(whole[:-100])
        check_refused(path, "sample", "Expected a .parquet file, .* damaged or of another kind")
        save(frame.head(0), tmp_path, "parquet")
        check_refused(path, "sample", "Expected at least one cell, found no row")
        save(frame[["sample", "note"]], tmp_path, "parquet")
        check_refused(path, "sample", "Expected columns of numbers .*available: 'sample', 'note'")
        check_refused(path, "Sample", "found no 'Sample'; available: 'sample', 'note'")
        frame.loc[3, "sample"] = None
        save(frame, tmp_path, "parquet")
        check_refused(path, "sample", "found 1 missing of 220, the first at row 3", use_rep="PC")
        frame["lane"] = frame["lane"].astype("Int64").mask(frame.index == 5)
        save(frame, tmp_path, "parquet")
        check_refused(path, "ok", "Expected finite values, found 1 NaN", use_rep="lane")
        pq.write_table(pa.table([[1.0], [2.0]], names=["u", "u"]), path)
        check_refused(path, "u", "columns of different names .* found 'u' more than once")

    def test_without_pyarrow(self, tmp_path, frame, monkeypatch):
        path = save(frame, tmp_path, "parquet")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"Expected pyarrow .* 'scbatchprox\[files\]'"):
            refine_file(path, "sample")


class TestNpy:
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "<f2"])
    def test_layouts(self, tmp_path, frame, dtype, order):
        path, labels = tmp_path / "cells.npy", save(frame, tmp_path, "csv", "labels")
        Z = np.array(frame[PCS], dtype, order=order)
        np.save(path, Z)
        refine_file(path, "sample", labels=labels)
        wanted = expected(Z, frame["sample"])
        new = np.load(path)
        assert new.dtype == wanted.dtype
        tolerance = 1e-5 if wanted.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(new, wanted, rtol=0, atol=tolerance)

    def test_it_is_not_loaded(self, tmp_path, frame):
        with open_cells(save(frame, tmp_path, "npy")) as file:
            assert isinstance(file.embedding(None), np.memmap)

    def test_bad_arrays(self, tmp_path, frame):
        path, labels = save(frame, tmp_path, "npy"), save(frame, tmp_path, "csv", "labels")
        check_refused(path, "sample", r"Expected the labels 'sample' in a second file \(--labels\)")
        check_refused(path, "sample", "Expected use_rep only", use_rep="X_pca", labels=labels)
        check_refused(path, "sample", "Expected key_added only", key_added="X", labels=labels)
        whole = path.read_bytes()
        for content in (b"", b"foreign", whole[:60], whole[:-1], b"PK\x03\x04"):
            path.write_bytes(content)
            check_refused(path, "sample", "Expected a .npy file, .* damaged", labels=labels)
        for array, message in [
            (np.array([["a", 1]], object), "Expected an array in cells.npy, found pickled objects"),
            (np.zeros(5), r"Expected a matrix .* found shape \(5,\)"),
            (np.zeros((0, 3)), "Expected at least one cell"),
            (np.zeros((3, 2)), r"Expected one batch label per cell \(3\), found 220"),
            (np.full((2, 2), "a"), "Expected an array of numbers"),
        ]:
            np.save(path, array)
            check_refused(path, "sample", message, labels=labels)

    def test_bad_labels(self, tmp_path, frame):
        path = save(frame, tmp_path, "npy")
        check_refused(
            path, "b", "Expected a file with labels, found none", labels=tmp_path / "x.txt"
        )
        check_refused(path, "b", "Expected a file to read, found none", labels=tmp_path / "x.csv")
        check_refused(path, "b", "Expected a file with a suffix of", labels=tmp_path / "x.doc")
        labels = tmp_path / "labels.txt"
        labels.write_text("a\nb\n")
        check_refused(path, "b", r"per cell \(220\), found 2 labels", labels=labels)
        check_refused(path, ["b", "c"], "Expected one batch key .* found 'b', 'c'", labels=labels)
        labels.write_text("a\n" * 100 + "\n" + "b\n" * 119)
        check_refused(path, "b", "found 1 missing of 220, the first at row 100", labels=labels)
        labels.write_bytes(b"\xff\xfe\x00")
        check_refused(path, "b", "Expected one label a line in UTF-8", labels=labels)
        labels = tmp_path / "labels.npy"
        np.save(labels, np.zeros((220, 2)))
        check_refused(path, "b", r"Expected one label per cell .* shape \(220, 2\)", labels=labels)
        np.save(labels, np.array(["a"] * 219 + [""]))
        check_refused(path, "b", "found 1 missing of 220", labels=labels)
        np.save(labels, np.array(["a", None], object))
        check_refused(path, "b", "found pickled objects", labels=labels)


class TestNpz:
    @pytest.mark.parametrize("packed", [False, True])
    def test_all_other_arrays_are_kept(self, tmp_path, frame, packed):
        path = tmp_path / "cells.npz"
        arrays = {"X_pca": frame[PCS].to_numpy(np.float32), "b": frame["lane"].to_numpy()}
        objects = np.array([{"a": 1}], object)  # never loaded, and yet kept
        (np.savez_compressed if packed else np.savez)(path, **arrays, objects=objects)
        for _ in range(2):  # the second time there is an older result
            refine_file(path, "b")
            with np.load(path, allow_pickle=True) as new:
                assert new.files == ["X_pca", "b", "objects", "X_pca_batchprox"]
                for name, array in arrays.items():
                    np.testing.assert_array_equal(new[name], array)
                assert new["objects"].tolist() == [{"a": 1}]
                assert new["X_pca_batchprox"].dtype == np.float32
                wanted = expected(arrays["X_pca"], arrays["b"])
                np.testing.assert_allclose(new["X_pca_batchprox"], wanted, rtol=0, atol=1e-5)
        kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        with zipfile.ZipFile(path) as new:
            assert {info.compress_type for info in new.infolist()} == {kind}
            assert new.testzip() is None

    def test_names(self, tmp_path, frame):
        path = tmp_path / "cells.npz"
        np.savez(path, pca=frame[PCS], umap=frame[PCS[:2]], b=frame["lane"], s=np.zeros(3))
        refine_file(path, "b", use_rep="umap")
        refine_file(path, "b", use_rep="pca", key_added="new", out=tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz") as new:
            assert new.files == ["pca", "umap", "b", "s", "umap_batchprox", "new"]
        check_refused(path, "b", "found 2; available: 'pca', 'umap'")
        check_refused(path, "b", "Expected use_rep .* found no 'X'; available: 'pca'", use_rep="X")
        check_refused(path, "b", "Expected 'b' to be a matrix .* available: 'pca'", use_rep="b")
        check_refused(path, "c", "Expected batch_key .* no 'c'; available: 'pca'", use_rep="pca")
        check_refused(path, "umap", "Expected one label per cell in 'umap'", use_rep="pca")
        check_refused(path, ["b", "s"], "Expected labels of one length", use_rep="pca")
        check_refused(path, "s", r"per cell \(220\), found 3 labels", use_rep="pca")
        check_refused(path, "b", "Expected another name", use_rep="pca", key_added="pca")

    def test_bad_arrays(self, tmp_path, frame):
        path = save(frame, tmp_path, "npz")
        whole = bytearray(path.read_bytes())
        npy = io.BytesIO()
        np.save(npy, np.zeros((3, 3)))
        broken = whole.copy()
        broken[200:300] = bytes(100)
        for content in (b"", b"foreign", whole[:-30], npy.getvalue(), broken):
            path.write_bytes(content)
            check_refused(path, "sample", "Expected a .npz file, .* damaged or of another kind")
        np.savez(path, b=np.zeros(3))
        check_refused(path, "b", "found 0; available: 'b'")
        np.savez(path, X=np.zeros((2, 2)), b=np.array(["a", "b"], object))
        check_refused(path, "b", "Expected an array in 'b', found pickled objects")
        np.savez(path, X=np.array([["a", "b"]], object), b=np.zeros(1))
        check_refused(path, "b", "Expected an array in 'X', found pickled objects", use_rep="X")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("out", [None, "new", "old"])
def test_an_error_in_the_middle_changes_nothing(tmp_path, frame, kind, error, out):
    path, args = save(frame, tmp_path, kind), plan(frame, tmp_path, kind)
    out = out and tmp_path / f"{out}.{kind}"
    if out and out.stem.startswith("old"):
        out.write_bytes(b"older")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}

    def progress(stage, done, total):
        if stage == "refine" and done > total / 2:
            raise error

    with pytest.raises(type(error)):
        refine_file(path, "sample", out=out, progress=progress, **args)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_table_that_changes_meanwhile(tmp_path, frame):
    path = save(frame, tmp_path, "csv")

    def progress(stage, done, total):
        if stage == "refine" and done == total:
            save(frame.head(100), tmp_path, "csv")

    with pytest.raises(ValueError, match="to stay as it is while it is read, found 100 cells"):
        refine_file(path, "sample", use_rep="PC", progress=progress)
    only(tmp_path, path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_stays_a_link(tmp_path, frame, kind):
    args = plan(frame, tmp_path, kind)
    (tmp_path / "far").mkdir()
    far = save(frame, tmp_path / "far", kind)
    link = tmp_path / far.name
    far = far.rename(tmp_path / "far" / "blob")  # as stores that name files by their content do
    link.symlink_to(far)
    refine_file(link, "sample", **args)
    assert link.is_symlink()
    wanted = expected(frame[PCS].to_numpy(), frame["sample"])
    np.testing.assert_allclose(load(link), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["tsv", "csv.gz"])
def test_text_becomes_another_kind_of_text(frame, tmp_path, kind):
    frame.to_csv(tmp_path / "cells.csv", index=False)
    refine_file(tmp_path / "cells.csv", "sample", use_rep="PC", out=tmp_path / f"o.{kind}")
    refine_file(tmp_path / "cells.csv", "sample", use_rep="PC", out=tmp_path / "o.csv")
    sep = "\t" if kind == "tsv" else ","
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / f"o.{kind}", sep=sep), pd.read_csv(tmp_path / "o.csv")
    )
