"""scBatchProx: conservative per-batch refinement of embeddings.

Cells become :class:`Moments`, Moments become a :class:`Target`, a solver turns it into an
:class:`Adapter`, the Adapter moves cells. :func:`refine` (AnnData) and :class:`BatchProx`
(scikit-learn) walk that corridor from end to end.
"""

from ._threads import get_num_threads, set_num_threads
from ._version import __version__
from .adapter import Adapter
from .anndata import refine
from .atlas import Atlas
from .conditioned import PopulationAdapter
from .diagnose import diagnose
from .errors import InputError
from .model import BatchProx
from .moments import Moments
from .population_settings import PopulationSettings
from .population_target import PopulationTarget
from .populations import Populations
from .problem import Problem, Weights
from .solvers import Adam, Exact, History, Solution
from .target import MomentTarget, Target

__all__ = [
    "Adam",
    "Adapter",
    "Atlas",
    "BatchProx",
    "Exact",
    "History",
    "InputError",
    "MomentTarget",
    "Moments",
    "PopulationAdapter",
    "PopulationSettings",
    "PopulationTarget",
    "Populations",
    "Problem",
    "Solution",
    "Target",
    "Weights",
    "__version__",
    "diagnose",
    "get_num_threads",
    "refine",
    "set_num_threads",
]
