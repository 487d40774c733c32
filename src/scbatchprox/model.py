"""The scikit-learn door: BatchProx, a dozen lines of glue per verb over the corridor."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from . import _store, lazy
from ._validate import check_out, one_of, plain, warn_if_barcodes
from .adapter import Adapter
from .errors import BadType
from .labels import Labels
from .moments import Moments
from .problem import Problem, Weights
from .solvers import SOLVERS, History, Solution, Solver, solver_of
from .solvers.solution import check_rounds
from .target import MomentTarget, TargetRule

__all__ = ["BatchProx"]


class BatchProx(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Refine an embedding batch by batch, conservatively.

    Every batch gets its own scale and shift per coordinate, :math:`\tilde z = \gamma_b z + \beta_b`,
    pulled towards a target and held back by a proximal and an identity term, as rounds of federated
    optimisation with one client per batch. The number of rounds is the strength of the refinement.

    Parameters
    ----------
    target
        ``"moment"``: every batch to the mean and spread of all cells.
    solver
        ``"exact"`` (closed form), ``"adam"`` (the paper's optimiser), or a solver object such as
        ``Adam(seed=1)``, which carries the options of its own.
    rounds
        Rounds of the federated procedure; ``None`` is their fixed point (exact solver only). Few
        rounds are conservative. In few rounds small batches move less than large ones, since a
        client's share of the average is its share of the cells.
    lambda_target
        Weight of the distance to the target.
    mu
        Weight of the proximal term; 0 is "without FedProx".
    lambda_id
        Weight of the identity term; 0 is "without identity".
    eps
        Added to standard deviations before they are divided.
    variance_matching
        Match spreads as well as means; ``False`` is "mean-only".

    Attributes
    ----------
    adapter_ : Adapter
        The fitted map; also as ``batches_`` (B,), ``scale_`` and ``shift_`` (B, d).
    moments_ : Moments
        What was seen of the cells: number, mean and spread of each batch.
    history_ : History
        Objective, distance to the target and step size of every round.
    converged_ : bool
        Whether another round would change next to nothing.
    provenance_ : dict
        Where the cells came from, as far as the door that read them knows; saved with the model.
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
        target: str = "moment",
        solver: str | Solver = "exact",
        rounds: int | None = 3,
        lambda_target: float = 0.5,
        mu: float = 1e-3,
        lambda_id: float = 1e-3,
        eps: float = 1e-6,
        variance_matching: bool = True,
    ) -> None:
        self.target = target
        self.solver = solver
        self.rounds = rounds
        self.lambda_target = lambda_target
        self.mu = mu
        self.lambda_id = lambda_id
        self.eps = eps
        self.variance_matching = variance_matching

    def fit(self, X: Any, y: object = None, *, batch: Any = None) -> Self:
        """Fit one adapter row per batch to the cells ``X`` (N, d); ``batch=None`` is one batch.

        A Dask array is read once, block by block, on whatever scheduler is active; refining one
        gives a Dask array. ``y`` is ignored; it is there since scikit-learn passes it.
        """
        self._fit(X, batch, y)
        return self

    def transform(self, X: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Refine cells of batches seen when fitting; ``out`` takes the result, and may be ``X``."""
        Z, adapter = self._checked(X)
        return adapter.apply(Z, lazy.in_memory(batch), out=out)

    def fit_transform(
        self, X: Any, y: object = None, *, batch: Any = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Fit to the cells ``X`` and refine them; ``out`` takes the result, and may be ``X``."""
        Z, labels = self._fit(X, batch, y, out)
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
        return self.adapter_.movement(self.moments_)

    @property
    def batches_(self) -> np.ndarray:
        """(B,) batches seen when fitting, sorted."""
        return self._fitted("batches_").adapter_.batches

    @property
    def scale_(self) -> np.ndarray:
        """(B, d) scale of each batch."""
        return self._fitted("scale_").adapter_.scale

    @property
    def shift_(self) -> np.ndarray:
        """(B, d) shift of each batch."""
        return self._fitted("shift_").adapter_.shift

    def save(self, path: str | Path) -> None:
        """Write the fitted model to a file (safetensors, no pickle); :meth:`load` reads it back."""
        check_is_fitted(self)
        tensors = {"scale": self.scale_, "shift": self.shift_}
        tensors |= {f"moments.{k}": getattr(self.moments_, k) for k in ("n", "mean", "m2")}
        tensors |= {f"history.{k}": v for k, v in vars(self.history_).items()}
        extra = {
            "params": self.params_as_json(),
            "converged": self.converged_,
            "provenance": self.provenance_,
        }
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            extra["feature_names"] = names.tolist()
        _store.save(path, "model", tensors, self.batches_, extra)

    def params_as_json(self) -> dict[str, Any]:
        """Return the parameters in types that JSON has; a solver object with its options."""
        params = self.get_params(deep=False)
        params["solver"] = _solver_to_json(params["solver"])
        return {name: plain(value) for name, value in params.items()}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model written by :meth:`save`."""
        stored = _store.load(path, ("model",))
        params = dict(stored.params["params"])
        params["solver"] = _solver_from_json(params["solver"])
        model = cls(**params)
        model.adapter_ = Adapter(stored.batches, stored.tensors["scale"], stored.tensors["shift"])
        model.moments_ = Moments(
            stored.batches, *(stored.tensors[f"moments.{k}"] for k in ("n", "mean", "m2"))
        )
        model.history_ = History(
            *(stored.tensors[f"history.{k}"] for k in ("round", "objective", "distance", "step"))
        )
        model.converged_ = bool(stored.params["converged"])
        model.provenance_ = dict(stored.params.get("provenance", {}))
        model.n_features_in_ = model.adapter_.width
        if "feature_names" in stored.params:
            model.feature_names_in_ = np.array(stored.params["feature_names"], dtype=object)
        return model

    def fit_moments(self, moments: Moments, cells: tuple[Any, Labels] | None = None) -> Self:
        """Fit to the moments of cells that are elsewhere: on disk, on a cluster, or long gone.

        ``cells`` (the embedding and its labels) are for a solver that visits them again.
        """
        adapter, solution = self._solve(moments, cells)
        self.n_features_in_ = moments.width
        return self._keep(moments, adapter, solution)

    def _solve(
        self, moments: Moments, cells: tuple[Any, Labels] | None
    ) -> tuple[Adapter, Solution]:
        solver, rounds, rule, weights = self._parts()
        warn_if_barcodes(moments.n)
        problem = Problem.of(moments, rule(moments), weights)
        solution = solver.solve(problem, rounds, *(cells or (None, None)))
        return Adapter(moments.batches, solution.scale, solution.shift), solution

    def _keep(self, moments: Moments, adapter: Adapter, solution: Solution) -> Self:
        self.moments_ = moments
        self.adapter_ = adapter
        self.history_ = solution.history
        self.converged_ = solution.converged
        self.provenance_: dict[str, Any] = {}
        return self

    def _fit(
        self, X: Any, batch: Any, y: object, out: np.ndarray | None = None
    ) -> tuple[Any, Labels]:
        # Everything is checked and solved before the first attribute is set: a failed fit leaves
        # an earlier one as it was.
        solver, *_ = self._parts()
        Z = lazy.check_cells(X)
        if y is not None and batch is None:
            warnings.warn(
                "Expected labels as batch=..., found only y, which is ignored: all cells are one "
                "batch and nothing will move.",
                UserWarning,
                stacklevel=3,
            )
        labels = Labels.of(lazy.in_memory(batch), Z.shape[0])
        if lazy.is_lazy(Z):
            lazy.refuse(solver, out)
            moments, cells = lazy.moments(Z, labels), None
        else:
            if out is not None:
                check_out(out, Z)
            moments, cells = Moments.of(Z, labels), (Z, labels)
        adapter, solution = self._solve(moments, cells)
        validate_data(self, X, skip_check_array=True)  # notes the width and any column names
        self._keep(moments, adapter, solution)
        return Z, labels

    def _parts(self) -> tuple[Solver, int | None, TargetRule, Weights]:
        """Return what the parameters stand for, or say which one makes no sense."""
        weights = Weights(self.lambda_target, self.mu, self.lambda_id)
        return solver_of(self.solver), check_rounds(self.rounds), self._target_rule(), weights

    def _target_rule(self) -> TargetRule:
        one_of("target", self.target, ("moment",))
        return MomentTarget(self.variance_matching, self.eps)

    def _checked(self, X: Any) -> tuple[Any, Adapter | lazy.LazyAdapter]:
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


def _solver_to_json(solver: str | Solver) -> Any:
    if isinstance(solver, str):
        return solver
    for name, kind in SOLVERS.items():
        if type(solver) is kind:
            return {"name": name} | {key: plain(value) for key, value in asdict(solver).items()}
    raise BadType(f"Expected a solver that can be saved ({', '.join(SOLVERS)}), found {solver!r}.")


def _solver_from_json(stored: Any) -> str | Solver:
    if isinstance(stored, str):
        return stored
    options = dict(stored)
    return SOLVERS[options.pop("name")](**options)
