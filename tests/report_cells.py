"""Cells with types, batches and a condition, whose names are as hostile as names can be."""

import anndata as ad
import numpy as np
import pandas as pd

#: Names that would end a script, add markup, or be a field of a tooltip.
BATCHES = ["</script><b>one", "two & @moved{safe}", "<img src=x onerror=alert(1)>"]
TYPES = ["T\"cells'", "B<!--cells", "${x} NK"]


def make_cells(n=900, seed=0, batches=BATCHES, types=TYPES):
    """Return cells whose batches differ by a shift; the last type is missing from the first batch."""
    rng = np.random.default_rng(seed)
    batch, kind = rng.integers(0, len(batches), n), rng.integers(0, len(types), n)
    kind[(batch == 0) & (kind == len(types) - 1)] = 0
    Z = rng.normal(size=(n, 6)) + 9.0 * np.eye(len(types), 6)[kind]
    Z += 1.5 * np.eye(len(batches), 6)[batch]
    obs = pd.DataFrame(
        {
            "batch": np.array(batches, object)[batch],
            "type": np.array(types, object)[kind],
            "condition": np.where(batch == 0, "control", "treated"),
            "sex": rng.choice(["f", "m"], n),
        },
        index=[f"cell{i}" for i in range(n)],
    )
    return ad.AnnData(obs=obs, obsm={"X_pca": Z.astype(np.float32)})
