"""Loops that numba compiles: it is imported when the first of them is called, not before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial, update_wrapper
from threading import RLock
from typing import Any, TypeVar, cast

import numpy as np

__all__ = ["compiled", "read_only"]

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)

#: The package that this module belongs to.
_PACKAGE = __name__.split(".")[0]
_lock = RLock()
_listener: Any = None


def compiled(function: F) -> F:
    """Compile with numba on first use and keep the machine code on disk where that is possible.

    ``contract`` allows a fused multiply-add; no other freedom is given, so the order of additions
    is the one written down and results are reproducible to the bit. The kept code is renewed when the
    function's own file changes; after a change of what it calls in another file, delete the cache.
    """
    return cast(F, Loop(function))


class Loop:
    """A function that is compiled when it is first called, from Python or from another loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._dispatcher: Any = None

    def __call__(self, *args: Any) -> Any:
        return (self._dispatcher or self._made())(*args)

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for where another loop calls it."""
        return (self._dispatcher or self._made())._numba_type_

    def __reduce__(self) -> str:
        return self._function.__qualname__  # by name, as a plain function

    def _made(self) -> Any:
        # Several threads may make the first call at once; numba itself lets one of them compile.
        with _lock:
            if self._dispatcher is None:
                self._dispatcher = _jit(self._function)
        return self._dispatcher


def _jit(function: Callable[..., Any]) -> Any:
    import numba

    _listen()
    jit: Any = partial(numba.njit, nogil=True, fastmath={"contract"})
    try:
        return jit(cache=True)(function)
    except RuntimeError:  # no writeable cache folder anywhere, as in some containers
        return jit()(function)


def _listen() -> None:
    """Say so, once, when code of this package is compiled: numba tells, and not of code that is kept."""
    global _listener
    if _listener is not None:
        return
    from numba.core import event

    class Listener(event.Listener):
        said = False

        def on_start(self, event: Any) -> None:
            module = event.data["dispatcher"].py_func.__module__
            if not self.said and module.split(".")[0] == _PACKAGE:
                self.said = True
                log.warning(
                    "scbatchprox: compiling its loops, once after an installation (a few seconds)"
                )

        def on_end(self, event: Any) -> None:
            pass

    _listener = Listener()
    event.register("numba:compile", _listener)  # type: ignore[no-untyped-call]


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written to: numba would compile once for these and once for others."""
    view = array.view()
    view.setflags(write=False)
    return view
