"""What every upstream offers: a frozen map from counts to coordinates, with a name that no other has."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import anndata as ad
import numpy as np

from .._version import __version__
from .counts import Counts
from .genes import GeneReport

__all__ = ["KIND", "RECORD", "Embedded", "Upstream", "digest"]

#: What ``docs/file-format.md`` calls the kind of a saved upstream.
KIND = "upstream"
#: Where ``uns[key]`` says which upstream ``obsm[key]`` comes from.
RECORD = "upstream"


@dataclass(frozen=True, eq=False)
class Embedded:
    """Coordinates of cells, and what is to be known of them.

    Attributes
    ----------
    Z
        (N, d) float32 coordinates.
    report
        Genes of the reference that the cells lack.
    record
        What belongs to ``uns`` beside the coordinates in ``obsm``: the fingerprint of the upstream
        above all, which an atlas checks.
    """

    Z: np.ndarray
    report: GeneReport
    record: dict[str, Any]

    def write(self, adata: ad.AnnData, key_added: str | None = None) -> None:
        """Write the coordinates to ``obsm`` and the record to ``uns``; by default as X_pca or X_scvi."""
        key = f"X_{self.record['method']}" if key_added is None else key_added
        adata.obsm[key] = self.Z
        adata.uns[key] = self.record


class Upstream(ABC):
    """A frozen reference that new cells are embedded with, and none of its own move."""

    method: ClassVar[str]

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What this embedding is known by: the same for the same reference, wherever it is kept."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of coordinates."""

    @property
    @abstractmethod
    def n_genes(self) -> int:
        """The number of genes that it embeds with."""

    @property
    def batch_key(self) -> Sequence[str] | None:
        """Columns of ``obs`` that must be known to embed a cell, if any."""
        return None

    @abstractmethod
    def mapped(
        self, counts: Counts, min_shared: float = 0.5
    ) -> tuple[GeneReport, Iterator[tuple[int, np.ndarray]]]:
        """Return what is missing, and the coordinates a stretch of rows at a time."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Write to a file (safetensors, no pickle); :func:`scbatchprox.upstream.load` reads it."""

    def embed(
        self,
        adata: ad.AnnData,
        *,
        layer: str | None = None,
        min_shared: float = 0.5,
        fractional: bool = False,
    ) -> Embedded:
        """Embed cells by their counts, read a stretch of rows at a time.

        Parameters
        ----------
        adata
            Cells of any number, in memory or backed, with genes in any order; genes that the reference
            does not know are ignored, missing ones are filled and reported.
        layer
            Where the counts are; by default in ``X``.
        min_shared
            The smallest share of the reference's genes, by number and by weight, that is enough.
        fractional
            Take other numbers than whole ones as counts, such as expected or cleaned counts.
        """
        counts = Counts.of(adata, layer, batch_key=self.batch_key, fractional=fractional)
        report, blocks = self.mapped(counts, min_shared)
        Z = np.empty((counts.n_cells, self.width), np.float32)
        for lo, block in blocks:
            Z[lo : lo + len(block)] = block
        return Embedded(Z, report, self.record(report))

    def record(self, report: GeneReport) -> dict[str, Any]:
        """Return what goes to ``uns`` with an embedding by this upstream."""
        facts = report.facts() | {"missing": np.array(report.missing, dtype=object)}
        mark = {RECORD: self.fingerprint, "method": self.method, "version": __version__}
        return mark | {"genes": facts}


def digest(method: str, arrays: Mapping[str, np.ndarray], rest: Any) -> str:
    """Return a fingerprint: a checksum over arrays, by name, and over anything that JSON can hold."""
    found = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"))
        found.update(f"|{name} {little.dtype.str} {array.shape}|".encode())
        found.update(little.tobytes())
    return f"{method}:{found.hexdigest()}"
