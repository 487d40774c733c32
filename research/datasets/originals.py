"""The public data sets of the paper, as their authors published them.

They are not part of this package. A data set is read from the data folder, or downloaded from its source. If
both fail, the error names the file and the folder to put it in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import anndata as ad

from scbatchprox.core.checks import some_of
from scbatchprox.demo.compositions import COMPOSITIONS
from scbatchprox.errors import BadFile, BadKey, BadValue
from scbatchprox.progress import Progress

from .archives import Unpacked
from .dataset import Dataset, Keys
from .downloads import Figshare, Pinned, Source, Unreachable, Zenodo
from .files import read
from .molecules import molecules, read_smiles

__all__ = ["ORIGINALS", "Original"]

#: The five studies of the scArches pancreas: their names in the file, and in the paper.
PROTOCOLS = {
    "inDrop": "inDrop",
    "CelSeq": "CEL-Seq",
    "CelSeq2": "CEL-Seq2",
    "Fluidigm C1": "Fluidigm C1",
    "SS2": "Smart-seq2",
}


@dataclass(frozen=True)
class Original:
    """A public data set: its file names in the data folder, its source, and its reader."""

    about: str
    files: tuple[str, ...]
    source: Source
    hint: str
    read: Callable[[str, Path, Keys], Dataset]

    def load(self, name: str, folder: Path, keys: Keys, progress: Progress) -> Dataset:
        """Find or download the files, and read them."""
        path = self._find(folder) or self._fetch(name, folder, progress)
        return _compared(self.read(name, path, keys))

    def _find(self, folder: Path) -> Path | None:
        return next((folder / file for file in self.files if (folder / file).exists()), None)

    def _fetch(self, name: str, folder: Path, progress: Progress) -> Path:
        try:
            return self.source.fetch(folder, progress)
        except Unreachable as reason:
            raise BadFile(
                f"Expected {name}.h5ad or {' or '.join(self.files)} in {folder}, found none, and "
                f"{reason}; {self.hint}."
            ) from None


def of_maan(name: str, folder: Path, keys: Keys) -> Dataset:
    """Read one file per batch (counts in ``X``, columns ``batch`` and ``celltype``); keep shared genes."""
    parts = []
    for path in sorted(folder.glob("*.h5ad")):
        part = read(path)
        missing = [column for column in ("batch", "celltype") if column not in part.obs]
        if missing:
            raise BadKey(
                f"Expected obs of {path} to have batch and celltype, found no {some_of(missing)}; "
                f"available: {some_of(part.obs, most=20)}."
            )
        part.var_names_make_unique()
        parts.append(
            ad.AnnData(part.X, part.obs[["batch", "celltype"]].astype("string"), part.var[[]])
        )
    if not parts:
        raise BadFile(f"Expected .h5ad files, one per batch, found none in {folder}.")
    adata = ad.concat(
        parts, join="inner", index_unique="-", keys=[str(i) for i in range(len(parts))]
    )
    if not adata.n_vars:
        raise BadValue(f"Expected files in {folder} with shared genes, found none.")
    adata.obs["cell_type"] = adata.obs.pop("celltype")
    note = f"{adata.n_vars:,} genes that all {len(parts)} files have"
    return Dataset.of(name, adata, keys, note)


def of_scarches(name: str, path: Path, keys: Keys) -> Dataset:
    """Read a file with counts in ``raw``; its column ``batch`` has the two batches of HPMS."""
    return Dataset.of(name, _pancreas(path, keys), keys, "genes were selected by its authors")


def by_protocol(name: str, path: Path, keys: Keys) -> Dataset:
    """Read the same file with its five studies as batches, in the paper's names and order."""
    adata = _pancreas(path, keys)
    other = set(adata.obs["study"].dropna()) - set(PROTOCOLS)
    if other:
        raise BadValue(
            f"Expected studies {some_of(PROTOCOLS)} in {path}, found {some_of(sorted(other))} too."
        )
    batch = adata.obs["study"].map(PROTOCOLS).astype("category")
    order = [protocol for protocol in PROTOCOLS.values() if protocol in batch.cat.categories]
    adata.obs["batch"] = batch.cat.reorder_categories(order)
    return Dataset.of(name, adata, keys, "genes were selected by its authors")


def of_qm8(name: str, path: Path, keys: Keys) -> Dataset:
    """Read a table with a column ``smiles``; batches and classes are computed from the molecules."""
    return molecules(read_smiles(path), name=name)


def _compared(data: Dataset) -> Dataset:
    """Add a note on whether batches are as large as in the paper's table or printed totals."""
    table = COMPOSITIONS.get(data.name)
    if table is None:
        return data
    sizes = sorted(data.adata.obs["batch"].value_counts())
    papers = [
        sorted(sizes) for sizes in (table.counts.sum(1), table.printed_totals) if sizes is not None
    ]
    note = "batches as large as in the paper"
    if sizes not in papers:
        note = f"batches of {_listed(sizes)} cells; the paper has {_listed(papers[-1])}"
    return replace(data, note=f"{data.note}; {note}")


def _listed(sizes: Iterable[int]) -> str:
    return " + ".join(f"{size:,}" for size in sizes)


def _pancreas(path: Path, keys: Keys) -> ad.AnnData:
    adata = read(path)
    for column in ("study", "cell_type"):
        if column not in adata.obs:
            raise BadKey(
                f"Expected a column {column!r} in obs of {path}, found none; "
                f"available: {some_of(adata.obs, most=20)}."
            )
        # Every label of the file begins with the name of the organ.
        labels = adata.obs[column].astype("string").str.removeprefix("Pancreas")
        adata.obs[column] = labels.str.strip()
    if keys.rep is None:
        adata.obsm.clear()  # the paper starts from the counts, not from the authors' embeddings
    return adata


def _maan(about: str, folder: str) -> Original:
    archive = Figshare(24625302, 1, "maan2024_resources.tar.gz")
    return Original(
        about,
        (folder, f"resources/h5ad_files/int_datasets/{folder}"),
        Unpacked(archive, folder),
        f"unpack the archive of https://doi.org/10.6084/m9.figshare.24625302.v1 there, or put it there "
        f"as {archive.name} (one .h5ad per batch, with obs batch and celltype, counts in X)",
        of_maan,
    )


def _scarches(about: str, read: Callable[[str, Path, Keys], Dataset]) -> Original:
    return Original(
        about,
        ("pancreas_normalized.h5ad", "pancreas.h5ad"),
        Zenodo(3930949, "pancreas_normalized.h5ad"),
        "get pancreas_normalized.h5ad of https://zenodo.org/records/3930949, or the pancreas.h5ad of "
        "scArches' tutorials, and put it there (obs batch, study and cell_type, counts in raw)",
        read,
    )


ORIGINALS = {
    "pbmc4": _maan("PBMC by four protocols (Ding 2020, of Maan 2024)", "pbmc_4_batch"),
    "mhd6": _maan(
        "mouse hindbrain development, six stages (Vladoiu 2019, of Maan 2024)",
        "mouse_hindbrain_6_batch",
    ),
    "balanced2": _maan(
        "PBMC, two batches of six types x 200 cells (of Maan 2024)", "pbmc_2_batch_base_balanced"
    ),
    "hpms2": _scarches("human pancreas of scArches, two batches", of_scarches),
    "pancreas5": _scarches("human pancreas of scArches, five protocols", by_protocol),
    "qm8": Original(
        "21,786 small molecules of MoleculeNet",
        ("qm8.csv", "qm8.csv.gz"),
        Pinned(
            "https://raw.githubusercontent.com/tencent-ailab/grover/"
            "afcf06bc30f3af93b8e4a74be7069d88c675b3f4/exampledata/finetune/qm8.csv",
            "qm8.csv",
            "sha256:964558dcd6982d82871fd11f3cb24adb8de052bfe59d0a30ad6a7645d7e7665d",
        ),
        "get https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/qm8.csv (MoleculeNet) and put it "
        "there (a column smiles)",
        of_qm8,
    ),
}
