"""Data sets by name, and the function that loads them or a user's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scbatchprox.demo import simulate
from scbatchprox.errors import BadFile, BadValue, Parameter
from scbatchprox.progress import Progress, silent
from scbatchprox.upstream.components import N_COMPONENTS

from .dataset import Dataset, Keys
from .files import SUFFIXES, read
from .folder import data_folder
from .originals import ORIGINALS, Original
from .reduction import with_pca

__all__ = ["PRESETS", "WITHOUT", "Simulated", "Stored", "load"]

#: End of the names of simulated sets whose batches have no effect.
WITHOUT = "_without_effect"


@dataclass(frozen=True)
class Simulated:
    """Counts simulated with a composition of the paper, with or without a batch effect."""

    about: str
    composition: str
    batch_strength: float = 1.0


@dataclass(frozen=True)
class Stored:
    """A file ``NAME.h5ad`` of the data folder.

    Attributes
    ----------
    about
        Description.
    pca
        Number of principal components of its embedding, or else of ``X``, to start from: for data with
        very many coordinates, and for values that are not counts.
    typed
        Whether its cells have types. Without them, each batch is called a type of its own.
    """

    about: str
    pca: int | None = None
    typed: bool = True


PRESETS: dict[str, Simulated | Stored | Original] = {
    "sim_pbmc4": Simulated("the paper's 4-batch PBMC table", "pbmc4"),
    "sim_mhd6": Simulated("the paper's 6-batch mouse hindbrain table", "mhd6"),
    "sim_hpms2": Simulated("the paper's 2-batch human pancreas table", "hpms2"),
    "sim_balanced2": Simulated("two batches of six types x 200 cells", "balanced2"),
    f"sim_pbmc4{WITHOUT}": Simulated("the same as sim_pbmc4 without a batch effect", "pbmc4", 0.0),
    f"sim_hpms2{WITHOUT}": Simulated("the same as sim_hpms2 without a batch effect", "hpms2", 0.0),
    "cell_lines": Stored("Jurkat and 293T, separate and mixed: two batches share no type"),
    "sc_mixology": Stored("five cell lines by four protocols: counts, certain labels"),
    "pancreas_scvi": Stored("human pancreas of four studies, scVI"),
    "hematopoiesis_scvi": Stored("mouse haematopoiesis by two protocols, scVI"),
    "kang_ifnb": Stored("PBMC, control and stimulated: the batch is biology"),
    "synovium": Stored("synovium on 24 plates"),
    "optimalflow37": Stored("blood by flow cytometry: 37 batches, rare and private types"),
    "covid_pbmc_pca": Stored("PBMC of 20 donors, healthy and with COVID: a condition to keep"),
    "bbbc021_moa": Stored(
        "cell images of 10 weeks by mode of action: types confounded", pca=N_COMPONENTS
    ),
    "fsdd_speech": Stored(
        "spoken digits of 6 speakers: batches further apart than types", pca=N_COMPONENTS
    ),
    "pancreas_wang_xin": Stored(
        "human pancreas of two studies: small, private types", pca=N_COMPONENTS
    ),
    "hmp16s_bodysites": Stored("microbiome by body site: counts, types that blur"),
    "onek1k40": Stored("blood of 40 donors: mild effects, hardly anything to do"),
    "primates9": Stored("9 clones of 3 primates by day of differentiation: a continuum"),
    "panc8_small": Stored("human pancreas by five protocols, 100 cells of each"),
    "cytof8": Stored("blood by CyTOF: each of four samples on two days"),
    "glioblastoma10": Stored("five patients x two treatments: the treatment is to be kept"),
    "mtbls79": Stored("metabolomics: 8 tiny batches, 3 types"),
    "mesc2": Stored("stem cells in three media: two batches far apart"),
    "jaitin_null8": Stored("one sort of cells of one mouse, amplified in 8 batches", typed=False),
    **ORIGINALS,
}


def load(
    data: str | Path,
    *,
    data_dir: str | Path | None = None,
    batch_key: str | Sequence[str] = "batch",
    label_key: str = "cell_type",
    use_rep: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dataset:
    """Load a data set by name, or from a file.

    Parameters
    ----------
    data
        One of `PRESETS`; the path of an ``.h5ad`` or ``.zarr`` file; or the name of an ``.h5ad`` file in
        the data folder, without its suffix.
    data_dir
        The data folder; by default ``$SCBATCHPROX_DATA``, else a folder in the user's cache.
    batch_key, label_key
        Columns of ``obs`` with the batch (several columns: their combination) and the type of each cell.
        The paper's public sets and the simulated ones have the default names.
    use_rep
        Key of ``obsm`` of the embedding to start from; by default ``X_pca``, else an scVI one, else the
        only one there is.
    seed
        Seed of simulated sets.
    progress
        Called as ``progress(file, bytes_done, bytes_in_all)`` during a download.
    """
    name, keys = str(data), Keys(batch_key, label_key, use_rep)
    preset = PRESETS.get(name)
    if isinstance(preset, Simulated):
        note = f"simulated: {preset.about}, seed {seed}"
        return Dataset.of(
            name,
            simulate(preset.composition, batch_strength=preset.batch_strength, seed=seed),
            keys,
            note,
        )
    if preset is None and Path(name).suffix in SUFFIXES:
        return Dataset.of(Path(name).stem, read(Path(name)), keys)
    folder = data_folder(data_dir)
    stored = folder / f"{name}.h5ad"
    if stored.exists():
        adata, note = read(stored), ""
        if isinstance(preset, Stored) and not preset.typed:
            keys, note = replace(keys, label="batch"), "no cell types, so each batch counts as one"
        if isinstance(preset, Stored) and preset.pca is not None and use_rep is None:
            adata, note = with_pca(name, adata, preset.pca)
        return Dataset.of(name, adata, keys, note)
    if isinstance(preset, Original):
        return preset.load(name, folder, keys, progress or silent)
    if preset is not None:
        raise BadFile(
            f"Expected {stored.name} in {folder}, found none; put it there, or set another folder "
            f"with ", Parameter("data_dir"), " or $SCBATCHPROX_DATA.",
        )  # fmt: skip
    raise BadValue(
        f"Expected the name of a data set or an .h5ad file, found {name!r}; available: "
        f"{', '.join(PRESETS)}."
    )
