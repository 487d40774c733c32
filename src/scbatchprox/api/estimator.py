"""The scikit-learn door: BatchProx, a dozen lines of glue per verb over the corridor."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..cells import dask as lazy
from ..core.checks import check_out, one_of, warn_if_barcodes
from ..core.fit import AnyAdapter, Method, Seen
from ..core.labels import Labels, population_labels
from ..core.moments import Moments
from ..core.populations import Populations
from ..core.problem import Weights
from ..core.solvers import Solution, Solver, solver_of
from ..core.solvers.solution import check_rounds
from ..errors import BadType, BadValue
from ..io import model_file as _model_file
from ..targets.base import Cells, Summary, TargetRule
from ..targets.by_name import target_of
from ..targets.population.target import PopulationTarget

__all__ = ["BatchProx"]


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
        matches nothing follows its batch; see :class:`PopulationTarget`, which may be given itself.
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
    eps
        Added to standard deviations before they are divided (moment target).
    variance_matching
        Match spreads as well as means; ``False`` is "mean-only" (moment target).
    strength
        How much of the refinement to apply, 0 (none: every cell stays exactly where it is) to 1.

    Attributes
    ----------
    adapter_ : Adapter or PopulationAdapter
        The fitted map; also as ``batches_`` (B,), ``scale_`` and ``shift_`` (B, d), or (P, d) with a
        row per population.
    moments_ : Moments
        What was seen of the cells: number, mean and spread of each batch.
    seen_ : Seen
        The same, and what of it the rows were fitted to (it differs after :meth:`partial_fit`), and the
        consensus of the population target.
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
        eps: float = 1e-6,
        variance_matching: bool = True,
        strength: float = 1.0,
    ) -> None:
        self.target = target
        self.solver = solver
        self.rounds = rounds
        self.lambda_target = lambda_target
        self.mu = mu
        self.lambda_id = lambda_id
        self.eps = eps
        self.variance_matching = variance_matching
        self.strength = strength

    def fit(self, X: Any, y: object = None, *, batch: Any = None, population: Any = None) -> Self:
        """Fit to the cells ``X`` (N, d) and their batches; ``batch=None`` is one batch.

        A Dask array is read block by block, on whatever scheduler is active; refining one gives a
        Dask array. ``population`` is a label per cell that tells what its batch is made of, for the
        population target, which otherwise finds out. ``y`` is ignored; it is there since scikit-learn
        passes it.
        """
        self._fit(X, batch, y, population)
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
        Z, labels = self._fit(X, batch, y, population, out)
        return lazy.adapter_for(Z, self.adapter_).apply_finite(Z, labels, out)

    def inverse_transform(
        self, X: Any, batch: Any = None, *, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Take refined cells back to where they came from."""
        Z, adapter = self._checked(X)
        return adapter.inverse(Z, lazy.in_memory(batch), out=out)

    def movement(self) -> pd.DataFrame:
        """Return how far each batch moved and how much it was scaled, one row per batch."""
        check_is_fitted(self)
        return self.movement_of(self.seen_.moments)

    def movement_of(self, summary: Summary) -> pd.DataFrame:
        """Return :meth:`movement` for some of the batches, or other cells of them; see :meth:`describe`."""
        check_is_fitted(self)
        adapter: Any = self.adapter_
        table: pd.DataFrame = adapter.movement(summary)
        return table

    @property
    def batches_(self) -> np.ndarray:
        """(B,) batches seen when fitting, sorted."""
        return self._fitted("batches_").adapter_.batches

    @property
    def scale_(self) -> np.ndarray:
        """(B, d) scale of each batch, or (P, d) of each population."""
        return self._fitted("scale_").adapter_.scale

    @property
    def shift_(self) -> np.ndarray:
        """(B, d) shift of each batch, or (P, d) of each population."""
        return self._fitted("shift_").adapter_.shift

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a file (safetensors, no pickle); :meth:`load` reads it back."""
        check_is_fitted(self)
        _model_file.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model written by :meth:`save`."""
        return _model_file.load(cls, path)

    def describe(self, cells: Cells, population: Labels | None = None) -> Summary:
        """Return what the target must know of cells, wherever they are; fitting needs no more.

        Cells of batches that were seen before are described as those were.
        """
        known = self.seen_.moments if self.__sklearn_is_fitted__() else None
        summary: Summary = self._method(kept=True).rule.describe(cells, known, population)
        return summary

    def fit_moments(self, moments: Summary, cells: tuple[Any, Labels] | None = None) -> Self:
        """Fit to the moments of cells that are elsewhere: on disk, on a cluster, or long gone.

        They are what :meth:`describe` of an unfitted model returns: moments of batches, or of their
        populations. ``cells`` (the embedding and its labels) are for a solver that visits them again.
        """
        self._check_kind(moments)
        fitted = self._together(moments, cells)
        self.n_features_in_ = moments.width
        return self._keep(*fitted)

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
        one_of("policy", policy, ("frozen", "refit"))
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, batch=batch, population=population)
        Z, _ = self._checked(X)
        cells = lazy.LabelledCells(Z, self._labels(Z, batch, y))
        given = self._given(Z, population)
        more = self.describe_apart(cells) if given is None else self.describe(cells, given)
        return self.partial_fit_moments(more, policy=policy)

    def describe_apart(self, cells: lazy.LabelledCells) -> Summary:
        """:meth:`describe`, with each batch looked at alone.

        Sums depend on the order of additions in their last bit; this way they do not depend on which
        batches arrive together.
        """
        parts: list[Any] = [self.describe(one) for one in cells.by_batch()]
        more: Summary = reduce(lambda a, b: a.merge(b), parts)
        return more

    def partial_fit_moments(self, more: Summary, *, policy: str = "frozen") -> Self:
        """:meth:`partial_fit` to the moments of cells that are elsewhere; see :meth:`describe`."""
        one_of("policy", policy, ("frozen", "refit"))
        self._check_kind(more)
        if not self.__sklearn_is_fitted__():
            return self.fit_moments(more)
        seen = self.seen_.add(more)
        if policy == "refit":
            self._needs_moments_only("partial_fit")
            return self._keep(*self._together(seen.moments, kept=True))
        newcomers = self.seen_.newcomers(more)
        adapter = self.adapter_
        if newcomers.batches.size:
            self._needs_moments_only("partial_fit")
            warn_if_barcodes(newcomers.by_batch.n)
            rows: Any = self._method(kept=True).apart(newcomers, seen.reference, seen.consensus)
            adapter = adapter.joined(rows)
        return self._keep(seen, adapter, None)

    def forget(self, batch: Hashable) -> Self:
        """Be as if a batch had never been seen: exact, from the moments kept of the others.

        Forgetting a batch of the reference fits the others anew, as its cells had a part in where
        they are pulled; forgetting one that was added to a frozen reference takes its row away.
        """
        check_is_fitted(self)
        if self.seen_.reference.batches.tolist() == [batch]:
            raise BadValue(
                f"Expected to keep a batch of the reference, found that {batch!r} is its last; "
                f"fit a new model instead."
            )
        added = batch in self.seen_.added.batches.tolist()
        seen = self.seen_.forget(batch)
        if added:
            return self._keep(seen, self.adapter_.without(batch), None)
        self._needs_moments_only("forget")
        return self._keep(*seen.solve(self._method(kept=True)))

    @property
    def moments_(self) -> Moments:
        """Moments of all cells seen so far, per batch."""
        moments: Moments = self._fitted("moments_").seen_.moments.by_batch
        return moments

    @property
    def rounds_(self) -> int | None:
        """Rounds that were run, whoever chose them; ``None`` is the fixed point."""
        return self._fitted("rounds_")._method(kept=True).rounds

    @property
    def target_rule_(self) -> TargetRule:
        """The target that was fitted to, as an object."""
        return self._fitted("target_rule_")._method(kept=True).rule

    def _together(
        self, moments: Summary, cells: tuple[Any, Labels] | None = None, kept: bool = False
    ) -> tuple[Seen, AnyAdapter, Solution]:
        warn_if_barcodes(moments.by_batch.n)
        adapter, solution, consensus = self._method(kept).together(moments, cells)
        return Seen.first(moments, consensus), adapter, solution

    def _keep(self, seen: Seen, adapter: AnyAdapter, solution: Solution | None) -> Self:
        self.seen_ = seen
        self.adapter_ = adapter
        if solution is not None:
            self.history_ = solution.history
            self.converged_ = solution.converged
            self.provenance_: dict[str, Any] = {}
            self.diagnosis_: pd.DataFrame | None = None
        return self

    def _needs_moments_only(self, verb: str) -> None:
        if solver_of(self.solver).needs_cells:
            raise BadValue(
                f"Expected a solver that needs only moments for {verb} (solver='exact'), found "
                f"{self.solver!r}, which would have to visit the old cells."
            )

    def _fit(
        self,
        X: Any,
        batch: Any,
        y: object,
        population: Any = None,
        out: np.ndarray | None = None,
    ) -> tuple[Any, Labels]:
        # Everything is checked and solved before the first attribute is set: a failed fit leaves
        # an earlier one as it was.
        method = self._method()
        solver = method.solver
        Z = lazy.check_cells(X)
        labels = self._labels(Z, batch, y)
        if lazy.is_lazy(Z):
            lazy.refuse(solver, out)
        elif out is not None:
            check_out(out, Z)
        cells = lazy.LabelledCells(Z, labels)
        moments = method.rule.describe(cells, population=self._given(Z, population))
        fitted = self._together(moments, None if lazy.is_lazy(Z) else (Z, labels))
        validate_data(self, X, skip_check_array=True)  # notes the width and any column names
        self._keep(*fitted)
        return Z, labels

    @staticmethod
    def _labels(Z: Any, batch: Any, y: object) -> Labels:
        if y is not None and batch is None:
            warnings.warn(
                "Expected labels as batch=..., found only y, which is ignored: all cells are one "
                "batch and nothing will move.",
                UserWarning,
                stacklevel=4,
            )
        return Labels.of(lazy.in_memory(batch), Z.shape[0])

    @staticmethod
    def _given(Z: Any, population: Any) -> Labels | None:
        if population is None:
            return None
        return population_labels(lazy.in_memory(population), Z.shape[0])

    def _check_kind(self, moments: Summary) -> None:
        """Check that moments are of what the target works on."""
        wanted = Populations if isinstance(self._method().rule, PopulationTarget) else Moments
        if not isinstance(moments, wanted):
            raise BadType(
                f"Expected {wanted.__name__} for target={self.target!r}, found {type(moments).__name__}."
            )

    def _method(self, kept: bool = False) -> Method:
        """Return what the parameters stand for, or say which one makes no sense.

        ``kept``: with the constants that a fitted model was fitted with, whatever today's are.
        """
        weights = Weights(self.lambda_target, self.mu, self.lambda_id)
        rule: Any = target_of(self.target, self.variance_matching, self.eps)
        if kept and self.__sklearn_is_fitted__() and self.seen_.consensus is not None:
            rule = replace(rule, settings=self.seen_.consensus.settings)
        solver = solver_of(self.solver)
        rounds = rule.default_rounds if self.rounds == "auto" else check_rounds(self.rounds)
        return Method(rule, solver, rounds, weights, self.strength)

    def _checked(self, X: Any) -> tuple[Any, AnyAdapter | lazy.LazyAdapter]:
        check_is_fitted(self)
        Z = lazy.check_cells(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        return Z, lazy.adapter_for(Z, self.adapter_)

    def _fitted(self, name: str) -> Self:
        if "adapter_" not in vars(self):
            # What `hasattr` and scikit-learn's checks expect of a fitted attribute before fitting.
            raise AttributeError(f"Expected a fitted BatchProx for {name}, found an unfitted one.")
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "adapter_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
