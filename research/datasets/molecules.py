"""Molecules instead of cells: the paper's test on data that is not single-cell data.

Each molecule is a Morgan fingerprint, a vector of bits for the neighbourhoods of its atoms up to a radius.
The batch is the size of the molecule: at most 3, 4 to 5, or at least 6 heavy atoms. The size is also the
class, so if batches mix perfectly, classes cannot be predicted. The paper does not give the radius and the
length of its fingerprints; 2 and 2,048 are common (ECFP4).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

from scbatchprox.core.checks import some_of
from scbatchprox.errors import BadKey, BadValue, MissingExtra

from .dataset import Dataset

__all__ = ["BATCHES", "molecules", "read_smiles"]

#: Names of the batches, and the number of heavy atoms at which the second and the third begin.
BATCHES = ("<=3", "4-5", ">=6")
_FROM = (4, 6)


def molecules(
    smiles: Iterable[str], *, radius: int = 2, n_bits: int = 2048, name: str = "molecules"
) -> Dataset:
    """Return fingerprints of molecules, in batches by their number of heavy atoms.

    Parameters
    ----------
    smiles
        Molecules; those that cannot be read are left out, with a note.
    radius, n_bits
        Radius and length of the Morgan fingerprints.
    name
        Name of the data set.

    Returns
    -------
    Dataset
        ``obsm["X_morgan"]`` has the bits (float32), ``obs`` the ``batch``, the same as ``cell_type``,
        the ``smiles`` and the number of ``heavy_atoms``.
    """
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem import rdFingerprintGenerator
    except ImportError:
        raise MissingExtra("rdkit to make fingerprints with", "bench") from None
    if radius < 0 or n_bits < 1:
        raise BadValue(f"Expected radius >= 0 and n_bits >= 1, found {radius} and {n_bits}.")
    given = [str(text) for text in smiles]
    with rdBase.BlockLogs():  # no log message for each molecule that cannot be read
        parsed = [(i, Chem.MolFromSmiles(text)) for i, text in enumerate(given)]
    # An empty text is read as a molecule without atoms.
    read = [(i, molecule) for i, molecule in parsed if molecule and molecule.GetNumAtoms()]
    if not read:
        raise BadValue(f"Expected SMILES of molecules, found none among {some_of(given, most=3)}.")
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=n_bits)
    bits = np.empty((len(read), n_bits), np.float32)
    for row, (_, molecule) in zip(bits, read, strict=True):
        row[:] = generator.GetFingerprintAsNumPy(molecule)
    heavy = np.array([molecule.GetNumHeavyAtoms() for _, molecule in read])
    batch = pd.Categorical.from_codes(np.digitize(heavy, _FROM), BATCHES)
    batch = batch.remove_unused_categories()
    obs = pd.DataFrame(
        {
            "batch": batch,
            "cell_type": batch,
            "heavy_atoms": heavy,
            "smiles": [given[i] for i, _ in read],
        },
        index=pd.Index([str(i) for i, _ in read]),
    )
    note = f"Morgan fingerprints of radius {radius} and {n_bits:,} bits"
    if len(read) < len(given):
        note += f"; {len(given) - len(read):,} SMILES that cannot be read left out"
    return Dataset(name, ad.AnnData(obs=obs, obsm={"X_morgan": bits}), False, "X_morgan", note)


def read_smiles(path: str | Path) -> list[str]:
    """Return the column ``smiles`` of a table, such as MoleculeNet's ``qm8.csv``, compressed or not."""
    table = pd.read_csv(path, nrows=0)
    if "smiles" not in table:
        raise BadKey(
            f"Expected a column 'smiles' in {path}, found none; available: {some_of(table)}."
        )
    return list(pd.read_csv(path, usecols=["smiles"], dtype=str, keep_default_na=False)["smiles"])
