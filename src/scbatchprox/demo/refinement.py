"""The demonstration: simulate the paper's PBMC table, refine its embedding, print what changed."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from anndata import AnnData

from ..api.anndata import refine
from ..evaluate import ilisi, leave_one_batch_out_f1, macro_f1
from ..plots.before_after import before_after
from ..plots.inputs import movement_of
from .simulation import simulate

__all__ = ["run"]


def run(out: str | Path, *, data: str = "pbmc4", seed: int = 0) -> dict[str, float]:
    """Run the demonstration, print the results, and write an ``.h5ad`` file and a picture to ``out``."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    print(f"Simulating {data}: gamma-Poisson counts, per-batch gene effects, PCA 40 ...")
    adata = simulate(data, seed=seed)
    n_batches, n_types = (adata.obs[key].nunique() for key in ("batch", "cell_type"))
    print(f"{adata.n_obs:,} cells in {n_batches} batches, {n_types} cell types\n")

    # The first call loads compiled code; the second one is timed.
    refine(adata, "batch", target="population", diagnose=False)
    started = time.perf_counter()
    refine(adata, "batch", target="population", diagnose=False)
    seconds = time.perf_counter() - started
    refine(adata, "batch", target="population", diagnose=True)
    f1, across, mixing = _scores(adata)

    print("How far each batch moved (root mean squared displacement of its cells):")
    movement = movement_of(adata)
    verdicts = movement.pop("verdict")
    movement = movement.drop(columns="level")
    print(movement.to_string(float_format=lambda x: f"{x:.3f}"))
    print(
        "\nmacro-F1 of cell types (5 splits), the same for a batch that was left out (across), and batch "
        "mixing (iLISI, 0 to 1):"
    )
    for name in f1:
        f1_text = f"{f1[name].mean():.4f} ± {f1[name].std():.4f}"
        print(
            f"  {name:<7} macro-F1 {f1_text}   across {across[name]:.4f}   iLISI {mixing[name]:.3f}"
        )
    print("\nDiagnosis of each batch:")
    for name, verdict in verdicts.items():
        print(f"  {name}: {verdict}")
    print(f"\ntime to refine, without the diagnosis: {seconds * 1000:.1f} ms\n")

    refined, picture = out / f"{data}_refined.h5ad", out / f"{data}_before_after.png"
    adata.write_h5ad(refined, compression="gzip")
    print("Drawing a UMAP before and after ...")
    titles = [
        f"{name} refinement\nmixing {mixing[name]:.2f},  macro-F1 {f1[name].mean():.2f},  "
        f"across batches {across[name]:.2f}"
        for name in f1
    ]
    before_after(
        adata, label_key="cell_type", basis="umap", color=("batch", "cell type"), show=False,
        titles=(titles[0], titles[1]), seed=seed, save=picture,
    )  # fmt: skip
    print(f"wrote {refined}\nwrote {picture}")
    return {
        "macro_f1_before": float(f1["before"].mean()),
        "macro_f1_after": float(f1["after"].mean()),
        "lobo_f1_before": across["before"],
        "lobo_f1_after": across["after"],
        "ilisi_before": mixing["before"],
        "ilisi_after": mixing["after"],
        "seconds": seconds,
    }


def _scores(adata: AnnData) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
    """Macro-F1 of five splits, F1 across batches, and mixing; each before and after."""
    cell_type, batch = adata.obs["cell_type"], adata.obs["batch"]
    embeddings = {"before": adata.obsm["X_pca"], "after": adata.obsm["X_pca_batchprox"]}
    return (
        {
            name: np.array([macro_f1(Z, cell_type, seed=split) for split in range(5)])
            for name, Z in embeddings.items()
        },
        {name: leave_one_batch_out_f1(Z, cell_type, batch) for name, Z in embeddings.items()},
        {name: ilisi(Z, batch) for name, Z in embeddings.items()},
    )
