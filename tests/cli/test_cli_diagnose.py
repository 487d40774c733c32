import json

import numpy as np
import pytest

from command_line import run
from scbatchprox import diagnose


class TestDiagnose:
    def test_prints_what_the_function_returns_and_writes_nothing(self, path, adata):
        before = path.read_bytes()
        answer = json.loads(run("diagnose", path, "--batch-key", "batch", "--json").stdout)
        expected = diagnose(adata, "batch")
        assert answer["batches"] == expected.index.tolist()
        assert list(answer["diagnosis"]) == expected.columns.tolist()
        assert answer["diagnosis"]["verdict"] == expected["verdict"].tolist()
        np.testing.assert_allclose(answer["diagnosis"]["moved"], expected["moved"], rtol=1e-9)
        assert path.read_bytes() == before

    def test_verdicts_are_lines(self, path):
        lines = run(
            "diagnose", path, "--batch-key", "batch", "--target", "moment"
        ).stdout.splitlines()
        for batch in ("s1", "s2", "s3"):
            assert sum(line.startswith(f"{batch}: ") for line in lines) == 1

    def test_columns_to_keep(self, path, adata):
        words = ("diagnose", path, "--batch-key", "batch", "--keep", "site", "--json")
        answer = json.loads(run(*words).stdout)["diagnosis"]
        told = diagnose(adata, "batch", keep="site")["site confounded"]
        np.testing.assert_allclose(answer["site confounded"], told, rtol=1e-12)
        assert (
            answer["site removed"] == [None] * 3
        )  # sites are drawn by chance: there is nothing to remove

    @pytest.mark.filterwarnings("ignore:To keep")
    def test_a_column_that_is_the_batch(self, adata, tmp_path):
        adata.obs["condition"] = adata.obs["batch"].astype(str) + " days"
        adata.write_h5ad(tmp_path / "c.h5ad")
        words = ("diagnose", tmp_path / "c.h5ad", "--batch-key", "batch", "--keep", "condition")
        lines = run(*words).stdout.splitlines()
        assert sum("each batch has one value of 'condition'" in line for line in lines) == 3

    @pytest.mark.parametrize("verb", ["diagnose", "refine"])
    def test_a_column_that_is_not_there(self, path, verb):
        more = ["--in-place"] if verb == "refine" else []
        done = run(verb, path, "--batch-key", "batch", "--keep", "tissue", *more, code=2)
        assert "found no column 'tissue'; available: 'batch', 'site'" in done.stderr
