"""scBatchProx: conservative per-batch refinement of embeddings.

Cells are summarised by :class:`Moments`. Moments define a :class:`Target`, a solver turns the target
into an :class:`Adapter`, and the adapter moves the cells. :func:`refine` (AnnData) and
:class:`BatchProx` (scikit-learn) run all of these steps.

Public names are imported when they are first used, so that ``import scbatchprox`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import pl
    from .api.anndata import diagnose, refine
    from .api.estimator import BatchProx
    from .api.files import apply_file, diagnose_file, refine_file
    from .atlas import Atlas
    from .core.adapter import Adapter
    from .core.fit import Fit, Method
    from .core.moments import Moments, Pooled
    from .core.problem import History, Problem, Solution
    from .core.solvers import Adam, Exact
    from .core.target import Decision, Evidence, Target, Trace, Weights
    from .errors import InputError
    from .kernels.threads import get_num_threads, set_num_threads
    from .reporting.report import report
    from .targets.moment import MomentTarget
    from .targets.population.settings import PopulationSettings
    from .targets.population.target import PopulationTarget

__all__ = [
    "Adam",
    "Adapter",
    "Atlas",
    "BatchProx",
    "Decision",
    "Evidence",
    "Exact",
    "Fit",
    "History",
    "InputError",
    "Method",
    "MomentTarget",
    "Moments",
    "Pooled",
    "PopulationSettings",
    "PopulationTarget",
    "Problem",
    "Solution",
    "Target",
    "Trace",
    "Weights",
    "__version__",
    "apply_file",
    "diagnose",
    "diagnose_file",
    "get_num_threads",
    "pl",
    "refine",
    "refine_file",
    "report",
    "set_num_threads",
]

#: The public names that each module defines.
_HOMES = {
    "api.anndata": ("diagnose", "refine"),
    "api.estimator": ("BatchProx",),
    "api.files": ("apply_file", "diagnose_file", "refine_file"),
    "atlas": ("Atlas",),
    "core.adapter": ("Adapter",),
    "core.fit": ("Fit", "Method"),
    "core.moments": ("Moments", "Pooled"),
    "core.problem": ("History", "Problem", "Solution"),
    "core.solvers": ("Adam", "Exact"),
    "core.target": ("Decision", "Evidence", "Target", "Trace", "Weights"),
    "errors": ("InputError",),
    "kernels.threads": ("get_num_threads", "set_num_threads"),
    "reporting.report": ("report",),
    "targets.moment": ("MomentTarget",),
    "targets.population.settings": ("PopulationSettings",),
    "targets.population.target": ("PopulationTarget",),
}


def __getattr__(name: str) -> Any:
    if name == "pl":
        return import_module(".pl", __name__)
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
