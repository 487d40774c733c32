"""What the embedding of an atlas comes from: its fingerprint, kept and checked."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BadValue
from ..upstream import Upstream, is_saved
from ..upstream import load as load_upstream
from .folder import Record, checksum, file_sha256

__all__ = ["check_upstream", "fingerprint"]


def fingerprint(upstream: str | Path | Upstream) -> str:
    """Return what stands for the upstream of an embedding.

    That is the fingerprint of an :class:`~scbatchprox.upstream.Upstream`, or of a file that holds one; the
    checksum of any other file; and any other text itself. A folder, such as a model saved by scvi-tools,
    counts with the names and contents of all its files.
    """
    if isinstance(upstream, Upstream):
        return upstream.fingerprint
    path = Path(upstream)
    try:
        kind = "file" if path.is_file() else "folder" if path.is_dir() else "text"
    except (OSError, ValueError):  # a text too long, or too odd, for the name of a file
        kind = "text"
    if kind == "file":
        return load_upstream(path).fingerprint if is_saved(path) else f"sha256:{file_sha256(path)}"
    if kind == "folder":
        files = sorted(item for item in path.rglob("*") if item.is_file())
        listed = [(item.relative_to(path).as_posix(), file_sha256(item)) for item in files]
        return f"sha256:{checksum(listed)}"
    if not str(upstream).strip():
        raise BadValue("Expected a text or a file as upstream, found an empty text.")
    return str(upstream)


def check_upstream(
    record: Record, upstream: str | Path | Upstream | None, recorded: str | None = None
) -> None:
    """Check that cells come from the same upstream as the atlas, where one is named.

    ``recorded`` is what the file of the cells says of itself. It is held against the fingerprint that the
    atlas was made with or, if that is a text of the user's own, against what earlier files said.
    """
    if upstream is not None:
        _same_upstream(record.upstream, fingerprint(upstream))
    own = record.upstream
    known = own if own is not None and _is_fingerprint(own) else record.recorded_upstream
    if recorded is not None and known is not None:
        _same_upstream(known, recorded)


def _same_upstream(known: str | None, found: str) -> None:
    if found != known:
        wanted = "none (the atlas names none)" if known is None else repr(known)
        raise BadValue(f"Expected the upstream of the atlas, {wanted}, found {found!r}.")


def _is_fingerprint(upstream: str) -> bool:
    return re.fullmatch(r"(sha256|pca|scvi):[0-9a-f]{64}", upstream) is not None
