"""The scikit-learn door: BatchProx, a few lines of glue per verb over the corridor."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..cells import dask as lazy
from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.checks import check_out, one_of, warn_user
from ..core.fit import Fit, Method
from ..core.labels import Labels, population_labels
from ..core.moments import Moments, Pooled, warn_if_barcodes
from ..core.problem import Weights
from ..core.solvers import History, Solver, solver_of
from ..core.solvers.solution import check_rounds
from ..core.target import Cells, TargetRule
from ..errors import BadValue
from ..io import model_file
from ..targets.by_name import target_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BatchProx"]

POLICIES = ("frozen", "refit")


class BatchProx(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Refine an embedding batch by batch, conservatively.

    Every batch gets its own scale and shift per coordinate, :math:`\tilde z = \gamma_b z + \beta_b`,
    pulled towards a target and held back by a proximal and an identity term, as rounds of federated
    optimisation with one client per batch. The number of rounds is the strength of the refinement.

    Parameters
    ----------
    target
        ``"moment"``: every batch to the mean and spread of all cells, as in the paper.
        ``"population"``: each batch's own populations to what they match in other batches, and what
        matches nothing follows its batch. Or a target object, which carries the options of the target:
        :class:`MomentTarget` (such as ``MomentTarget(variance_matching=False)``) or
        :class:`PopulationTarget`.
    solver
        ``"exact"`` (closed form), ``"adam"`` (the paper's optimiser), or a solver object such as
        ``Adam(seed=1)``, which carries the options of its own.
    rounds
        Rounds of the federated procedure; ``None`` is their fixed point (exact solver only). Few
        rounds are conservative. In few rounds small batches move less than large ones, since a
        client's share of the average is its share of the cells. ``"auto"`` is 3 for the moment
        target, and 10 for the population target: rounds of registration after the first, coarse ones.
        0 is the identity.
    lambda_target
        Weight of the distance to the target, or of the evidence for one.
    mu
        Weight of the proximal term, the pull to the round before; 0 is "without FedProx".
    lambda_id
        Weight of the identity term, the pull to no change at all; 0 is "without identity".
    strength
        How much of the refinement to apply, 0 (none: every cell stays exactly where it is) to 1.

    Attributes
    ----------
    fit_ : Fit
        Everything that was fitted: moments, adapter, history, and the consensus of the population target.
    adapter_ : Adapter
        The fitted map; also as ``batches_`` (B,), and ``scale_`` and ``shift_`` (R, d), with one row per
        batch, or per population.
    moments_ : Moments
        What was seen of the cells: number, mean and spread of each batch.
    history_ : History
        Objective, distance to the target and step size of every round.
    rounds_ : int or None
        Rounds that were run; ``None`` is the fixed point.
    converged_ : bool
        Whether another round would change next to nothing.
    provenance_ : dict
        Where the cells came from, as far as the door that read them knows; saved with the model.
    diagnosis_ : DataFrame
        What the refinement did to each batch, where the door that read the cells looked at it.
    n_features_in_ : int
        Number of coordinates d.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import BatchProx
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(300, 10))
    >>> batch = np.repeat(["a", "b", "c"], 100)
    >>> Z[batch == "b"] += 2.0
    >>> refined = BatchProx(rounds=None).fit_transform(Z, batch=batch)
    >>> offset = lambda Z: np.abs(Z[batch == "a"].mean(0) - Z[batch == "b"].mean(0)).mean()
    >>> bool(offset(refined) < offset(Z) / 10)
    True
    """

    def __init__(
        self,
        target: str | TargetRule = "moment",
        solver: str | Solver = "exact",
        rounds: int | str | None = "auto",
        lambda_target: float = 0.5,
        mu: float = 1e-3,
        lambda_id: float = 1e-3,
        strength: float = 1.0,
    ) -> None:
        self.target = target
        self.solver = solver
        self.rounds = rounds
        self.lambda_target = lambda_target
        self.mu = mu
        self.lambda_id = lambda_id
        self.strength = strength

    def fit(self, X: Any, y: object = None, *, batch: Any = None, population: Any = None) -> Self:
        """Fit to the cells ``X`` (N, d) and their batches; ``batch=None`` is one batch.

        A Dask array is read block by block, on the active scheduler; refining one gives a Dask array.
        ``population`` is a label per cell that tells what its batch is made of, for the population
        target, which finds populations itself otherwise. ``y`` is ignored; scikit-learn passes it.
        """
        self._take_in(None, X, batch, y, population)
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
        """Take in more cells (N, d) without reading an old one.

        Parameters
        ----------
        X, y, batch, population
            As for :meth:`fit`. The first call is a :meth:`fit`. More cells of a known batch join the
            populations that it has, which is not the same as finding them anew in all of its cells.
        policy
            ``"frozen"`` leaves every row of the adapter as it is, to the bit, and adds rows for new
            batches, each fitted to the reference alone: any order of arrival gives the same rows.
            More cells of a known batch are counted, and move nothing.
            ``"refit"`` fits all rows anew, equal to a :meth:`fit` on all cells.
        """
        one_of("policy", policy, POLICIES)
        self._take_in(self._before, X, batch, y, population, policy)
        return self

    def transform(self, X: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Refine cells of batches seen when fitting; ``out`` takes the result, and may be ``X``."""
        Z, adapter = self._checked(X)
        return adapter.apply(Z, lazy.in_memory(batch), out=out)

    def fit_transform(
        self,
        X: Any,
        y: object = None,
        *,
        batch: Any = None,
        population: Any = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Fit to the cells ``X`` and refine them; ``out`` takes the result, and may be ``X``."""
        Z, labels = self._take_in(None, X, batch, y, population, out=out)
        return lazy.adapter_for(Z, self.adapter_).apply_finite(Z, labels, out)

    def inverse_transform(
        self, X: Any, batch: Any = None, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Take refined cells back to their unrefined positions."""
        Z, adapter = self._checked(X)
        return adapter.inverse(Z, lazy.in_memory(batch), out=out)

    def describe(self, cells: Cells, population: Labels | None = None) -> Moments:
        """Return what the target must know of cells, wherever they are; fitting needs no more.

        Cells of batches that were seen before are described by the rows that these have.
        """
        before = self._before
        known = None if before is None else before.moments
        return self._method(before).rule.describe(cells, known, population)

    def describe_apart(
        self, cells: MemoryCells | lazy.DaskCells, population: Labels | None = None
    ) -> Moments:
        """:meth:`describe`, with each batch looked at alone.

        Sums depend on the order of additions in their last bit; this way they do not depend on which
        batches arrive together.
        """
        if population is not None:
            return self.describe(cells, population)
        return reduce(Moments.merge, (self.describe(one) for one in cells.by_batch()))

    def fit_moments(self, moments: Moments, cells: tuple[Any, Labels] | None = None) -> Self:
        """Fit to the moments of cells that are elsewhere: on disk, on a cluster, or long gone.

        They are what :meth:`describe` of an unfitted model returns. ``cells`` (the embedding and its
        labels) are for a solver that visits them again.
        """
        warn_if_barcodes(moments)
        fit = Fit.of(self._method(), moments, cells)
        self.n_features_in_ = moments.n_dims
        return self._keep(fit)

    def fit_pooled(self, own: Moments, pooled: Pooled) -> Self:
        """Fit the batches that are here, given only sums over all batches (these among them).

        The rows are those that a :meth:`fit` to the cells of all batches would give: nothing else is ever
        needed of other batches. For the moment target.
        """
        if pooled.mean.shape != (own.n_dims,):
            raise BadValue(
                f"Expected sums over cells with {own.n_dims} coordinates, as here, found "
                f"{pooled.mean.size}."
            )
        if pooled.n_cells < own.n_cells or pooled.n_batches < own.batches.size:
            raise BadValue(
                f"Expected sums over all cells, the {own.n_cells} in {own.batches.size} batches here "
                f"among them, found {pooled.n_cells} cells in {pooled.n_batches} batches."
            )
        fit = Fit.of(self._method(), own, pooled=pooled)
        self.n_features_in_ = own.n_dims
        return self._keep(fit)

    def partial_fit_moments(self, more: Moments, *, policy: str = "frozen") -> Self:
        """:meth:`partial_fit` to the moments of cells that are elsewhere; see :meth:`describe`."""
        one_of("policy", policy, POLICIES)
        before = self._before
        if before is None:
            return self.fit_moments(more)
        return self._grow(before, more, policy)

    def forget(self, batch: Hashable) -> Self:
        """Be as if a batch had never been seen: exact, from the moments kept of the others.

        Forgetting a batch of the reference fits the others anew, since it had a part in their target.
        Forgetting one that was added to a frozen reference removes its rows.
        """
        check_is_fitted(self)
        method = self._method(self.fit_)
        if batch in self.fit_.reference.batches.tolist():
            _needs_moments_only(method.solver, "forget")
        return self._keep(self.fit_.forgotten(batch, method))

    def movement(self) -> pd.DataFrame:
        """Return how far each batch moved and how much it was scaled, one row per batch."""
        check_is_fitted(self)
        return self.movement_of(self.fit_.moments)

    def movement_of(self, moments: Moments) -> pd.DataFrame:
        """Return :meth:`movement` for some of the batches, or other cells of them; see :meth:`describe`."""
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
        model = cls(**saved.params)
        model._keep(saved.fit(model._method(consensus=saved.consensus)))
        model.provenance_ = saved.provenance
        model.n_features_in_ = model.adapter_.n_dims
        if saved.feature_names is not None:
            model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return model

    @property
    def adapter_(self) -> Adapter:
        """The fitted map."""
        return self._fitted("adapter_").adapter

    @property
    def batches_(self) -> np.ndarray:
        """(B,) batches seen when fitting, sorted."""
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
        """Moments of all cells seen so far, per batch."""
        return self._fitted("moments_").moments.by_batch

    @property
    def history_(self) -> History:
        """What every round did."""
        return self._fitted("history_").history

    @property
    def converged_(self) -> bool:
        """Whether another round would change next to nothing."""
        return self._fitted("converged_").converged

    @property
    def rounds_(self) -> int | None:
        """Rounds that were run; ``None`` is the fixed point."""
        return self._fitted("rounds_").method.rounds

    @property
    def target_rule_(self) -> TargetRule:
        """The target that was fitted to, as an object."""
        return self._fitted("target_rule_").method.rule

    def _take_in(
        self,
        before: Fit | None,
        X: Any,
        batch: Any,
        y: object,
        population: Any = None,
        policy: str = "frozen",
        out: np.ndarray | None = None,
    ) -> tuple[Any, Labels]:
        """Fit to cells, after what was fitted before; ``None`` is a new start."""
        # Everything is checked and solved before the first attribute is set: a failed fit leaves
        # an earlier one as it was.
        method = self._method(before)
        Z = lazy.check_cells(X)
        if before is not None:
            validate_data(self, X, reset=False, skip_check_array=True)
        labels = _labels(Z, batch, y)
        given = None
        if population is not None:
            given = population_labels(lazy.in_memory(population), Z.shape[0])
        if lazy.is_lazy(Z):
            lazy.refuse(method.solver, out)
        elif out is not None:
            check_out(out, Z)
        cells = lazy.cells_of(Z, labels)
        if before is not None:
            self._grow(before, self.describe_apart(cells, given), policy)
            return Z, labels
        moments = method.rule.describe(cells, population=given)
        warn_if_barcodes(moments)
        fit = Fit.of(method, moments, None if lazy.is_lazy(Z) else (Z, labels))
        validate_data(self, X, skip_check_array=True)  # notes the number and names of coordinates
        self._keep(fit)
        return Z, labels

    def _grow(self, before: Fit, more: Moments, policy: str) -> Self:
        method = self._method(before)
        if policy == "refit":
            _needs_moments_only(method.solver, "partial_fit")
            return self._keep(before.refitted(more, method))
        added = before.new_batches(more)
        if added.batches.size:
            _needs_moments_only(method.solver, "partial_fit")
            warn_if_barcodes(added)
        self.fit_ = before.grown(more, method)
        return self

    def _keep(self, fit: Fit) -> Self:
        self.fit_ = fit
        self.provenance_: dict[str, Any] = {}
        self.diagnosis_: pd.DataFrame | None = None
        return self

    def _method(self, before: Fit | None = None, consensus: Any = None) -> Method:
        """Return what the parameters stand for, or say which one makes no sense.

        With the constants of an earlier fit, or of its consensus, whatever today's are.
        """
        weights = Weights(self.lambda_target, self.mu, self.lambda_id)
        rule: Any = target_of(self.target)
        consensus = consensus if before is None else before.consensus
        if rule.registers and consensus is not None:
            rule = replace(rule, settings=consensus.settings)
        rounds = rule.default_rounds if self.rounds == "auto" else check_rounds(self.rounds)
        return Method(rule, solver_of(self.solver), rounds, weights, self.strength)

    def _checked(self, X: Any) -> tuple[Any, Adapter | lazy.LazyAdapter]:
        check_is_fitted(self)
        Z = lazy.check_cells(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        return Z, lazy.adapter_for(Z, self.adapter_)

    @property
    def _before(self) -> Fit | None:
        fit: Fit | None = vars(self).get("fit_")
        return fit

    def _fitted(self, name: str) -> Fit:
        fit = self._before
        if fit is None:
            # What `hasattr` and scikit-learn's checks expect of a fitted attribute before fitting.
            raise AttributeError(f"Expected a fitted BatchProx for {name}, found an unfitted one.")
        return fit

    def __sklearn_is_fitted__(self) -> bool:
        return self._before is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _labels(Z: Any, batch: Any, y: object) -> Labels:
    if y is not None and batch is None:
        warn_user(
            "Expected labels as batch=..., found only y, which is ignored: all cells are one batch and "
            "nothing will move."
        )
    return Labels.of(lazy.in_memory(batch), Z.shape[0])


def _needs_moments_only(solver: Solver, verb: str) -> None:
    if solver.needs_cells:
        raise BadValue(
            f"Expected a solver that needs only moments for {verb} (solver='exact'), found "
            f"{solver!r}, which would have to visit the old cells."
        )
