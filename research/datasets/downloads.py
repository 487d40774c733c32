"""Downloads of public files: complete and with the right checksum, or not at all.

pooch (with requests) makes the connections. We do not use its ``retrieve``, which creates folders before a
host answers, leaves visible ``tmp*`` files when killed, makes files that only their owner can read, and
reads each file again for its checksum. We do not use its lists of Zenodo and Figshare either, which have
no sizes and also need doi.org.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from scbatchprox import __version__
from scbatchprox.errors import BadFile, BadValue, MissingExtra
from scbatchprox.io.atomic import replacing
from scbatchprox.progress import Progress

__all__ = ["Figshare", "Pinned", "Remote", "Source", "Unreachable", "Zenodo", "download"]

#: Seconds to wait for an answer of a host.
TIMEOUT = 30.0
ZENODO = "https://zenodo.org"
FIGSHARE = "https://api.figshare.com/v2"
_CHUNK = 1 << 20


class Unreachable(BadFile):
    """A public file that cannot be downloaded now.

    The message is only a clause, without capital and full stop: callers put it into a sentence.
    """


@dataclass(frozen=True)
class Remote:
    """One public file: its address, its checksum (as ``"md5:..."``) and its size, 0 if unknown."""

    url: str
    checksum: str
    size: int = 0


class Source(Protocol):
    """A public source of a file."""

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Download into a folder and return the path; raise `Unreachable` if that fails."""


@dataclass(frozen=True)
class Pinned:
    """A file at an address that never changes, with a known checksum."""

    url: str
    name: str
    checksum: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Download the file under its name."""
        return download(Remote(self.url, self.checksum), folder / self.name, progress)


@dataclass(frozen=True)
class Zenodo:
    """A file of a Zenodo record; its checksum is the one that Zenodo publishes."""

    record: int
    name: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Ask for the checksum, then download the file under its name."""
        url = f"{ZENODO}/api/records/{self.record}"
        with _checked_listing(url):
            # Now the entries are "key" and "md5:..."; until 2023, "filename" and only the checksum.
            files = {file.get("key") or file["filename"]: file for file in _json(url)["files"]}
            file = files[self.name]
            checksum = f"md5:{file['checksum'].removeprefix('md5:')}"
            size = int(file.get("size") or file.get("filesize") or 0)
        address = f"{ZENODO}/records/{self.record}/files/{self.name}?download=1"
        return download(Remote(address, checksum, size), folder / self.name, progress)


@dataclass(frozen=True)
class Figshare:
    """The only archive (``.tar.gz``) of a version of a Figshare article, saved as ``name``.

    Address, size and checksum are those that Figshare publishes.
    """

    article: int
    version: int
    name: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Ask for the address of the archive, then download it."""
        url = f"{FIGSHARE}/articles/{self.article}/versions/{self.version}"
        with _checked_listing(url):
            (file,) = [f for f in _json(url)["files"] if f["name"].endswith((".tar.gz", ".tgz"))]
            remote = Remote(file["download_url"], f"md5:{file['computed_md5']}", int(file["size"]))
        return download(remote, folder / self.name, progress)


def download(remote: Remote, path: Path, progress: Progress) -> Path:
    """Download a file to ``path``; it appears there when it is complete and its checksum is right."""
    if path.parent.exists() and not os.access(path.parent, os.W_OK):
        raise Unreachable(f"{path.parent} cannot be written to")
    algorithm, _, expected = remote.checksum.partition(":")
    with ExitStack() as stack:
        file = _Download(path, remote.size, algorithm, progress, stack)
        _get(remote.url, file)
        if file.done < file.total:
            raise Unreachable(f"{remote.url} ended after {file.done:,} of {file.total:,} bytes")
        found = file.finish()
        if found != expected:
            raise BadValue(
                f"Expected {algorithm} {expected} of {remote.url}, found {found}; nothing was kept."
            )
    return path


class _Download:
    """A file for pooch to write to; it and its folder are created once the host has answered."""

    def __init__(
        self, path: Path, total: int, algorithm: str, progress: Progress, stack: ExitStack
    ) -> None:
        self._path, self._progress, self._stack = path, progress, stack
        self._hash = hashlib.new(algorithm, usedforsecurity=False)
        self._file: IO[bytes] | None = None
        self.done, self.total = 0, total  # a total of 0 means unknown

    def write(self, chunk: bytes) -> int:
        """Write some bytes and report the progress."""
        self._opened().write(chunk)
        self._hash.update(chunk)
        self.done += len(chunk)
        self._progress(self._path.name, self.done, max(self.total, self.done))
        return len(chunk)

    def flush(self) -> None:
        """Do nothing: closing the file flushes it."""

    def finish(self) -> str:
        """Close the file and return its checksum."""
        self._opened().close()
        return self._hash.hexdigest()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            # Creates the user's cache; other folders exist already.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._stack.enter_context(replacing(self._path))
            self._file = self._stack.enter_context(temporary.open("wb"))
        return self._file


def _get(url: str, file: _Download | IO[bytes]) -> None:
    """Download from an address to a file."""
    try:
        import pooch
        import requests
    except ImportError:
        raise MissingExtra("pooch to download public data with", "bench") from None
    answers: list[Any] = []

    def on_answer(answer: Any, **_: Any) -> None:
        answers.append(answer)
        if isinstance(file, _Download) and answer.ok and not answer.is_redirect:
            file.total = file.total or int(answer.headers.get("Content-Length") or 0)

    headers = {
        "User-Agent": f"scbatchprox/{__version__}",
        "Accept-Encoding": "identity",  # so that lengths are those of files, not of compressed transfers
    }
    get = pooch.HTTPDownloader(
        chunk_size=_CHUNK, timeout=TIMEOUT, headers=headers, hooks={"response": on_answer}
    )
    try:
        get(url, file, None)
    except requests.HTTPError as error:
        found: Any = error.response
        raise Unreachable(f"{url} answered {found.status_code} {found.reason}") from None
    except requests.RequestException as error:
        cause = _root_cause(error)
        got: Any = getattr(cause, "partial", None)  # a number if the host announced the size
        if isinstance(file, _Download) and isinstance(got, int) and got < file.total:
            raise Unreachable(f"{url} ended after {got:,} of {file.total:,} bytes") from None
        failed = "reached" if isinstance(error, requests.ConnectionError) else "read"
        reason = str(cause) or type(cause).__name__
        raise Unreachable(f"{url} could not be {failed} ({reason})") from None
    finally:
        for answer in answers:
            answer.close()  # pooch leaves it open after an error


def _root_cause(error: BaseException) -> BaseException:
    """Return the system's own error, which requests wraps several times."""
    found, cause = error, error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, (OSError, http.client.HTTPException)):
            found = cause
        cause = cause.__cause__ or cause.__context__
    return found


def _json(url: str) -> Any:
    answer = io.BytesIO()
    _get(url, answer)
    return json.loads(answer.getvalue())


@contextmanager
def _checked_listing(url: str) -> Iterator[None]:
    """Raise `Unreachable` if a list of files does not have the expected form."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Unreachable(f"{url} does not list the file") from None
