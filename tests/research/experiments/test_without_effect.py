"""The experiment on cells with and without a batch effect: what it scores, and what its page says."""

from dataclasses import replace

import pytest

from experiment_rows import SMALL
from research.experiments import EXPERIMENTS, run
from scbatchprox.demo import simulate
from scbatchprox.evaluate import f1_given_batch, macro_f1

EXPERIMENT = EXPERIMENTS["without_effect"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, strength in (("small", 1.0), ("small_without_effect", 0.0)):
        adata = simulate(SMALL, n_genes=80, n_components=5, batch_strength=strength)
        adata.write_h5ad(folder / f"{name}.h5ad")
    return folder


def outcome(folder, names, out):
    settings = replace(
        EXPERIMENT.settings,
        data=tuple(str(folder / f"{name}.h5ad") for name in names),
        methods=("batchprox",),
        n_components=5,
        runs=2,
    )
    return run(EXPERIMENT, settings, out, command="command")


def test_cells_without_an_effect_are_a_row_of_the_same_data(folder, tmp_path):
    found = outcome(folder, ("small", "small_without_effect"), tmp_path)
    assert (found.rows["status"] == "ok").all()
    scored = found.rows[["dataset", "method"]].drop_duplicates().to_records(index=False).tolist()
    assert scored == [
        ("small", "unrefined"),
        ("small", "batchprox"),
        ("small_without_effect", "unrefined"),
    ]
    page = (tmp_path / "without_effect.md").read_text()
    for method in ("unrefined", "scBatchProx exact", "no batch effect"):
        assert f"| small | {method} | " in page
    assert "small: macro-F1 of the same cells without any batch effect is " in found.findings[0]
    assert (tmp_path / "without_effect.png").stat().st_size > 0


def test_scores_are_of_the_unrefined_embedding(folder, tmp_path):
    rows = outcome(folder, ("small_without_effect",), tmp_path).rows
    adata = simulate(SMALL, n_genes=80, n_components=5, batch_strength=0.0)
    cell_type, batch = adata.obs["cell_type"], adata.obs["batch"]
    for at, seed in enumerate((0, 1)):
        of = rows[rows["run"] == at].set_index("metric")["value"]
        # Written and read as float32, and embedded again from the counts.
        Z = adata.obsm["X_pca"]
        assert of["macro_f1"] == pytest.approx(macro_f1(Z, cell_type, seed=seed), abs=0.1)
        assert of["f1_given_batch"] == pytest.approx(
            f1_given_batch(Z, cell_type, batch, seed=seed), abs=0.1
        )


def test_without_such_cells_the_page_says_so(folder, tmp_path):
    found = outcome(folder, ("small",), tmp_path)
    assert found.findings == ["None of these cells were also simulated without a batch effect."]
