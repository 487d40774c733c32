"""Fits over sites that cannot share cells: they publish masked numbers that add up to sums over all sites.

Names are imported when they are first used: a courier imports this package too, and must load neither arrays
nor keys of a study.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .counts import CountsFile, contribute_counts, counts_parameters, shared_upstream
    from .fit import CellsFile, contribute, refine_parameters
    from .folder import MessageFolder, status_of
    from .keys import Card
    from .ledger import OwnNumbers
    from .messages import Message
    from .plan import POPULATION, Plan, disclosed
    from .site import Site, Waiting
    from .sums import WIDE, Addends, FixedPoint, Totals

__all__ = [
    "POPULATION", "WIDE", "Addends", "Card", "CellsFile", "CountsFile", "FixedPoint", "Message",
    "MessageFolder", "OwnNumbers", "Plan", "Site", "Totals", "Waiting", "contribute",
    "contribute_counts", "counts_parameters", "disclosed", "refine_parameters", "shared_upstream",
    "status_of",
]  # fmt: skip

#: Modules that define them; those that need least come first.
_MODULES = ("messages", "keys", "plan", "folder", "sums", "ledger", "site", "fit", "counts")


def __getattr__(name: str) -> Any:
    for home in _MODULES if name in __all__ else ():
        module = import_module(f".{home}", __name__)
        if name in module.__all__:
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
