"""Text tables: coordinates are refined, every other character stays, mistakes are named."""

import gzip

import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, refine_file
from table_files import PCS, TEXT, check_refused, expected, fields, save

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("kind", TEXT)
def test_other_fields_are_the_same_text(tmp_path, frame, kind):
    frame["weight"] = [f"{i / 7:.3f}0" for i in range(len(frame))]  # numbers, but not coordinates
    path, out = save(frame, tmp_path, kind), tmp_path / f"out.{kind}"
    refine_file(path, "sample", use_rep="PC", out=out, model=BatchProx(target="moment"))
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
    refine_file(path, "sample", use_rep="PC", out=again, model=BatchProx(target="moment"))
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("kind", ["tsv", "csv.gz"])
def test_one_kind_of_text_is_written_as_another(frame, tmp_path, kind):
    frame.to_csv(tmp_path / "cells.csv", index=False)
    refine_file(
        tmp_path / "cells.csv",
        "sample",
        use_rep="PC",
        out=tmp_path / f"o.{kind}",
        model=BatchProx(target="moment"),
    )
    refine_file(
        tmp_path / "cells.csv",
        "sample",
        use_rep="PC",
        out=tmp_path / "o.csv",
        model=BatchProx(target="moment"),
    )
    sep = "\t" if kind == "tsv" else ","
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / f"o.{kind}", sep=sep), pd.read_csv(tmp_path / "o.csv")
    )


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
    "empty": ("", "Expected a header line with column names, found none"),
    "only a header": ("b,u\n", "Expected at least one cell, found only a header line"),
    "repeated name": ("b,u,u\nx,1,2\n", "columns with different names .* found 'u' more than once"),
    "long row": ("b,u\nx,1\nx,2\ny,3,4\n", "Expected 2 fields .* found 3 in line 4"),
    "short row": ("b,u\nx,1\nx\n", "Expected 2 fields .* found 1 in line 3"),
    "trailing comma": ("b,u\nx,1,\n", "Expected 2 fields .* found 3 in line 2"),
    "quote": ('b,u\nx,1\n"x,2\n', "found an error after line 2"),
    "no key": ("c,u\nx,1\n", "Expected batch_key .* found no 'b'; available: 'c', 'u'"),
    "no numbers": ("b,u\nx,1\nx,one\n", "Expected columns of numbers .* available: 'b', 'u'"),
    "only the key": ("b\n1\n2\n", "Expected columns of numbers .* available: 'b'"),
    "missing label": ("b,u\nx,1\n,2\n", "found 1 missing of 2, the first at row 1"),
    "missing number": ("b,u\nx,1\nx,\n", "Expected finite values, found 1 NaN"),
    "infinite": ("b,u\nx,1\nx,inf\n", "Expected finite values, found 0 NaN and 1 infinite"),
}


@pytest.mark.filterwarnings("ignore:Expected batches of cells")
class TestText:
    def test_bom_line_endings_quotes_and_blank_lines_stay(self, tmp_path):
        lines = [f'"{c}, {c}",{u},{b},{v}' for c, u, b, v in ROWS]
        text = "\ufeffcell,u,b,v\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        path = write(tmp_path, text)
        refine_file(path, "b", model=BatchProx(target="moment"))
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
        refine_file(path, "b", model=BatchProx(target="moment"))
        assert [row[0] for row in fields(path)] == [name, "0", "1", "2", "3"]

    def test_a_header_as_r_writes_it(self, tmp_path):
        lines = "".join(f"{i + 7}\t{u}\t{b}\t{v}\n" for i, (_, u, b, v) in enumerate(ROWS))
        path = write(tmp_path, f"u\tb\tv\n{lines}", "tsv")
        refine_file(path, "b", model=BatchProx(target="moment"))
        new = fields(path)
        assert new[0] == ["u", "b", "v"]
        assert [(row[0], row[2]) for row in new[1:]] == [
            (str(i + 7), r[2]) for i, r in enumerate(ROWS)
        ]
        wanted = expected(np.array([[u, v] for _, u, _, v in ROWS]), [b for _, _, b, _ in ROWS])
        np.testing.assert_allclose(np.array(new[1:])[:, [1, 3]].astype(float), wanted, atol=1e-12)

    def test_ids_with_underscores_and_empty_columns_are_not_numbers(self, tmp_path):
        lines = "".join(f"{b},{u},1_{i},\n" for i, (_, u, b, _) in enumerate(ROWS))
        path = write(tmp_path, f"b,u,tag,empty\n{lines}")
        assert refine_file(path, "b", model=BatchProx(target="moment")).adapter_.n_dims == 1

    def test_labels_are_text(self, tmp_path):
        lines = "".join(f"{i // 2:02d},{u}\n" for i, (_, u, _, _) in enumerate(ROWS))
        model = refine_file(write(tmp_path, f"b,u\n{lines}"), "b", model=BatchProx(target="moment"))
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

    def test_bytes_that_are_not_text(self, tmp_path):
        message = "Expected a text table in UTF-8 .* damaged or of another kind"
        check_refused(write(tmp_path, "b,u\né,1\n", encoding="latin-1"), "b", message)
        check_refused(write(tmp_path, "b,u\nx,1\n", "csv.gz"), "b", message)
        whole = gzip.compress(b"b,u\n" + b"".join(b"x,%d\n" % i for i in range(9999)))
        (tmp_path / "cells.csv.gz").write_bytes(whole[: len(whole) // 2])
        check_refused(tmp_path / "cells.csv.gz", "b", message)
        (tmp_path / "cells.csv").write_bytes(whole)
        check_refused(tmp_path / "cells.csv", "b", message)

    def test_prefix(self, tmp_path):
        path = write(tmp_path, "b,P1,P2,Q1,Q2\nx,1,2,3,z\nx,2,1,5,4\nx,2,7,5,4\n")
        assert (
            refine_file(path, "b", use_rep="P", model=BatchProx(target="moment")).adapter_.n_dims
            == 2
        )
        assert [row[3] for row in fields(path)] == ["Q1", "3", "5", "5"]
        check_refused(path, "b", "found none that begins with 'R'; available: 'b'", use_rep="R")
        check_refused(path, "b", "Expected numbers in all columns .* text in 'Q2'", use_rep="Q")
        check_refused(path, "Q2", "Expected columns of numbers that begin with 'Q2'", use_rep="Q2")
        check_refused(path, "b", "Expected key_added only", use_rep="P", key_added="new")
