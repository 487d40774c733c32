"""Parquet tables: types, compression and metadata stay."""

import sys

import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.io.formats import tables
from table_files import PCS, D, check_refused, expected, save

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.usefixtures("small_blocks")


class TestParquet:
    def test_everything_else_is_kept(self, tmp_path, frame):
        frame["sample"] = frame["sample"].astype("category")
        frame["when"] = pd.Timestamp("2026-01-01", tz="Europe/Oslo")
        table = pa.Table.from_pandas(frame.set_index("cell_id"))
        table = table.replace_schema_metadata(table.schema.metadata | {b"lab": b"ours"})
        table = table.append_column("parts", pa.array([[1, 2], None] * (len(frame) // 2)))
        path, out = tmp_path / "cells.parquet", tmp_path / "out.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=100)
        refine_file(path, "sample", use_rep="PC", out=out, model=BatchProx(target="moment"))
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
        refine_file(path, "sample", use_rep="PC", model=BatchProx(target="moment"))
        assert pq.read_metadata(path).row_group(0).column(0).compression == before

    def test_precision(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        single = frame.astype(dict.fromkeys(PCS, np.float32))
        single.to_parquet(path)
        refine_file(path, "sample", use_rep="PC", model=BatchProx(target="moment"))
        new = pd.read_parquet(path)
        assert (new[PCS].dtypes == np.float32).all()
        wanted = expected(single[PCS].to_numpy(), frame["sample"])
        np.testing.assert_allclose(new[PCS], wanted, rtol=1e-5, atol=1e-5)

    def test_mixed_types(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        mixed = frame.assign(PC1=frame["PC1"].astype(np.float32), PC2=frame["PC2"].astype(int))
        mixed = mixed.rename(
            columns={"PC2": "PC", "PC3": "PC.x"}
        )  # one name is a prefix of another
        mixed.to_parquet(path)
        refine_file(path, "sample", use_rep="PC", model=BatchProx(target="moment"))
        new = pd.read_parquet(path)
        names = ["PC1", "PC", "PC.x"]
        assert [str(kind) for kind in new[names].dtypes] == ["float32", "float64", "float64"]
        wanted = expected(mixed[names].to_numpy(np.float64), frame["sample"])
        np.testing.assert_allclose(new[names[1:]], wanted[:, 1:], rtol=0, atol=1e-12)
        np.testing.assert_allclose(new["PC1"], wanted[:, 0], rtol=1e-6, atol=1e-6)

    def test_folder_names_are_not_columns(self, tmp_path, frame):
        (tmp_path / "lane=5").mkdir()
        path = save(frame, tmp_path / "lane=5", "parquet")
        assert refine_file(
            path, "lane", use_rep="PC", model=BatchProx(target="moment")
        ).batches_.tolist() == [1, 2]

    def test_the_index_is_not_a_coordinate(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        frame[[*PCS, "sample"]].set_index(frame.index * 3).to_parquet(path)
        assert refine_file(path, "sample", model=BatchProx(target="moment")).adapter_.n_dims == D
        assert pd.read_parquet(path).index.equals(pd.Index(frame.index * 3))

    def test_bad_tables(self, tmp_path, frame):
        path = tmp_path / "cells.parquet"
        path.write_bytes(b"not a table, but long enough")
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
        check_refused(path, "u", "columns with different names .* found 'u' more than once")

    def test_without_pyarrow(self, tmp_path, frame, monkeypatch):
        path = save(frame, tmp_path, "parquet")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"Expected pyarrow .* 'scbatchprox\[files\]'"):
            refine_file(path, "sample", model=BatchProx(target="moment"))

    def test_a_table_that_ends_too_early(self, tmp_path, frame, monkeypatch):
        """A damaged page can have fewer rows than its row group claims."""
        path = save(frame, tmp_path, "parquet")
        whole = tables.ParquetFile.batches

        def shorter(table, columns, lo, step):
            yield from list(whole(table, columns, lo, step))[:-1]

        monkeypatch.setattr(tables.ParquetFile, "batches", shorter)
        with pytest.raises(InputError, match=r"cells\.parquet, which is damaged .* rows too early"):
            refine_file(path, "lane", use_rep="PC", out=tmp_path / "out.parquet")
        assert not (tmp_path / "out.parquet").exists()
