"""The interface of all upstreams: a fixed map from counts to coordinates, with a unique fingerprint."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import anndata as ad
import numpy as np

from .._version import __version__
from ..core.shown import PrintsFacts, count
from ..errors import BadValue
from ..io import store
from .counts import Counts
from .genes import MIN_SHARED, GeneReport

__all__ = ["KIND", "RECORD", "Embedded", "Upstream", "digest"]

#: The kind of a saved upstream, as in ``docs/file-format.md``.
KIND = "upstream"
#: Entry of ``uns[key]`` with the fingerprint of the upstream that made ``obsm[key]``.
RECORD = "upstream"


@dataclass(frozen=True, eq=False, repr=False)
class Embedded(PrintsFacts):
    """Coordinates of cells, the missing genes, and a record for ``uns``.

    Attributes
    ----------
    Z
        (N, d) float32 coordinates.
    report
        Genes of the reference that the cells lack.
    record
        Entry for ``uns``, next to the coordinates in ``obsm``. It holds the fingerprint of the
        upstream, which an atlas checks.

    Examples
    --------
    >>> from scbatchprox.demo import simulate
    >>> from scbatchprox.upstream import PCAUpstream
    >>> cells = simulate("balanced2", n_genes=200, n_components=5)
    >>> embedded = PCAUpstream.fit(cells, n_components=10).embed(cells)
    >>> embedded.write(cells, "X_reference")
    >>> cells.obsm["X_reference"].shape
    (2400, 10)
    """

    Z: np.ndarray
    report: GeneReport
    record: dict[str, Any]

    def _facts(self) -> str:
        n_cells, n_dims = self.Z.shape
        genes = f"{self.report.n_found:,} of {count(self.report.n_genes, 'gene')}"
        size = f"{count(n_cells, 'cell')}, {count(n_dims, 'coordinate')}"
        return f"{size} from {genes}; {_short(self.record[RECORD])}"

    def write(self, adata: ad.AnnData, key_added: str | None = None) -> None:
        """Write the coordinates to ``obsm`` and the record to ``uns``; by default as X_pca or X_scvi."""
        key = f"X_{self.record['method']}" if key_added is None else key_added
        adata.obsm[key] = self.Z
        adata.uns[key] = self.record


def _short(fingerprint: str) -> str:
    """The beginning of a fingerprint, which is enough to tell it from others."""
    return fingerprint[: fingerprint.index(":") + 9]


class Upstream(PrintsFacts, ABC):
    """A fixed reference: it embeds new cells, and its own cells keep their coordinates.

    Examples
    --------
    >>> from scbatchprox.demo import simulate
    >>> from scbatchprox.upstream import PCAUpstream, Upstream
    >>> cells = simulate("balanced2", n_genes=200, n_components=5)
    >>> pca = PCAUpstream.fit(cells, n_components=10)
    >>> isinstance(pca, Upstream), pca.n_dims, pca.fingerprint[:4]
    (True, 10, 'pca:')
    """

    method: ClassVar[str]
    title: ClassVar[str]
    genes: np.ndarray

    def _facts(self) -> str:
        genes = count(self.n_genes, "gene")
        return f"{count(self.n_dims, 'coordinate')} from {genes}; {_short(self.fingerprint)}"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Checksum that identifies the reference; it does not depend on where the reference is stored."""

    @property
    @abstractmethod
    def n_dims(self) -> int:
        """The number of coordinates."""

    @property
    @abstractmethod
    def n_genes(self) -> int:
        """The number of genes used for the embedding."""

    @property
    def batch_key(self) -> Sequence[str] | None:
        """Columns of ``obs`` that are needed to embed a cell, if any."""
        return None

    @abstractmethod
    def mapped(
        self, counts: Counts, min_shared: float = MIN_SHARED
    ) -> tuple[GeneReport, Iterator[tuple[int, np.ndarray]]]:
        """Return the missing genes, and an iterator over blocks: first row, coordinates."""

    def save(self, path: str | Path) -> None:
        """Write to a file (safetensors, no pickle); :func:`scbatchprox.upstream.load` reads it."""
        tensors, params = self._content()
        named = {"method": self.method, "genes": self.genes.tolist()}
        store.save(path, KIND, tensors, np.empty(0, str), named | params)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote."""
        return cls.from_stored(store.load(path, (KIND,)), path)

    @classmethod
    def from_stored(cls, stored: store.Stored, path: str | Path) -> Self:
        """Return the upstream that a file holds."""
        if stored.params.get("method") != cls.method:
            raise BadValue(
                f"Expected a saved {cls.title}, found {path}, an upstream of another method "
                f"({stored.params.get('method')!r})."
            )
        return cls._of(np.array(stored.params["genes"], dtype=object), stored)

    @abstractmethod
    def _content(self) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
        """What is saved besides the genes: arrays, and what JSON can hold."""

    @classmethod
    @abstractmethod
    def _of(cls, genes: np.ndarray, stored: store.Stored) -> Self: ...

    def embed(
        self,
        adata: ad.AnnData,
        *,
        layer: str | None = None,
        min_shared: float = MIN_SHARED,
        fractional: bool = False,
    ) -> Embedded:
        """Embed cells by their counts, which are read in blocks of rows.

        Parameters
        ----------
        adata
            Cells in memory or backed, with genes in any order. Genes that the reference does not have
            are ignored. Missing genes are filled and reported.
        layer
            Layer with the counts; by default they are in ``X``.
        min_shared
            The smallest accepted share of the reference's genes, by number and by weight.
        fractional
            Accept counts that are not whole numbers, such as expected or cleaned counts.
        """
        counts = Counts.of(adata, layer, batch_key=self.batch_key, fractional=fractional)
        report, blocks = self.mapped(counts, min_shared)
        Z = np.empty((counts.n_cells, self.n_dims), np.float32)
        for lo, block in blocks:
            Z[lo : lo + len(block)] = block
        return Embedded(Z, report, self.record(report))

    def record(self, report: GeneReport) -> dict[str, Any]:
        """Return the entry for ``uns`` that belongs to an embedding by this upstream."""
        facts = report.facts() | {"missing": np.array(report.missing, dtype=object)}
        mark = {RECORD: self.fingerprint, "method": self.method, "version": __version__}
        return mark | {"genes": facts}


def digest(method: str, arrays: Mapping[str, np.ndarray], rest: Any) -> str:
    """Return a fingerprint: a checksum over named arrays and over ``rest``, which JSON can hold."""
    found = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"))
        found.update(f"|{name} {little.dtype.str} {array.shape}|".encode())
        found.update(little.tobytes())
    return f"{method}:{found.hexdigest()}"
