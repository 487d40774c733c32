"""The command as pipelines see it: real processes, real files, exit codes."""

import json
import os
import pty
import shutil
import stat
import subprocess
import sys

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from data import make_cells
from scbatchprox import BatchProx, __version__
from scbatchprox.cli.app import app
from scbatchprox.io.model_file import params_as_json

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")


@pytest.fixture
def adata(rng):
    c = make_cells(rng, [80, 60, 40], 5)
    adata = ad.AnnData(
        rng.poisson(1.0, (180, 4)).astype(np.float32),
        pd.DataFrame(
            {
                "batch": pd.Categorical(np.array(["s1", "s2", "s3"])[c.codes]),
                "site": rng.choice(["x", "y"], 180),
            },
            index=[f"cell{i}" for i in range(180)],
        ),
    )
    adata.obsm["X_pca"] = c.Z
    return adata


@pytest.fixture
def path(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path / "cells.h5ad"


def run(*arguments, code=0):
    """In this process: quick, for what does not depend on the process."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def command(*arguments, **options):
    """In a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "scbatchprox", *map(str, arguments)],
        capture_output=True, text=True, **options,
    )  # fmt: skip


class TestRefine:
    def test_out_and_model(self, path, adata, tmp_path):
        out, model = tmp_path / "out.h5ad", tmp_path / "m.safetensors"
        before = path.read_bytes()
        result = run("refine", path, "--batch-key", "batch", "--out", out, "--model", model)
        expected = BatchProx().fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
        refined = expected.transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
        np.testing.assert_allclose(ad.read_h5ad(out).obsm["X_pca_batchprox"], refined, rtol=1e-10)
        np.testing.assert_allclose(BatchProx.load(model).scale_, expected.scale_, rtol=1e-10)
        assert path.read_bytes() == before
        for word in ("s1", "s2", "s3", "moved", "wrote"):
            assert word in result.stdout

    def test_names_of_batches_are_shown_whole(self, adata, tmp_path):
        name = "E-MTAB-5061 of the second laboratory"
        adata.obs["batch"] = adata.obs["batch"].cat.rename_categories({"s1": name})
        adata.write_h5ad(tmp_path / "c.h5ad")
        done = command("refine", tmp_path / "c.h5ad", "--batch-key", "batch", "--in-place",
                       env=os.environ | {"COLUMNS": "80"})  # fmt: skip
        assert name in done.stdout

    def test_every_method_option_reaches_the_model(self, path, tmp_path):
        model = tmp_path / "m.safetensors"
        run(
            "refine", path, "--batch-key", "batch", "--batch-key", "site", "--in-place",
            "--model", model, "--solver", "adam", "--rounds", 2, "--lambda-target", 0.7,
            "--mu", 0.01, "--lambda-id", 0.02, "--eps", 1e-3, "--mean-only", "--seed", 5, "--lr",
            0.01, "--local-epochs", 2, "--batch-size", 32, "--target", "moment",
            "--key-added", "mine", "--use-rep", "X_pca", "--strength", 0.5,
        )  # fmt: skip
        params = params_as_json(BatchProx.load(model).get_params(deep=False))
        assert params["solver"] | {"betas": 0, "adam_eps": 0} == {
            "name": "adam", "lr": 0.01, "local_epochs": 2, "batch_size": 32, "seed": 5,
            "betas": 0, "adam_eps": 0,
        }  # fmt: skip
        assert {name: params[name] for name in params if name != "solver"} == {
            "target": {"name": "moment", "eps": 1e-3, "variance_matching": False}, "rounds": 2,
            "lambda_target": 0.7, "mu": 0.01, "lambda_id": 0.02, "strength": 0.5,
        }  # fmt: skip
        assert "mine" in ad.read_h5ad(path).obsm
        assert len(BatchProx.load(model).batches_) == 6

    def test_fixed_point(self, path, tmp_path):
        run("refine", path, "--batch-key", "batch", "--in-place", "--rounds", "fixed-point",
            "--model", tmp_path / "m")  # fmt: skip
        assert BatchProx.load(tmp_path / "m").rounds is None

    def test_json_is_one_object(self, path):
        answer = json.loads(
            run("refine", path, "--batch-key", "batch", "--in-place", "--json").stdout
        )
        assert answer["batches"] == ["s1", "s2", "s3"]
        assert answer["movement"]["n_cells"] == [80, 60, 40]
        assert answer["written"] == str(path)
        assert answer["provenance"]["source"] == "cells.h5ad"

    def test_json_knows_no_infinity(self, path):
        done = run("refine", path, "--batch-key", "batch", "--in-place", "--json", "--rounds",
                   "fixed-point")  # fmt: skip
        answer = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
        assert answer["history"]["round"] == [0, None]

    def test_interrupted(self, adata, tmp_path):
        """Ctrl-C before the end: the old content, exit code 130, nothing left lying about."""
        path = tmp_path / "cells.h5ad"
        adata.write_h5ad(path)
        before = path.read_bytes()
        script = """
import signal, sys
from scbatchprox.cells import file as stream
from scbatchprox.io.formats import h5ad
real = h5ad._H5adWriter.write
def write(self, lo, block):
    real(self, lo, block)
    signal.raise_signal(signal.SIGINT)
h5ad._H5adWriter.write = write
from scbatchprox.cli.app import app
app(["refine", sys.argv[1], "--batch-key", "batch", "--in-place", "--no-diagnose"])
"""
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
        assert done.returncode == 130
        # Before it there may be a line that code was compiled.
        assert done.stderr.splitlines()[-1] == "Error: Interrupted."
        assert "Traceback" not in done.stderr
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["cells.h5ad"]

    def test_quiet_says_nothing(self, path):
        done = command("refine", path, "--batch-key", "batch", "--in-place", "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_no_bar_without_a_terminal(self, path):
        done = command("refine", path, "--batch-key", "batch", "--in-place", "--no-diagnose")
        assert done.returncode == 0
        assert not any(word in done.stderr for word in ("%", "rows/s", "moments"))

    def test_bar_with_rows_a_second_on_a_terminal(self, path):
        main, other = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "scbatchprox", "refine", path, "--batch-key", "batch", "--in-place"],
            stderr=other, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "120", "TERM": "xterm"},
        )  # fmt: skip
        os.close(other)
        shown = b""
        while True:
            try:
                more = os.read(main, 4096)
            except OSError:
                break
            if not more:
                break
            shown += more
        os.close(main)
        assert process.wait() == 0
        for word in (b"moments", b"refine", b"rows/s", b"100%"):
            assert word in shown

    @pytest.mark.parametrize(("option", "lines"), [("--json", 1), ("--quiet", 0)])
    def test_one_line_while_code_is_compiled(self, path, tmp_path, option, lines):
        words = ("refine", path, "--batch-key", "batch", "--in-place", "--no-diagnose", option)
        env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "40"}
        cold, warm = (command(*words, env=env) for _ in range(2))
        assert cold.returncode == warm.returncode == 0
        said = cold.stderr.splitlines()
        assert len(said) == lines
        assert all("scbatchprox: compiling its loops, once" in line for line in said)
        assert warm.stderr == ""

    def test_verbose_tells_what_it_reads(self, path):
        done = command("refine", path, "--batch-key", "batch", "--in-place", "-v")
        assert "180 cells x 5 coordinates (float64) in 3 batches" in done.stderr

    def test_labels_from_a_second_file(self, adata, tmp_path):
        np.save(tmp_path / "z.npy", adata.obsm["X_pca"])
        adata.obs.to_csv(tmp_path / "obs.csv")
        run("refine", tmp_path / "z.npy", "--labels", tmp_path / "obs.csv", "--batch-key", "batch",
            "--out", tmp_path / "r.npy")  # fmt: skip
        expected = BatchProx().fit_transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
        np.testing.assert_allclose(np.load(tmp_path / "r.npy"), expected)

    def test_barcodes_warn_in_words(self, adata, tmp_path):
        adata.obs["barcode"] = adata.obs_names
        adata.write_h5ad(tmp_path / "b.h5ad")
        done = command("refine", tmp_path / "b.h5ad", "--batch-key", "barcode", "--in-place")
        assert done.returncode == 0
        assert done.stderr.startswith("Warning: Expected batches of cells, found 180 batches")
        assert done.stderr.count("\n") == 1


class TestModels:
    @pytest.fixture
    def model(self, path, tmp_path):
        run(
            "refine",
            path,
            "--batch-key",
            "batch",
            "--in-place",
            "--model",
            tmp_path / "m.safetensors",
        )
        return tmp_path / "m.safetensors"

    def test_apply_takes_its_key_from_the_model(self, path, model, tmp_path):
        run("apply", path, "--model", model, "--out", tmp_path / "o.h5ad", "--key-added", "again")
        result = ad.read_h5ad(tmp_path / "o.h5ad")
        np.testing.assert_array_equal(result.obsm["again"], result.obsm["X_pca_batchprox"])

    def test_inverse_takes_cells_back_and_keeps_the_refined_ones(self, path, model):
        before = ad.read_h5ad(path).obsm["X_pca_batchprox"]
        run("inverse", path, "--model", model, "--in-place")
        result = ad.read_h5ad(path)
        np.testing.assert_allclose(
            result.obsm["X_pca_batchprox_inverse"], result.obsm["X_pca"], rtol=1e-9
        )
        np.testing.assert_array_equal(result.obsm["X_pca_batchprox"], before)

    def test_apply_takes_its_embedding_from_the_model(self, adata, tmp_path):
        adata.obsm["X_other"] = adata.obsm["X_pca"] + 5
        path, model = tmp_path / "c.h5ad", tmp_path / "o.safetensors"
        adata.write_h5ad(path)
        run("refine", path, "--batch-key", "batch", "--use-rep", "X_other", "--in-place",
            "--model", model)  # fmt: skip
        run("apply", path, "--model", model, "--key-added", "again", "--in-place")
        result = ad.read_h5ad(path)
        np.testing.assert_array_equal(result.obsm["again"], result.obsm["X_other_batchprox"])

    def test_inspect(self, model):
        shown = run("inspect", model).stdout
        for word in ("s1", "n cells", "rounds", "batch_key", "cells.h5ad", __version__):
            assert word in shown
        facts = json.loads(run("inspect", model, "--json").stdout)
        assert facts["params"]["rounds"] == "auto"
        assert facts["rounds"] == 3
        assert facts["provenance"]["batch_key"] == ["batch"]
        assert facts["provenance"]["n_cells"] == 180
        assert facts["written_by"] == f"scbatchprox {__version__}"

    def test_other_width_and_batches(self, adata, model, tmp_path):
        adata.obsm["narrow"] = adata.obsm["X_pca"][:, :2]
        adata.obs["batch"] = "elsewhere"
        adata.write_h5ad(tmp_path / "more.h5ad")
        done = run("apply", tmp_path / "more.h5ad", "--model", model, "--in-place", code=2)
        assert "found unseen 'elsewhere'; available: 's1', 's2', 's3'" in done.stderr
        done = run("apply", tmp_path / "more.h5ad", "--model", model, "--in-place",
                   "--use-rep", "narrow", code=2)  # fmt: skip
        assert "Expected an embedding of 5 coordinates" in done.stderr


class TestWrongUse:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--batch-key", "batch"], "Expected either --out or --in-place, found neither."),
            (["--batch-key", "plate", "--in-place"], "no column 'plate'; available: 'batch', 'site'"),
            (["--batch-key", "batch", "--in-place", "--use-rep", "X_no"], "available: 'X_pca'"),
            (["--batch-key", "batch", "--in-place", "--rounds", "many"], "or 'auto', found 'many'"),
            (["--batch-key", "batch", "--in-place", "--seed", "1"], "only with --solver adam"),
            (["--batch-key", "batch", "--in-place", "--mu", "-1"], "Expected mu to be a finite number"),
            (["--batch-key", "batch", "--in-place", "--target", "x"], "Expected target to be one of"),
            (["--batch-key", "batch", "--out", "x.csv"], "Expected an output of the same kind"),
            (["--batch-key", "batch", "--in-place", "--model", "cells.h5ad"], "different files for IN and"),
            (["--batch-key", "batch", "--out", "o.h5ad", "--model", "o.h5ad"], "for --model and --out"),
            (["--batch-key", "batch", "--in-place", "--key-added", "a/b"], "Expected a plain name"),
            (["--batch-key", "batch", "--in-place", "--dask", "--scheduler", "x"], "found both"),
            (["--batch-key", "batch", "--out", "no/where.h5ad"], "Expected a folder to write to"),
            (["--batch-key", "batch", "--in-place", "--model", "no/m"], "Expected a place for a file"),
        ],
    )  # fmt: skip
    def test_is_one_sentence_and_exit_code_2(self, path, arguments, sentence, monkeypatch):
        before = path.read_bytes()
        monkeypatch.chdir(path.parent)
        done = run("refine", path, *arguments, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        assert path.read_bytes() == before

    def test_is_what_a_shell_sees(self, path):
        done = command("refine", path, "--batch-key", "plate", "--in-place")
        assert done.returncode == 2
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert "no column 'plate'" in done.stderr

    def test_options_of_no_command(self, path):
        run("refine", path, code=2)
        run("refine", path, "--batch-key", "batch", "--wrong", code=2)
        run("nonsense", code=2)

    def test_bad_files(self, tmp_path):
        (tmp_path / "x.h5ad").write_bytes(b"no")
        run("refine", tmp_path / "x.h5ad", "--batch-key", "b", "--in-place", code=2)
        run("refine", tmp_path / "absent.h5ad", "--batch-key", "b", "--in-place", code=2)
        run("refine", tmp_path / "x.loom", "--batch-key", "b", "--in-place", code=2)
        run("inspect", tmp_path / "x.h5ad", code=2)
        done = run("inspect", tmp_path / "x.h5ad", "--json", code=2)
        assert json.loads(done.stdout)["exit_code"] == 2

    def test_verbose_shows_where(self, tmp_path):
        done = command("inspect", tmp_path / "absent", "-v")
        assert done.returncode == 2
        assert "Traceback" in done.stderr

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_read_only_folder(self, path, tmp_path):
        path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            done = command("refine", path, "--batch-key", "batch", "--out", tmp_path / "o.h5ad")
        finally:
            path.parent.chmod(0o755)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1

    @pytest.mark.skipif(
        shutil.which("unshare") is None or os.geteuid() != 0, reason="needs a mount"
    )
    @pytest.mark.parametrize("where", ["--in-place", "--out"])
    @pytest.mark.parametrize("kind", ["full", "read-only"])
    def test_full_disk_and_read_only_folder(self, path, tmp_path, where, kind):
        """On a small file system of its own: the sentence names the cause, nothing is lost."""
        disk = tmp_path / "disk"
        disk.mkdir()
        size = path.stat().st_size
        target = "--in-place" if where == "--in-place" else "--out {disk}/out.h5ad"
        # Room for the file and a little more, so that it fills up in the middle.
        script = f"""
            mount -t tmpfs -o size={(size // 4096 + 3) * 4096} tmpfs {disk} || exit 99
            cp {path} {disk}/in.h5ad
            {"mount -o remount,ro " + str(disk) if kind == "read-only" else ""}
            {sys.executable} -m scbatchprox refine {disk}/in.h5ad --batch-key batch \\
                {target.format(disk=disk)}
            code=$?
            cmp {path} {disk}/in.h5ad || exit 98
            test -e {disk}/out.h5ad && exit 97
            ls -A {disk} | grep partial && exit 96
            exit $code
        """
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
        if done.returncode == 99:
            pytest.skip("no mounts here")
        assert done.returncode == 1, done.stderr
        wanted = "No space left on device" if kind == "full" else "Read-only file system"
        assert wanted in done.stderr
        assert "Traceback" not in done.stderr


def test_help_has_an_example_for_every_command():
    for name in ("refine", "apply", "inverse", "inspect", "demo"):
        assert f"Example: scbatchprox {name}" in " ".join(run(name, "--help").stdout.split())


def test_version_and_completion():
    assert run("--version").stdout.strip() == __version__
    asked = {
        "_SCBATCHPROX_COMPLETE": "complete_bash",
        "COMP_WORDS": "scbatchprox re",
        "COMP_CWORD": "1",
    }
    script = "import sys; sys.argv = ['scbatchprox']; from scbatchprox.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | asked, capture_output=True, text=True
    )
    assert "refine" in answer.stdout


def test_demo_command(tmp_path):
    result = run("demo", "--out", tmp_path, "--data", "balanced2")
    assert "macro-F1" in result.stdout
    assert (tmp_path / "balanced2_refined.h5ad").exists()
    assert "available" in run("demo", "--data", "nothing", "--out", tmp_path, code=2).stderr


@pytest.mark.filterwarnings("ignore")
class TestCluster:
    @pytest.mark.parametrize("suffix", ["h5ad", "zarr", "npy"])
    def test_local_cluster(self, adata, tmp_path, suffix, monkeypatch):
        path = tmp_path / f"cells.{suffix}"
        labels = []
        if suffix == "npy":
            np.save(path, adata.obsm["X_pca"])
            adata.obs.to_csv(tmp_path / "obs.csv")
            labels = ["--labels", str(tmp_path / "obs.csv")]
        else:
            getattr(adata, f"write_{suffix}")(path)
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 5 * 8 * 25)
        run("refine", path, "--batch-key", "batch", "--in-place", "--dask", *labels)
        expected = BatchProx().fit_transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
        if suffix == "npy":
            found = np.load(path)
        else:
            found = getattr(ad, f"read_{suffix}")(path).obsm["X_pca_batchprox"]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
    def test_populations_on_a_cluster(self, adata, tmp_path, suffix, monkeypatch):
        """Populations are found, counted and moved by workers, and are those of one process."""
        path, beside = tmp_path / f"cells.{suffix}", tmp_path / f"beside.{suffix}"
        getattr(adata, f"write_{suffix}")(path)
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 5 * 8 * 25)
        how = ("--batch-key", "batch", "--target", "population")
        run("refine", path, *how, "--out", beside, "--dask")
        run("refine", path, *how, "--in-place")
        Z, batch = adata.obsm["X_pca"], adata.obs["batch"]
        expected = BatchProx(target="population").fit_transform(Z, batch=batch)
        assert np.abs(expected - Z).max() > 0.1
        for file in (path, beside):
            found = getattr(ad, f"read_{suffix}")(file).obsm["X_pca_batchprox"]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)

    def test_scheduler_elsewhere(self, path, adata):
        distributed = pytest.importorskip("distributed")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster:
            done = command("refine", path, "--batch-key", "batch", "--in-place", "--scheduler",
                           cluster.scheduler_address)  # fmt: skip
        assert done.returncode == 0, done.stderr
        expected = BatchProx().fit_transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
        np.testing.assert_allclose(
            ad.read_h5ad(path).obsm["X_pca_batchprox"], expected, rtol=1e-10, atol=1e-10
        )

    def test_adam_and_tables_are_refused(self, path, adata, tmp_path):
        done = run("refine", path, "--batch-key", "batch", "--in-place", "--dask", "--solver", "adam",
                   code=2)  # fmt: skip
        assert "solver='exact' works" in done.stderr
        pd.DataFrame(adata.obsm["X_pca"]).add_prefix("PC").assign(batch="a").to_csv(
            tmp_path / "t.csv"
        )
        done = run(
            "refine", tmp_path / "t.csv", "--batch-key", "batch", "--in-place", "--dask", code=2
        )
        assert "can be read in parts on a cluster" in done.stderr
