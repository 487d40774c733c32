"""Checks of user input. All errors say what was expected, what was found, and what is available."""

from __future__ import annotations

import reprlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from ..errors import Advice, BadKey, BadType, BadValue, NotFinite, Parameter, Part
from ..kernels.blocks import BLOCK_BYTES

__all__ = [
    "BATCH_KEY",
    "absent_embedding",
    "check_array_like",
    "check_dtype",
    "check_embedding",
    "check_number",
    "check_out",
    "check_rounds",
    "check_shape",
    "comes_from",
    "is_numeric",
    "is_tensor",
    "like",
    "nonfinite_error",
    "one_of",
    "overflow_error",
    "plain",
    "require_columns",
    "some_of",
    "to_numpy",
    "warn_user",
]


#: The parameter that names columns with the batches of cells.
BATCH_KEY = Parameter("batch_key")


def some_of(values: Iterable[Any], most: int = 8) -> str:
    """List the first few values, so that an error about a thousand batches stays one sentence."""
    values = list(values)
    shown = ", ".join(reprlib.repr(v) for v in values[:most])
    if not values:
        return "none"
    return shown if len(values) <= most else f"{shown}, ... ({len(values)} in all)"


def comes_from(value: object, name: str) -> bool:
    """Whether this is an object of a class, such as ``"anndata.AnnData"``; its package is not imported."""
    package, _, kind = name.rpartition(".")
    return any(
        base.__name__ == kind and base.__module__.split(".")[0] == package
        for base in type(value).__mro__
    )


def check_array_like(Z: Any, instead: str | None = None) -> None:
    """Raise at once for what is no array, such as a whole AnnData; ``instead`` says what to do with one.

    Numpy would take an AnnData for a sequence and index it cell by cell, for minutes.
    """
    if sp.issparse(Z) or _has_values(Z):
        return
    if comes_from(Z, "anndata.AnnData"):
        found, name, rep, embedding = "an AnnData", "adata", "X_pca", 'adata.obsm["X_pca"]'
    elif comes_from(Z, "mudata.MuData"):
        found, name, rep = "a MuData", "mdata", "rna:X_pca"
        embedding = 'mdata["rna"].obsm["X_pca"]'
    else:
        return _check_sequence(Z)
    instead = instead or f'call scbatchprox.refine({name}, "batch", use_rep="{rep}")'
    raise BadType(
        f"Expected an array (cells x coordinates), found {found}; pass its embedding, such as "
        f"{embedding}, or {instead}."
    )


def _check_sequence(Z: Any) -> None:
    """Raise for what is neither an array nor a list of numbers."""
    found = type(Z).__name__
    if _is_sequence(Z):
        others = [type(row).__name__ for row in Z if not (_has_values(row) or _is_sequence(row))]
        if not others:
            return
        found += f" of {others[0]}"
    raise BadType(f"Expected an array of numbers (cells x coordinates), found {found}.")


def _has_values(value: object) -> bool:
    """Whether numpy can read this without indexing it."""
    return isinstance(value, Number | memoryview) or any(
        hasattr(value, name) for name in ("__array__", "__array_interface__", "__array_struct__")
    )


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_numeric(values: Any) -> bool:
    """Whether these are plain numbers: not text, and not categories, even if those are named by numbers."""
    if isinstance(values, pd.DataFrame):
        return all(is_numeric(values[name]) for name in values)
    if not hasattr(values, "dtype"):
        if not (_has_values(values) or isinstance(values, list | tuple)):
            return False
        try:
            values = np.asarray(values)
        except ValueError:  # rows of different lengths
            return False
    if values.dtype == object:
        # As in scikit-learn, an object array of numbers counts as an array of numbers.
        return all(isinstance(value, Number) for value in np.asarray(values).ravel())
    return getattr(values.dtype, "kind", None) in tuple("biuf")


def check_embedding(Z: Any) -> Any:
    """Return ``Z`` as a two-dimensional numeric array or CSR matrix; valid arrays are not copied.

    This does not look for NaN and infinity, which would be one more pass over the matrix. They show in
    the moments, and :func:`nonfinite_error` then says where they are.
    """
    check_array_like(Z)
    if sp.issparse(Z):
        return check_shape(check_dtype(Z.tocsr()))
    if isinstance(Z, pd.DataFrame):
        Z = Z.to_numpy()
    if isinstance(Z, np.ma.MaskedArray) and np.ma.is_masked(Z):
        masked = int(np.ma.getmaskarray(Z).sum())
        raise BadValue(
            f"Expected a value in every entry, found a masked array with {masked} masked entries; fill "
            f"them first."
        )
    return check_shape(check_dtype(to_numpy(Z)))


def check_dtype(Z: Any) -> Any:
    """Return ``Z`` with a numeric type that the loops support."""
    kind = Z.dtype.kind
    if kind in "fiub":
        # Long doubles would need a third compiled variant, and no embedding has that many digits.
        return Z.astype(np.float64) if Z.dtype.itemsize > 8 else Z
    if kind == "c":
        raise BadValue(f"Complex data not supported: expected real numbers, found {Z.dtype}.")
    if kind == "O":
        # As in scikit-learn, an object array of numbers counts as an array of numbers.
        try:
            return Z.astype(np.float64)
        except (TypeError, ValueError) as error:
            kind = BadType if isinstance(error, TypeError) else BadValue
            raise kind(
                f"Expected an array of numbers, found an object array with entries that are not "
                f"numbers: {error}."
            ) from None
    raise BadType(
        f"Expected an array of numbers (float, int or bool), found dtype {Z.dtype}: "
        f"dtype='numeric' is not compatible with it."
    )


def check_shape(Z: Any) -> Any:
    """Check for a matrix with at least one row and one column."""
    if Z.ndim != 2:
        hint = " Reshape your data with .reshape(-1, 1) if it has one coordinate." * (Z.ndim == 1)
        raise BadValue(
            f"Expected 2D array (cells x coordinates), found {Z.ndim}D array of shape "
            f"{Z.shape}.{hint}"
        )
    if Z.shape[0] == 0:
        raise BadValue(
            f"Expected at least one cell, found 0 sample(s) (shape={Z.shape}) while a minimum "
            "of 1 is required."
        )
    if Z.shape[1] == 0:
        raise BadValue(
            f"Expected at least one coordinate, found 0 feature(s) (shape={Z.shape}) while a "
            "minimum of 1 is required."
        )
    return Z


def check_out(out: np.ndarray, Z: Any) -> np.ndarray:
    """Check that ``out`` can hold the refined ``Z``; it may be ``Z`` itself, but not overlap it in part."""
    wanted = f"Expected a writeable float32 or float64 array of shape {Z.shape} as `out`"
    if not isinstance(out, np.ndarray) or out.dtype not in (np.float32, np.float64):
        raise BadType(f"{wanted}, found {getattr(out, 'dtype', type(out).__name__)}.")
    if out.shape != Z.shape:
        raise BadValue(f"{wanted}, found shape {out.shape}.")
    if not out.flags.writeable:
        raise BadValue(f"{wanted}, found a read-only one.")
    if isinstance(Z, np.ndarray) and np.shares_memory(out, Z):
        same = out.ctypes.data == Z.ctypes.data and out.strides == Z.strides
        if not (same and out.dtype == Z.dtype):
            raise BadValue(
                f"{wanted} that is the input itself or separate, found overlapping memory."
            )
    return out


def nonfinite_error(Z: Any, first_row: int | None = None) -> NotFinite:
    """Return an error that says how many values of ``Z`` are not finite and where the first one is.

    If ``Z`` is a part of a larger matrix, ``first_row`` is the row where it begins there.
    """
    rows = max(1, BLOCK_BYTES // (8 * Z.shape[1]))
    n_nan = n_inf = 0
    first: tuple[int, int] | None = None
    for lo in range(0, Z.shape[0], rows):
        block = Z[lo : lo + rows]
        block = block.toarray() if sp.issparse(block) else np.asarray(block)
        bad = ~np.isfinite(block)
        if first is None and bad.any():
            i, j = np.argwhere(bad)[0]
            first = (lo + int(i), int(j))
        nan = int(np.isnan(block).sum())
        n_nan, n_inf = n_nan + nan, n_inf + int(bad.sum()) - nan
    if first is None:
        return overflow_error()
    where = f"of {Z.shape[0] * Z.shape[1]}"
    if first_row is not None:
        where = f"in rows {first_row} to {first_row + Z.shape[0] - 1}"
    return NotFinite(
        f"Expected finite values, found {n_nan} NaN and {n_inf} infinite (inf) {where}, the first at "
        f"row {first[0] + (first_row or 0)}, column {first[1]}."
    )


def overflow_error() -> NotFinite:
    """Return the error for finite values whose squares, or whose results, are infinite."""
    return NotFinite(
        "Expected values of moderate size, found finite values so large that their variance or "
        "their refined values overflow."
    )


def warn_user(*parts: Part) -> None:
    """Warn, with the position of the call from outside this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(Advice(*parts), stacklevel=level)


def _ours(module: str) -> bool:
    """Whether a call comes from this package, or from scikit-learn's wrapper around its methods."""
    return module.split(".")[0] in ("scbatchprox", "sklearn")


def check_number(name: str, value: object, *, positive: bool = False) -> None:
    """Check a finite number >= 0, or > 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise BadType("Expected ", Parameter(name), f" to be a number, found {value!r}.")
    if not (np.isfinite(value) and (value > 0 if positive else value >= 0)):
        bound = "> 0" if positive else ">= 0"
        raise BadValue(
            "Expected ", Parameter(name), f" to be a finite number {bound}, found {value!r}."
        )


def check_whole(name: str, value: object) -> None:
    """Check a whole number >= 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadType("Expected ", Parameter(name), f" to be a whole number, found {value!r}.")
    if value < 0:
        raise BadValue(
            "Expected ", Parameter(name), f" to be a whole number >= 0, found {value!r}."
        )


def check_rounds(rounds: Any) -> int | None:
    """Check a number of rounds."""
    if rounds is None:
        return None
    if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer) or rounds < 0:
        raise BadValue(
            "Expected ", Parameter("rounds"), f" to be a whole number >= 0, or None for the fixed point, "
            f"found {rounds!r}.",
        )  # fmt: skip
    return int(rounds)


def require_columns(keys: Sequence[str], available: Iterable[str], what: Part = BATCH_KEY) -> None:
    """Check that ``obs`` has all columns in ``keys``."""
    available = list(available)
    absent = [key for key in keys if key not in available]
    if absent:
        raise BadKey(
            "Expected ", what, f" in obs, found no column {some_of(absent)}; "
            f"available: {some_of(available, most=20)}.",
        )  # fmt: skip


def absent_embedding(use_rep: str, available: Iterable[str]) -> BadKey:
    """Return the error on an embedding that ``obsm`` does not have."""
    return BadKey(
        "Expected ", Parameter("use_rep"), " in obsm (", Parameter("use_rep=NAME"),
        f" takes another, `scbatchprox embed` makes one from counts), found no {use_rep!r}; available: "
        f"{some_of(available, most=20)}.",
    )  # fmt: skip


def plain(value: Any) -> Any:
    """Return a numpy scalar as a Python value, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def one_of(name: str, value: object, available: Sequence[str]) -> str:
    """Check a choice by name."""
    if value not in available:
        raise BadValue(
            "Expected ", Parameter(name), f" to be one of {some_of(available)}, found {value!r}."
        )
    return str(value)


# Arrays of other libraries (torch, jax, cupy) are read as numpy arrays, and returned as they came. Nothing is
# imported for it: a library whose array is given has been imported by its user. Arrays in main memory are
# shared, not copied.


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
