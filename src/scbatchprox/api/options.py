"""Options of functions that also take the parameters of a model, and data in the wrong place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from ..core.checks import some_of
from ..errors import BadType
from .estimator import BatchProx

__all__ = ["check_no_path", "check_options"]


def check_options(params: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise if ``params``, the further options given to ``function``, are not those of a BatchProx."""
    wanted = list(signature(BatchProx).parameters)
    unknown = [name for name in params if name not in wanted]
    if unknown:
        taken = signature(function).parameters.items()
        names = [name for name, parameter in taken if parameter.kind is Parameter.KEYWORD_ONLY]
        raise BadType(
            f"Expected options of {function.__name__}, found {some_of(unknown)}; "
            f"available: {', '.join(names)}."
        )


def check_no_path(data: object, wanted: str, instead: str) -> None:
    """Raise if ``data`` is the path of a file; the function ``instead`` is for those."""
    if isinstance(data, str | Path):
        raise BadType(
            f"Expected {wanted}, found {type(data).__name__}; for a file, call "
            f"scbatchprox.{instead}({str(data)!r}, batch_key)."
        )
