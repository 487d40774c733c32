"""The upstream of an atlas: its fingerprint, and the check that new cells have the same."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BadValue
from ..upstream import Upstream, is_saved
from ..upstream import load as load_upstream
from .folder import Record, checksum, file_sha256

__all__ = ["check_upstream", "fingerprint"]


def fingerprint(upstream: str | Path | Upstream) -> str:
    """Return the text that identifies the upstream of an embedding.

    That is the fingerprint of an :class:`~scbatchprox.upstream.Upstream` or of its file, the checksum of
    any other file, the checksum of the names and contents of all files in a folder (such as a model saved
    by scvi-tools), or any other text itself.
    """
    if isinstance(upstream, Upstream):
        return upstream.fingerprint
    path = Path(upstream)
    try:
        kind = "file" if path.is_file() else "folder" if path.is_dir() else "text"
    except (OSError, ValueError):  # a text that cannot be the name of a file
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
    """Check that cells have the same upstream as the atlas, if it is known.

    ``recorded`` is the fingerprint in the file of the cells. It is compared with the fingerprint of the
    atlas. If the upstream of the atlas is a text, it is compared with the fingerprint in earlier files.
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
