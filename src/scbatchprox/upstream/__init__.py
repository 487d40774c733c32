"""Upstreams: fixed references that turn the counts of new cells into coordinates."""

from __future__ import annotations

from pathlib import Path

from ..core.checks import some_of
from ..errors import BadValue, InputError
from ..io import store as _store
from .base import KIND, RECORD, Embedded, Upstream
from .genes import GeneReport
from .pca import PCAUpstream
from .scvi import ScviUpstream

__all__ = [
    "RECORD", "Embedded", "GeneReport", "PCAUpstream", "ScviUpstream", "Upstream", "is_saved", "load",
]  # fmt: skip

_METHODS: dict[str, type[Upstream]] = {kind.method: kind for kind in (PCAUpstream, ScviUpstream)}


def load(path: str | Path) -> Upstream:
    """Read an upstream of any kind from its file.

    Examples
    --------
    >>> import tempfile
    >>> from scbatchprox.demo import simulate
    >>> from scbatchprox.upstream import PCAUpstream, load
    >>> cells = simulate("balanced2", n_genes=200, n_components=5)
    >>> path = tempfile.mkdtemp() + "/pca.safetensors"
    >>> PCAUpstream.fit(cells, n_components=10).save(path)
    >>> load(path).n_dims
    10
    """
    stored = _store.load(path, (KIND,))
    method = stored.params.get("method")
    if method not in _METHODS:
        raise BadValue(
            f"Expected an upstream of one of the methods {some_of(_METHODS)}, found {method!r} in {path}."
        )
    return _METHODS[method].from_stored(stored, path)


def is_saved(path: str | Path) -> bool:
    """Whether a file is a saved upstream.

    Examples
    --------
    >>> from scbatchprox.upstream import is_saved
    >>> is_saved("cells.h5ad")
    False
    """
    try:
        _store.load(path, (KIND,))
    except InputError:
        return False
    return True
