"""A fixed scVI reference, and surgery: new batches get new weights, all other weights stay fixed.

scVI (Lopez et al. 2018, https://doi.org/10.1038/s41592-018-0229-2) is trained on the first batches. For
batches that come later, scArches (Lotfollahi et al. 2022, https://doi.org/10.1038/s41587-021-01001-7) adds
weights that only cells of those batches use, and trains only these. So cells that were embedded before keep
their coordinates, and all models made from a reference by surgery share its fingerprint.

Weights are kept as plain arrays, and the network is built again when it is needed, without lasting side
effects. The reason: scvi-tools saves models as pickles, and keeps every AnnData that a model was used with.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from ..cells.keys import as_keys
from ..choices import N_HVGS, N_LATENT
from ..core.checks import some_of
from ..errors import BadValue, MissingExtra
from ..io.store import Stored
from .base import Upstream, digest
from .counts import Counts, totals_of
from .genes import MIN_SHARED, GeneReport, check_distinct, check_positive, positions, require_shared
from .sums import chosen_genes

__all__ = ["ScviUpstream"]

BATCH = "batch"

#: The settings that scArches recommends: each batch has its own weights in the encoder too, and nothing
#: else depends on batches. Running means of a batch norm would change with every new batch.
FOR_SURGERY: dict[str, Any] = {
    "encode_covariates": True,
    "use_layer_norm": "both",
    "use_batch_norm": "none",
}


@dataclass(frozen=True, eq=False, repr=False)
class ScviUpstream(Upstream):
    """A fixed scVI model; surgery returns a new one.

    Attributes
    ----------
    genes
        (P,) names of the genes used for the embedding.
    keys
        Columns of ``obs`` with the batch of a cell.
    batches
        Batches with weights, in the order in which they were added.
    params
        Parameters of ``scvi.model.SCVI``.
    weights
        Weights of the network, by name.
    reference
        Fingerprint of the model that was trained first.

    Examples
    --------
    Needs the extra ``scvi``.

    >>> from scbatchprox.demo import simulate
    >>> from scbatchprox.upstream import ScviUpstream
    >>> cells = simulate("balanced2", n_genes=100, n_components=5)
    >>> scvi = ScviUpstream.fit(cells, "batch", max_epochs=1)
    >>> len(scvi.embed(cells).Z)
    2400
    """

    genes: np.ndarray
    keys: tuple[str, ...]
    batches: tuple[str, ...]
    params: dict[str, Any]
    weights: dict[str, np.ndarray]
    reference: str

    method: ClassVar[str] = "scvi"
    title: ClassVar[str] = "scVI reference"

    @classmethod
    def fit(
        cls,
        adata: ad.AnnData,
        batch_key: str | Sequence[str],
        *,
        n_latent: int = N_LATENT,
        n_hidden: int = 128,
        n_layers: int = 1,
        for_surgery: bool = True,
        n_hvgs: int = N_HVGS,
        genes: str = "scanpy",
        layer: str | None = None,
        fractional: bool = False,
        max_epochs: int | None = None,
        seed: int = 0,
        verbose: bool = False,
    ) -> Self:
        """Train scVI on the counts of the first batches, on the CPU.

        Parameters
        ----------
        adata, layer, fractional
            As for :meth:`embed`.
        batch_key
            Column of ``obs`` with the batch of each cell; several columns mean their combination.
        n_latent, n_hidden, n_layers
            Number of coordinates, and size of the network; scVI's defaults.
        for_surgery
            Give batches weights in the encoder, and use layer norm instead of batch norm;
            :meth:`surgery` needs both. ``False`` is scVI with its own defaults.
        n_hvgs, genes
            Genes to embed with; as for :meth:`PCAUpstream.fit`.
        max_epochs
            Passes over the cells; ``None`` is scVI's rule, 400 for up to 20,000 cells.
        seed
            Seed of the initial weights and of the order of cells. Global random states do not change.
        verbose
            Show the messages of scVI and Lightning, and a progress bar.
        """
        keys = tuple(as_keys(batch_key))
        source = Counts.of(adata, layer, batch_key=keys, fractional=fractional)
        check_distinct(source.genes)
        counts = source.in_memory()
        used = chosen_genes(genes, n_hvgs, replace(source, rows=counts))
        totals_of(counts[:, used], np.ones(used.size))  # scVI returns NaN for a cell without counts
        batch, names = _names(source.batch), source.genes[used]
        batches = tuple(sorted(set(batch)))
        params: dict[str, Any] = {"n_latent": n_latent, "n_hidden": n_hidden, "n_layers": n_layers}
        params |= FOR_SURGERY if for_surgery else {}
        if max_epochs is not None:
            check_positive("max_epochs", max_epochs)
        with _quietly(verbose) as scvi, _seeded(seed):
            model = _model(scvi, _cells(counts[:, used], names, batch, batches), params)
            weights = _trained(model, max_epochs, verbose)
        mark = digest(cls.method, weights, [names.tolist(), list(keys), list(batches), params])
        return cls(names, keys, batches, params, weights, mark)

    def surgery(
        self,
        adata: ad.AnnData,
        *,
        layer: str | None = None,
        min_shared: float = MIN_SHARED,
        fractional: bool = False,
        max_epochs: int | None = None,
        seed: int = 0,
        verbose: bool = False,
    ) -> Self:
        """Return a model with weights for new batches too, trained only on their cells.

        Cells of known batches get the same coordinates as before. Parameters are those of
        :meth:`fit` and :meth:`embed`.
        """
        if self.params.get("encode_covariates") is not True:
            raise BadValue(
                "Expected a reference with weights for batches in its encoder, found one that was "
                "fitted with for_surgery=False; it embeds cells of any batch without surgery."
            )
        source = Counts.of(adata, layer, batch_key=self.keys, fractional=fractional)
        names = _names(source.batch)
        if known := sorted(set(names) & set(self.batches)):
            raise BadValue(
                f"Expected cells of new batches only, found {some_of(known)}, which already have weights; "
                f"embed them without surgery."
            )
        at, _ = self._aligned(source, min_shared)
        counts = sp.vstack([block for _, block in self._blocks(source, at)], format="csr")
        batches = (*self.batches, *sorted(set(names)))
        if max_epochs is not None:
            check_positive("max_epochs", max_epochs)
        model = self._network()
        with _quietly(verbose) as scvi, _seeded(seed):
            cells = _cells(counts, self.genes, names, batches)
            query = scvi.model.SCVI.load_query_data(cells, model, accelerator="cpu")
            if len(self.batches) == 1:
                _zero_first_batch(query, self.weights)
            # No weight decay: it would shrink the fixed weights.
            weights = _trained(query, max_epochs, verbose, plan_kwargs={"weight_decay": 0.0})
        return replace(self, batches=batches, weights=weights)

    @property
    def fingerprint(self) -> str:
        """Checksum of the reference; surgery does not change it, since no embedded cell moves."""
        return self.reference

    @property
    def n_dims(self) -> int:
        """The number of coordinates."""
        return int(self.params["n_latent"])

    @property
    def n_genes(self) -> int:
        """The number of genes used for the embedding."""
        return self.genes.size

    @property
    def batch_key(self) -> Sequence[str]:
        """Columns of ``obs`` with the batch of a cell."""
        return self.keys

    def mapped(
        self, counts: Counts, min_shared: float = MIN_SHARED
    ) -> tuple[GeneReport, Iterator[tuple[int, np.ndarray]]]:
        """Return the missing genes, and an iterator over blocks: first row, coordinates."""
        at, report = self._aligned(counts, min_shared)
        names = _names(counts.batch)
        new = sorted(set(names) - set(self.batches))
        if new and self.params.get("encode_covariates"):
            raise BadValue(
                f"Expected batches that the reference has weights for, found new {some_of(new)}; "
                f"add them by surgery first; available: {some_of(self.batches)}."
            )
        codes = pd.Index(self.batches).get_indexer(pd.Index(names)).clip(0)
        return report, self._encoded(counts, at, codes)

    def _encoded(
        self, counts: Counts, at: np.ndarray, codes: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        network = self._network()
        import torch

        for lo, block in self._blocks(counts, at):
            batch = codes[lo : lo + block.shape[0]].astype(np.int64)[:, None]
            tensors = {"X": torch.from_numpy(block.toarray()), "batch": torch.from_numpy(batch)}
            with _quietly(), _seeded(0):  # it also draws a random sample, which is not used
                means = network.get_latent_representation(dataloader=[tensors])
            yield lo, means

    def _aligned(self, counts: Counts, min_shared: float) -> tuple[np.ndarray, GeneReport]:
        at = positions(self.genes, counts.genes)
        equal = np.full(at.size, 1.0 / at.size)
        require_shared(self.genes, counts.genes, at >= 0, equal, min_shared)
        return at, GeneReport(at.size, tuple(self.genes[at < 0].tolist()), "zeros")

    @staticmethod
    def _blocks(counts: Counts, at: np.ndarray) -> Iterator[tuple[int, sp.csr_matrix]]:
        """Yield counts of the reference's genes, in its order; missing genes are zero."""
        here = np.flatnonzero(at >= 0)
        for lo, chosen, totals in counts.chosen(at[here], at[here]):
            own = chosen.data.astype(np.float32), here[chosen.indices], chosen.indptr
            yield lo, sp.csr_matrix(own, (totals.size, at.size))

    def _network(self) -> Any:
        """Return scVI's model with these weights."""
        n = 3 * len(self.batches)  # scVI warns about batches with fewer than three cells
        counts = sp.csr_matrix((n, self.genes.size))
        empty = _cells(counts, self.genes, list(self.batches) * 3, self.batches)
        with _quietly() as scvi, _seeded(0):
            model = _model(scvi, empty, self.params)
            import torch

            state = {name: torch.from_numpy(np.array(v)) for name, v in self.weights.items()}
            try:
                model.module.load_state_dict(state)
            except RuntimeError as error:
                raise BadValue(
                    f"Expected weights of an scVI network for scvi-tools {scvi.__version__}, found others "
                    f"({str(error).splitlines()[0]})."
                ) from None
            model.module.eval()
            model.is_trained_ = True
            _forget(model)
            return model

    def _content(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        batches = {"keys": list(self.keys), "batches": list(self.batches)}
        return self.weights, batches | {"scvi": self.params, "reference": self.reference}

    @classmethod
    def _of(cls, genes: np.ndarray, stored: Stored) -> Self:
        keys, batches, params = (stored.params[name] for name in ("keys", "batches", "scvi"))
        reference = stored.params["reference"]
        return cls(genes, tuple(keys), tuple(batches), dict(params), stored.tensors, reference)


def _names(batch: pd.Series | None) -> list[str]:
    """Return the batch of each cell as text, as scVI needs it."""
    assert batch is not None
    if missing := int(batch.isna().sum()):
        raise BadValue(
            f"Expected a batch label for every cell, found {missing} of {len(batch)} without one."
        )
    return [str(name) for name in batch]


def _cells(
    counts: sp.csr_matrix, genes: np.ndarray, batch: Sequence[str], batches: tuple[str, ...]
) -> ad.AnnData:
    """Return a new AnnData that scVI may write to, with genes and batches in the order of a network."""
    return ad.AnnData(
        counts.astype(np.float32),
        obs=pd.DataFrame(
            {BATCH: pd.Categorical(batch, batches)}, index=pd.RangeIndex(len(batch)).astype(str)
        ),
        var=pd.DataFrame(index=pd.Index(genes)),
    )


def _model(scvi: Any, cells: ad.AnnData, params: dict[str, Any]) -> Any:
    scvi.model.SCVI.setup_anndata(cells, batch_key=BATCH)
    return scvi.model.SCVI(cells, **params)


def _trained(
    model: Any, max_epochs: int | None, verbose: bool, **options: Any
) -> dict[str, np.ndarray]:
    """Train a network and return its weights."""
    n = model.adata.n_obs
    model.train(
        max_epochs=max_epochs,
        accelerator="cpu",
        devices=1,
        # All cells are used for training, in the order given by torch's seed. scVI would split them by a
        # global seed.
        train_size=1.0,
        shuffle_set_split=False,
        # The last mini-batch of an epoch must not have one or two cells.
        batch_size=next(size for size in range(128, 0, -1) if n % size not in (1, 2)),
        enable_progress_bar=verbose,
        logger=False,
        **options,
    )
    _forget(model)
    return {name: value.numpy().copy() for name, value in model.module.state_dict().items()}


def _forget(model: Any) -> None:
    """Remove the cells of a model from scvi-tools, whose class would keep them in memory."""
    model.deregister_manager(model.adata)


def _zero_first_batch(query: Any, before: dict[str, np.ndarray]) -> None:
    """Set the weights of the first batch to zero, if the reference had only one batch.

    Such a reference has no weights for batches. Surgery adds random ones for the first batch too, and any
    value but zero would move its cells.
    """
    import torch

    with torch.no_grad():
        for name, value in query.module.state_dict().items():
            if value.shape != before[name].shape:
                value[:, before[name].shape[1]] = 0.0


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch, and restore the states of torch and NumPy; scVI draws a few counts with the latter."""
    import torch

    state = np.random.get_state()  # noqa: NPY002 - to restore it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


@contextmanager
def _quietly(verbose: bool = False) -> Iterator[Any]:
    """Yield scvi-tools without its log messages and warnings; restore loggers and filters afterwards."""
    loggers = [
        logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "scvi")
    ]
    with warnings.catch_warnings():
        if not verbose:
            # A user can do nothing about their warnings (deprecations in each other, networks in
            # evaluation mode during surgery).
            for name in ("lightning", "torch", "scvi", "pyro", "jax", "flax", "docrep", "mudata"):
                warnings.filterwarnings("ignore", module=name)
        try:
            import scvi
        except ImportError:
            raise MissingExtra("scvi-tools for scVI references", "scvi") from None
        levels = [log.level for log in loggers]
        if not verbose:
            for log in loggers:
                log.setLevel(logging.ERROR)
        try:
            yield scvi
        finally:
            for log, level in zip(loggers, levels, strict=True):
                log.setLevel(level)
