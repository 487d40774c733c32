"""Loops that numba compiles. The first call imports numba, so importing this package does not."""

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
    """Compile with numba on first use and cache the machine code on disk if possible.

    ``contract`` allows a fused multiply-add and nothing else: additions keep the order of the source, so
    results are reproducible to the bit. A division by zero is infinite, as in numpy. numba renews the cache
    when the file of the function changes. Delete the cache after a change in another file that the function
    calls.
    """
    return cast(F, Loop(function))


class Loop:
    """A function that is compiled when it is first called, from Python or from another loop."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._dispatcher: Any = None

    def __call__(self, *args: Any) -> Any:
        return (self._dispatcher or self._compile())(*args)

    @property
    def _numba_type_(self) -> Any:
        """The numba type, which numba asks for when another loop calls this one."""
        return (self._dispatcher or self._compile())._numba_type_

    def __reduce__(self) -> str:
        return self._function.__qualname__  # pickled by name, like a plain function

    def _compile(self) -> Any:
        # Several threads may make the first call at once. numba has its own lock for the compilation.
        with _lock:
            if self._dispatcher is None:
                self._dispatcher = _jit(self._function)
        return self._dispatcher


def _jit(function: Callable[..., Any]) -> Any:
    import numba

    _announce_compilation()
    jit: Any = partial(numba.njit, nogil=True, fastmath={"contract"}, error_model="numpy")
    try:
        return jit(cache=True)(function)
    except RuntimeError:  # no writeable cache folder, as in some containers
        return jit()(function)


def _announce_compilation() -> None:
    """Log one line when numba first compiles code of this package; loading cached code logs nothing."""
    global _listener
    if _listener is not None:
        return
    from numba.core import event

    class Listener(event.Listener):
        logged = False

        def on_start(self, event: Any) -> None:
            module = event.data["dispatcher"].py_func.__module__
            if not self.logged and module.split(".")[0] == _PACKAGE:
                self.logged = True
                log.warning(
                    "scbatchprox: compiling its loops, once after an installation (a few seconds)"
                )

        def on_end(self, event: Any) -> None:
            pass

    _listener = Listener()
    event.register("numba:compile", _listener)  # type: ignore[no-untyped-call]


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view.

    numba compiles one version for writeable arrays and another for read-only ones. With views there is one.
    """
    view = array.view()
    view.setflags(write=False)
    return view
