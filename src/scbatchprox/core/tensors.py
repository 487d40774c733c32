"""Arrays of other libraries (torch, jax, cupy): read as numpy arrays, and returned as they came.

Nothing is imported here: a library whose array is given has been imported by its user. Arrays in main memory
are shared, not copied.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import BadType

__all__ = ["is_tensor", "like", "to_numpy"]


def is_tensor(value: object) -> bool:
    """Whether this is an array of another library that can exchange memory with numpy."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)


def to_numpy(values: Any) -> np.ndarray:
    """Return values as a numpy array; an array that is not in main memory is an error."""
    if not is_tensor(values):
        return np.asarray(values)
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(values).__module__.split('.')[0]} {type(values).__name__}"
        calls = _calls(values)
        hint = f"call {calls} on it first" if calls else str(error).splitlines()[0].rstrip(".")
        raise BadType(
            f"Expected an array in main memory that numpy can read, found a {kind}; {hint}."
        ) from None


def _calls(values: Any) -> str:
    """Return the methods that bring an array to main memory, as a user would type them."""
    if not hasattr(values, "detach"):
        return ".get()" if hasattr(values, "__cuda_array_interface__") else ""
    calls = [
        (values.requires_grad, ".detach()"),
        (values.device.type != "cpu", ".cpu()"),
        ("strided" not in str(values.layout), ".to_dense()"),
        ("bfloat16" in str(values.dtype), ".float()"),
    ]
    return "".join(call for needed, call in calls if needed)


def like(result: np.ndarray, given: Any) -> np.ndarray:
    """Return a new array as the kind of array that was given, without a copy where that is possible."""
    if not (is_tensor(given) and isinstance(result, np.ndarray)):
        return result
    if hasattr(given, "__array_namespace__"):
        library = given.__array_namespace__()
    else:
        library = sys.modules[type(given).__module__.split(".")[0]]
    shared: np.ndarray = library.from_dlpack(result)
    return shared
