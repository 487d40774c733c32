"""scVI's network from arrays and back: built, trained and evaluated without lasting side effects.

Weights are kept as plain arrays, and the network is built again when it is needed. The reason: scvi-tools
saves models as pickles, and keeps every AnnData that a model was used with.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from ..errors import BadValue, MissingExtra, Parameter

__all__ = ["Cells", "build", "encode", "retrain", "train"]

BATCH = "batch"
Weights = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Cells:
    """Counts with the genes and batches of a network, in its order."""

    counts: sp.csr_matrix
    genes: np.ndarray
    batch: Sequence[str]
    batches: tuple[str, ...]

    def as_anndata(self) -> ad.AnnData:
        """Return a new AnnData that scVI may write to."""
        return ad.AnnData(
            self.counts.astype(np.float32),
            obs=pd.DataFrame(
                {BATCH: pd.Categorical(self.batch, self.batches)},
                index=pd.RangeIndex(len(self.batch)).astype(str),
            ),
            var=pd.DataFrame(index=pd.Index(self.genes)),
        )


def train(
    cells: Cells, params: dict[str, Any], max_epochs: int | None, seed: int, verbose: bool
) -> Weights:
    """Train a new network and return its weights."""
    _check_epochs(max_epochs)
    with _quietly(verbose) as scvi, _seeded(seed):
        model = _model(scvi, cells, params)
        _fit(model, max_epochs, verbose)
        _forget(model)
        return _weights(model)


def retrain(
    model: Any,
    old: tuple[str, ...],
    cells: Cells,
    max_epochs: int | None,
    seed: int,
    verbose: bool,
) -> Weights:
    """Train only the weights of new batches, as scArches does, and return all weights."""
    _check_epochs(max_epochs)
    with _quietly(verbose) as scvi, _seeded(seed):
        before = _weights(model)
        query = scvi.model.SCVI.load_query_data(cells.as_anndata(), model, accelerator="cpu")
        if len(old) == 1:
            _zero_first_batch(query, before)
        # No weight decay: it would shrink the fixed weights.
        _fit(query, max_epochs, verbose, plan_kwargs={"weight_decay": 0.0})
        _forget(query)
        return _weights(query)


def build(
    genes: np.ndarray, batches: tuple[str, ...], params: dict[str, Any], weights: Weights
) -> Any:
    """Return the network with these weights."""
    n = 3 * len(batches)  # scVI warns about batches with fewer than three cells
    empty = Cells(sp.csr_matrix((n, genes.size)), genes, list(batches) * 3, batches)
    with _quietly() as scvi, _seeded(0):
        model = _model(scvi, empty, params)
        import torch

        state = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
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


def encode(model: Any, counts: sp.csr_matrix, codes: np.ndarray) -> np.ndarray:
    """Return the mean coordinates of cells; ``codes`` number their batches as in the network."""
    import torch

    tensors = {
        "X": torch.from_numpy(counts.toarray()),
        "batch": torch.from_numpy(codes.astype(np.int64)[:, None]),
    }
    with _quietly(), _seeded(0):  # it also draws a random sample, which is not used
        found: np.ndarray = model.get_latent_representation(dataloader=[tensors])
    return found


def _model(scvi: Any, cells: Cells, params: dict[str, Any]) -> Any:
    adata = cells.as_anndata()
    scvi.model.SCVI.setup_anndata(adata, batch_key=BATCH)
    return scvi.model.SCVI(adata, **params)


def _fit(model: Any, max_epochs: int | None, verbose: bool, **options: Any) -> None:
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


def _weights(model: Any) -> Weights:
    return {name: value.numpy().copy() for name, value in model.module.state_dict().items()}


def _forget(model: Any) -> None:
    """Remove the cells of a model from scvi-tools, whose class would keep them in memory."""
    model.deregister_manager(model.adata)


def _zero_first_batch(query: Any, before: Weights) -> None:
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


def _check_epochs(max_epochs: int | None) -> None:
    whole = isinstance(max_epochs, int | np.integer) and not isinstance(max_epochs, bool)
    if max_epochs is not None and not (whole and max_epochs > 0):
        raise BadValue(
            "Expected ", Parameter("max_epochs"), f" to be a whole number of at least 1, found "
            f"{max_epochs!r}.",
        )  # fmt: skip
