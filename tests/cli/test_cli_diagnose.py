import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from command_line import printed_on, run
from report_cells import make_cells
from scbatchprox import diagnose


class TestDiagnose:
    def test_prints_what_the_function_returns_and_writes_nothing(self, path, adata):
        before = path.read_bytes()
        answer = json.loads(run("diagnose", path, "--batch-key", "batch", "--json").stdout)
        expected = diagnose(adata, "batch")
        assert answer["batches"] == expected.index.tolist()
        assert list(answer["diagnosis"]) == expected.columns.tolist()
        for name in ("level", "reasons", "verdict"):
            assert answer["diagnosis"][name] == expected[name].tolist()
        np.testing.assert_allclose(answer["diagnosis"]["moved"], expected["moved"], rtol=1e-9)
        assert path.read_bytes() == before

    def test_verdicts_are_lines(self, path):
        lines = run(
            "diagnose", path, "--batch-key", "batch", "--target", "moment"
        ).stdout.splitlines()
        for batch in ("s1", "s2", "s3"):
            assert sum(line.startswith(f"{batch}: ") for line in lines) == 1

    @pytest.mark.parametrize("verb", ["diagnose", "refine"])
    @pytest.mark.slow
    def test_fits_a_terminal(self, tmp_path, verb):
        """One sentence for all batches with a verdict, as in Python."""
        adata = make_cells()
        adata.obs["condition"] = adata.obs["batch"].astype(str)
        adata.obs["batch"] = "GSM433970_" + adata.obs["batch"].astype(str) + "_filtered_bc_matrix"
        adata.write_h5ad(path := tmp_path / "c.h5ad")
        more = ["--in-place"] if verb == "refine" else []
        lines = on_terminal(verb, path, "--batch-key", "batch", "--keep", "condition", *more)
        told = lines[lines.index("") :] if verb == "refine" else lines
        assert max(len(line) for line in told if "wrote" not in line) <= 80
        words = " ".join(" ".join(lines).split())
        assert words.count("each batch has one value of 'condition'") == 1
        if verb == "diagnose":
            shown = str(diagnose(adata, "batch", keep="condition")).splitlines()
            assert lines[: len(shown)] == [line.rstrip() for line in shown]

    def test_columns_to_keep(self, path, adata):
        words = ("diagnose", path, "--batch-key", "batch", "--keep", "site", "--json")
        answer = json.loads(run(*words).stdout)["diagnosis"]
        told = diagnose(adata, "batch", keep="site")["site confounded"]
        np.testing.assert_allclose(answer["site confounded"], told, rtol=1e-12)
        assert (
            answer["site removed"] == [None] * 3
        )  # sites are drawn by chance: there is nothing to remove

    @pytest.mark.filterwarnings("ignore:To keep")
    def test_a_column_that_is_the_batch(self, tmp_path):
        adata = make_cells()
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


def on_terminal(*words):
    """Return what a command prints on a terminal of 80 columns."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "scbatchprox", *map(str, words)], stdout=other,
        stderr=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "80", "TERM": "dumb"},
    )  # fmt: skip
    os.close(other)
    shown = printed_on(main)
    assert process.wait() == 0
    return [line.rstrip() for line in shown.decode().splitlines()]
