"""BatchProx, a scikit-learn estimator: each method is a few lines around the core."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..cells import dask as lazy
from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.checks import check_out, is_numeric, like, one_of, warn_user
from ..core.fit import Fit, Method
from ..core.labels import Labels, population_labels
from ..core.moments import Moments, Pooled, warn_if_barcodes
from ..core.solvers import History, Solver, Visited
from ..core.target import Cells, Evidence, Exchange, TargetRule, Trace, itself
from ..errors import BadKey, BadValue, Parameter
from ..io import model_file
from ..options import Options, described
from ..targets.method import method_of
from .record import find_record, fitted_html, fitted_text

if TYPE_CHECKING:
    import anndata as ad
    import mudata
    import pandas as pd

__all__ = ["BatchProx"]

POLICIES = ("frozen", "refit")


class BatchProx(Options, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Refine an embedding batch by batch, conservatively.

    Every batch gets its own scale and shift per coordinate, :math:`\tilde z = \gamma_b z + \beta_b`.
    They are fitted in rounds of federated optimisation with one client per batch: a target attracts them,
    a proximal and an identity term hold them back. More rounds refine more.

    Parameters
    ----------
    {options}

    Attributes
    ----------
    fit_ : Fit
        All results: moments, adapter, history, and the consensus and evidence of the population target.
    adapter_ : Adapter
        The fitted map; also as ``batches_`` (B,), and ``scale_`` and ``shift_`` (R, d), with one row per
        batch, or per population.
    moments_ : Moments
        Number of cells, mean and sum of squared deviations of each batch.
    history_ : History or Trace
        The rounds. Of a solver: objective, distance to the target and step size. Of the population target:
        how much of a batch met others, and how far populations have moved.
    evidence_ : Evidence
        What the target found out about each batch; empty for the moment target. ``evidence_.frame()`` is a
        table.
    rounds_ : int or None
        Rounds that were run; ``None`` is the fixed point.
    converged_ : bool
        Whether the last round changed the adapter by less than a millionth of its total change. Rounds of
        the population target have no fixed point: always ``False``.
    provenance_ : dict
        The source of the cells, if they were read from a file; saved with the model.
    diagnosis_ : DataFrame
        What the refinement did to each batch; ``None`` if this was not examined.
    n_features_in_ : int
        Number of coordinates d.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import BatchProx
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(600, 10)) + 12.0 * np.eye(10)[rng.integers(0, 4, 600)]  # four types
    >>> batch = np.repeat(["a", "b", "c"], 200)
    >>> Z[batch == "b"] += 2.0
    >>> refined = BatchProx().fit_transform(Z, batch=batch)
    >>> offset = lambda Z: np.abs(Z[batch == "a"].mean(0) - Z[batch == "b"].mean(0)).mean()
    >>> bool(offset(refined) < offset(Z) / 5)
    True
    """

    def fit(self, X: Any, y: object = None, *, batch: Any = None, population: Any = None) -> Self:
        """Fit to the cells ``X`` (N, d) and their batches; ``batch=None`` is one batch.

        A Dask array is read block by block on the active scheduler, and refining it gives a Dask array.
        ``population`` is the population of each cell, for the population target; without it the target
        finds populations itself.

        ``y`` is ignored if ``batch`` is given: a pipeline passes the ``y`` of its last step to all steps.
        Without ``batch`` a ``y`` is probably labels in the wrong place. It is an error, unless it is numbers:
        scikit-learn passes these to every estimator, so they give one batch and a warning.
        """
        self._fit_cells(None, X, batch, y, population)
        return self

    def partial_fit(
        self,
        X: Any,
        y: object = None,
        *,
        batch: Any = None,
        population: Any = None,
        policy: str = "frozen",
    ) -> Self:
        """Add more cells (N, d), without reading earlier ones again.

        Parameters
        ----------
        X, y, batch, population
            As for :meth:`fit`. The first call is a :meth:`fit`. More cells of a known batch are added to
            its existing populations; finding populations in all of its cells could give others.
            Any ``y`` without ``batch`` is an error if the model was fitted to labelled batches.
        policy
            ``"frozen"`` leaves every row of the adapter exactly as it is, and adds rows for new batches.
            Each is fitted only to the reference, so the order of arrival does not matter. More cells of a
            known batch are counted, but no row changes.
            ``"refit"`` fits all rows again, as :meth:`fit` on all cells would.
        """
        one_of("policy", policy, POLICIES)
        self._fit_cells(self._previous, X, batch, y, population, policy)
        return self

    def transform(self, X: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Refine cells of fitted batches; the result is written to ``out``, which may be ``X``."""
        return self._mapped("apply", X, batch, out)

    def fit_transform(
        self,
        X: Any,
        y: object = None,
        *,
        batch: Any = None,
        population: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Fit to the cells ``X`` and refine them; the result is written to ``out``, which may be ``X``."""
        cells = self._fit_cells(None, X, batch, y, population, out=out)
        return like(self.refined(cells, out), X if out is None else out)

    def inverse_transform(
        self, X: Any, batch: Any = None, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the unrefined positions of refined cells."""
        return self._mapped("inverse", X, batch, out)

    def fit_cells(
        self, cells: Cells, population: Labels | None = None, visited: Visited | None = None
    ) -> Self:
        """Fit to cells in memory, in Dask or in a file.

        ``visited`` are the ``cells`` of :meth:`fit_moments`; those in memory are visited themselves.
        """
        method = self._method()
        if isinstance(cells, lazy.DaskCells):
            lazy.check_supported(method.solver)
        return self._set_anew(_fit_of(method, cells, population, visited))

    def refined(
        self, cells: MemoryCells | lazy.DaskCells, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Refine the cells that the model was just fitted to: they are known to be finite."""
        moments = self.fit_.moments
        largest = float((np.abs(moments.mean) + np.sqrt(moments.m2)).max())
        adapter = lazy.adapter_for(cells.Z, self.adapter_)
        return adapter.apply_finite(cells.Z, cells.labels, out, largest=largest)

    def describe(self, cells: Cells, population: Labels | None = None) -> Moments:
        """Return the moments of cells in memory, in Dask or in a file; fitting needs nothing else.

        Cells of batches that were fitted before are summarised by the existing rows of these batches.
        """
        before = self._previous
        known = None if before is None else before.moments
        return self._method(before).rule.describe(cells, known, population)

    def describe_apart(
        self, cells: MemoryCells | lazy.DaskCells, population: Labels | None = None
    ) -> Moments:
        """As :meth:`describe`, one batch at a time.

        The last bit of a sum depends on the order of additions. This way it does not depend on which
        batches arrive together.
        """
        if population is not None:
            return self.describe(cells, population)
        return reduce(Moments.merge, (self.describe(one) for one in cells.by_batch()))

    def fit_moments(self, moments: Moments, cells: Visited | None = None) -> Self:
        """Fit to moments, without the cells, which may be on disk, on a cluster or deleted.

        ``moments`` are what :meth:`describe` of an unfitted model returns. ``cells`` (the embedding, its
        labels, and optionally a function that is called as ``progress("rounds", done, total)`` after every
        round) are needed by a solver that visits cells, such as ``"adam"``.
        """
        warn_if_barcodes(moments.by_batch.n)
        return self._set_anew(Fit.of(self._method(), moments, cells))

    def fit_pooled(self, own: Moments, pooled: Pooled, exchange: Exchange = itself) -> Self:
        """Fit some batches, given their own moments and sums over all batches, including these.

        The rows equal those of a :meth:`fit` to the cells of all batches. The moment target needs nothing
        else. The population target needs more sums, which ``exchange`` adds up: it takes the sums (n,) of
        these batches, and returns those over all batches. It may raise to stop the fit.
        """
        if pooled.mean.shape != (own.n_dims,):
            raise BadValue(
                f"Expected sums over cells with {own.n_dims} coordinates, as in these batches, found "
                f"{pooled.mean.size}."
            )
        if pooled.n_cells < own.n_cells or pooled.n_batches < own.batches.size:
            raise BadValue(
                f"Expected sums over all cells, including the {own.n_cells} in these {own.batches.size} "
                f"batches, found {pooled.n_cells} cells in {pooled.n_batches} batches."
            )
        return self._set_anew(Fit.of(self._method(), own, pooled=pooled, exchange=exchange))

    def published(self) -> BatchProx:
        """Return the model without its batches, for others to add theirs to (:meth:`partial_fit`).

        It has the number, mean and spread of all cells together, and the consensus of the population target,
        but nothing of a single batch.
        """
        check_is_fitted(self)
        model = BatchProx(**self.get_params(deep=False))._set_anew(self.fit_.published())
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_
        return model

    def partial_fit_moments(self, more: Moments, *, policy: str = "frozen") -> Self:
        """As :meth:`partial_fit`, from moments; see :meth:`describe`."""
        one_of("policy", policy, POLICIES)
        before = self._previous
        if before is None:
            return self.fit_moments(more)
        return self._grow(before, more, policy)

    def forget(self, batch: Hashable) -> Self:
        """Remove a batch: the result is exactly the model that was never given it.

        After removing a batch of the reference the others are fitted again, from their moments, because it
        contributed to their target. Of a batch that was added to a frozen reference only the rows are
        removed.
        """
        check_is_fitted(self)
        self._check_unchanged(self.fit_)
        if batch in self.fit_.reference.batches.tolist():
            _needs_moments_only(self.fit_.method.solver, "forget")
        return self._set_fit(self.fit_.forgotten(batch), self.provenance_)

    def movement(self) -> pd.DataFrame:
        """Return how far each batch moved and how much it was scaled, one row per batch."""
        check_is_fitted(self)
        return self.movement_of(self.fit_.moments)

    def movement_of(self, moments: Moments) -> pd.DataFrame:
        """As :meth:`movement`, for the batches and cells that these moments describe."""
        check_is_fitted(self)
        return self.adapter_.movement(moments)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a file (safetensors, no pickle); :meth:`load` reads it back."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        columns = None if names is None else names.tolist()
        model_file.save(path, self.fit_, self.get_params(deep=False), self.provenance_, columns)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model written by :meth:`save`."""
        saved = model_file.load(path)
        with model_file.checked(path):
            return cls._of(saved)

    @classmethod
    def from_anndata(cls, adata: ad.AnnData | mudata.MuData, key: str | None = None) -> Self:
        """Return the model that :func:`scbatchprox.refine` or ``refine_file`` wrote, without a second fit.

        Parameters
        ----------
        adata
            An AnnData or MuData with a refined embedding.
        key
            The key of the refined embedding, such as ``"X_pca_batchprox"`` (``"rna:X_pca_batchprox"`` of a
            MuData); not needed if there is only one.

        Examples
        --------
        >>> import anndata as ad
        >>> import numpy as np
        >>> import pandas as pd
        >>> from scbatchprox import BatchProx, refine
        >>> obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 50)}, map(str, range(100)))
        >>> Z = np.random.default_rng(0).normal(size=(100, 5))
        >>> adata = ad.AnnData(obs=obs, obsm={"X_pca": Z})
        >>> refine(adata, "batch")
        >>> model = BatchProx.from_anndata(adata)
        >>> refined = model.transform(Z, batch=obs["batch"])
        >>> bool((refined == adata.obsm["X_pca_batchprox"]).all())
        True
        """
        found = find_record(adata, key)
        place = f"uns[{found.key!r}]"
        if "model" not in found.values:
            raise BadKey(
                f"Expected a model in {place}, found a record without one: of an earlier version, or of a "
                f"target or solver that cannot be saved."
            )
        with model_file.checked(place):
            return cls._of(model_file.from_record(found.values, "model"))

    @classmethod
    def _of(cls, saved: model_file.Saved) -> Self:
        model = cls(**saved.params)
        model.check_params()
        model._set_anew(saved.fit)
        model.provenance_ = saved.provenance
        if saved.feature_names is not None:
            model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return model

    def check_params(self) -> None:
        """Raise an error for parameters that are not allowed; otherwise fitting does so."""
        self._method()

    @property
    def adapter_(self) -> Adapter:
        """The fitted map."""
        return self._fitted("adapter_").adapter

    @property
    def batches_(self) -> np.ndarray:
        """(B,) fitted batches, sorted."""
        return self._fitted("batches_").adapter.batches

    @property
    def scale_(self) -> np.ndarray:
        """(R, d) scale of each row."""
        return self._fitted("scale_").adapter.scale

    @property
    def shift_(self) -> np.ndarray:
        """(R, d) shift of each row."""
        return self._fitted("shift_").adapter.shift

    @property
    def moments_(self) -> Moments:
        """Moments of all cells so far, per batch."""
        return self._fitted("moments_").moments.by_batch

    @property
    def history_(self) -> History | Trace:
        """The rounds: of a solver, or of the registration of the population target."""
        return self._fitted("history_").history

    @property
    def evidence_(self) -> Evidence:
        """What the target found out about each batch."""
        return self._fitted("evidence_").evidence

    @property
    def converged_(self) -> bool:
        """Whether the last round changed the adapter by less than a millionth of its total change."""
        return self._fitted("converged_").converged

    @property
    def rounds_(self) -> int | None:
        """Rounds that were run; ``None`` is the fixed point."""
        return self._fitted("rounds_").method.rounds

    @property
    def target_rule_(self) -> TargetRule:
        """The target that was fitted to, as an object."""
        return self._fitted("target_rule_").method.rule

    def _fit_cells(
        self,
        before: Fit | None,
        X: Any,
        batch: Any,
        y: object,
        population: Any = None,
        policy: str = "frozen",
        out: np.ndarray | None = None,
    ) -> MemoryCells | lazy.DaskCells:
        """Fit to cells, adding them to the fit ``before``; ``None`` starts from nothing."""
        # Everything is checked and solved before the first attribute is set, so that a failed fit
        # leaves an earlier one unchanged.
        method = self._method(before)
        Z = lazy.check_cells(X)
        if before is not None:
            validate_data(self, X, reset=False, skip_check_array=True)
        if y is not None and batch is None:
            _check_no_labels(y, before)
        labels = Labels.of(lazy.in_memory(batch), Z.shape[0])
        populations = population_labels(lazy.in_memory(population), Z.shape[0])
        if lazy.is_lazy(Z):
            lazy.check_supported(method.solver, out)
        elif out is not None:
            check_out(out, Z)
        cells = lazy.cells_of(Z, labels)
        if before is not None:
            self._grow(before, self.describe_apart(cells, populations), policy)
            return cells
        fit = _fit_of(method, cells, populations)
        validate_data(self, X, skip_check_array=True)  # sets n_features_in_ and feature_names_in_
        self._set_fit(fit)
        return cells

    def _grow(self, before: Fit, more: Moments, policy: str) -> Self:
        if policy == "refit":
            method = self._method(before)
            _needs_moments_only(method.solver, "partial_fit")
            return self._set_fit(before.refitted(more, method), self.provenance_)
        self._check_unchanged(before)
        added = before.new_batches(more)
        if added.batches.size:
            _needs_moments_only(before.method.solver, "partial_fit")
            warn_if_barcodes(added.by_batch.n)
        return self._set_fit(before.grown(more), self.provenance_)

    def _set_fit(self, fit: Fit, provenance: dict[str, Any] | None = None) -> Self:
        """Set all that depends on a fit; the provenance of an earlier one stays if that was only changed."""
        self.fit_ = fit
        self.provenance_: dict[str, Any] = dict(provenance or {})
        if "n_cells" in self.provenance_:
            self.provenance_["n_cells"] = fit.moments.n_cells
        self.diagnosis_: pd.DataFrame | None = None
        return self

    def _set_anew(self, fit: Fit) -> Self:
        """As :meth:`_set_fit`, after a fit to moments, which have no names of coordinates."""
        self.n_features_in_ = fit.adapter.n_dims
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._set_fit(fit)

    def _method(self, before: Fit | None = None) -> Method:
        """Return the parameters as a method, with the constants of an earlier fit if there is one."""
        consensus = None if before is None else before.consensus
        return method_of(self, consensus)

    def _check_unchanged(self, before: Fit) -> None:
        """Old and new rows must be fitted by one method."""
        now = self._method(before)
        if now == before.method:
            return
        changed = [
            f"{f.name}={getattr(now, f.name)!r}"
            for f in fields(now)
            if getattr(now, f.name) != getattr(before.method, f.name)
        ]
        raise BadValue(
            f"Expected the parameters that the model was fitted with, found {', '.join(changed)} set since; "
            f"fit anew (", Parameter("policy='refit'"), ").",
        )  # fmt: skip

    def _mapped(self, verb: str, X: Any, batch: Any, out: np.ndarray | None) -> np.ndarray:
        check_is_fitted(self)
        Z = lazy.check_cells(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        work = getattr(lazy.adapter_for(Z, self.adapter_), verb)
        return like(work(Z, lazy.in_memory(batch), out=out), X if out is None else out)

    @property
    def _previous(self) -> Fit | None:
        fit: Fit | None = vars(self).get("fit_")
        return fit

    def _fitted(self, name: str) -> Fit:
        fit = self._previous
        if fit is None:
            # `hasattr` and scikit-learn's checks expect this error before fitting.
            raise AttributeError(f"Expected a fitted BatchProx for {name}, found an unfitted one.")
        return fit

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        shown: str = super().__repr__(N_CHAR_MAX)
        return shown if self._previous is None else f"{shown}\n{fitted_text(self)}"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if self._previous is not None and "text/html" in bundle:
            bundle["text/html"] += fitted_html(self)
        return bundle

    def __sklearn_is_fitted__(self) -> bool:
        return self._previous is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


BatchProx.__doc__ = described(BatchProx.__doc__)


def _fit_of(
    method: Method, cells: Cells, population: Labels | None, visited: Visited | None = None
) -> Fit:
    warn_if_barcodes(cells.labels.n)  # before minutes are spent on them
    if visited is None and isinstance(cells, MemoryCells):
        visited = cells.Z, cells.labels
    return Fit.of(method, method.rule.describe(cells, population=population), visited)


def _check_no_labels(y: object, before: Fit | None) -> None:
    """Raise if ``y`` without ``batch`` must be labels, and warn if it may be a target of scikit-learn's."""
    labelled = before is not None and before.moments.batches.tolist() != ["all"]
    if labelled or not is_numeric(y):
        raise BadValue("Expected labels as batch=..., found them as y.")
    warn_user(
        "Expected labels as batch=..., found only y, which is ignored: all cells are one batch and "
        "no cell will move."
    )


def _needs_moments_only(solver: Solver, verb: str) -> None:
    if solver.needs_cells:
        raise BadValue(
            f"Expected a solver that needs only moments for {verb} (", Parameter("solver='exact'"),
            f"), found {solver!r}, which needs the earlier cells.",
        )  # fmt: skip
