"""Files from public addresses: whole and with the right checksum, or not there at all.

pooch (with requests) speaks to hosts. Its ``retrieve`` is not used: it makes folders before a host answers,
leaves visible ``tmp*`` files when killed, makes files for their owner alone and reads a file again for its
checksum. Nor are its lists of Zenodo and Figshare, which have no sizes and need doi.org too.
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

from ..._version import __version__
from ...errors import BadFile, BadValue, MissingExtra
from ...io.atomic import replacing
from ...progress import Progress

__all__ = ["Figshare", "Pinned", "Remote", "Source", "Unreachable", "Zenodo", "download"]

#: Seconds without an answer after which a host counts as out of reach.
TIMEOUT = 30.0
ZENODO = "https://zenodo.org"
FIGSHARE = "https://api.figshare.com/v2"
_CHUNK = 1 << 20


class Unreachable(BadFile):
    """A public file that cannot be had from here and now; the sentence has no beginning and no end."""


@dataclass(frozen=True)
class Remote:
    """One public file: its address, its checksum (as ``"md5:..."``) and its size, 0 if unknown."""

    url: str
    checksum: str
    size: int = 0


class Source(Protocol):
    """A public place that a file can be fetched from."""

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Bring what is there into a folder and return where it is; otherwise `Unreachable`."""


@dataclass(frozen=True)
class Pinned:
    """A file at an address that never changes, with a checksum that is known beforehand."""

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
        with _understood(url):
            # "key" and "md5:..." in the interface of today, "filename" and a bare sum in that of 2023.
            files = {file.get("key") or file["filename"]: file for file in _json(url)["files"]}
            file = files[self.name]
            checksum = f"md5:{file['checksum'].removeprefix('md5:')}"
            size = int(file.get("size") or file.get("filesize") or 0)
        address = f"{ZENODO}/records/{self.record}/files/{self.name}?download=1"
        return download(Remote(address, checksum, size), folder / self.name, progress)


@dataclass(frozen=True)
class Figshare:
    """The only archive (``.tar.gz``) of a version of a Figshare article, under a name of ours.

    Address, size and checksum are those that Figshare publishes.
    """

    article: int
    version: int
    name: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Ask which archive there is, then download it."""
        url = f"{FIGSHARE}/articles/{self.article}/versions/{self.version}"
        with _understood(url):
            (file,) = [f for f in _json(url)["files"] if f["name"].endswith((".tar.gz", ".tgz"))]
            remote = Remote(file["download_url"], f"md5:{file['computed_md5']}", int(file["size"]))
        return download(remote, folder / self.name, progress)


def download(remote: Remote, path: Path, progress: Progress) -> Path:
    """Bring a public file to ``path``, where it appears when it is complete and its checksum is right."""
    if path.parent.exists() and not os.access(path.parent, os.W_OK):
        raise Unreachable(f"{path.parent} cannot be written to")
    algorithm, _, expected = remote.checksum.partition(":")
    with ExitStack() as stack:
        file = _Arriving(path, remote.size, algorithm, progress, stack)
        _get(remote.url, file)
        if file.done < file.total:
            raise Unreachable(f"{remote.url} ended after {file.done:,} of {file.total:,} bytes")
        found = file.finish()
        if found != expected:
            raise BadValue(
                f"Expected {algorithm} {expected} of {remote.url}, found {found}; nothing was kept."
            )
    return path


class _Arriving:
    """What pooch writes to: a file that is made, with its folder, once a host has answered."""

    def __init__(
        self, path: Path, total: int, algorithm: str, progress: Progress, stack: ExitStack
    ) -> None:
        self._path, self._progress, self._stack = path, progress, stack
        self._hash = hashlib.new(algorithm, usedforsecurity=False)
        self._file: IO[bytes] | None = None
        self.done, self.total = 0, total  # a total of 0 is not known

    def write(self, chunk: bytes) -> int:
        """Keep some bytes, and say how many there are by now."""
        self._opened().write(chunk)
        self._hash.update(chunk)
        self.done += len(chunk)
        self._progress(self._path.name, self.done, max(self.total, self.done))
        return len(chunk)

    def flush(self) -> None:
        """Do nothing: the file is written out when it is finished."""

    def finish(self) -> str:
        """Close the file and return its checksum."""
        self._opened().close()
        return self._hash.hexdigest()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            # Of the user's cache; others exist.
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._stack.enter_context(replacing(self._path))
            self._file = self._stack.enter_context(beside.open("wb"))
        return self._file


def _get(url: str, file: _Arriving | IO[bytes]) -> None:
    """Write what is at an address to a file."""
    try:
        import pooch
        import requests
    except ImportError:
        raise MissingExtra("pooch to download public data with", "bench") from None
    answers: list[Any] = []

    def began(answer: Any, **_: Any) -> None:
        answers.append(answer)
        if isinstance(file, _Arriving) and answer.ok and not answer.is_redirect:
            file.total = file.total or int(answer.headers.get("Content-Length") or 0)

    headers = {
        "User-Agent": f"scbatchprox/{__version__}",
        "Accept-Encoding": "identity",  # lengths are those of files, not of what hosts pack them into
    }
    get = pooch.HTTPDownloader(
        chunk_size=_CHUNK, timeout=TIMEOUT, headers=headers, hooks={"response": began}
    )
    try:
        get(url, file, None)
    except requests.HTTPError as error:
        found: Any = error.response
        raise Unreachable(f"{url} answered {found.status_code} {found.reason}") from None
    except requests.RequestException as error:
        below = _below(error)
        got: Any = getattr(
            below, "partial", None
        )  # a number if the host had said how many there are
        if isinstance(file, _Arriving) and isinstance(got, int) and got < file.total:
            raise Unreachable(f"{url} ended after {got:,} of {file.total:,} bytes") from None
        could = "reached" if isinstance(error, requests.ConnectionError) else "read"
        reason = str(below) or type(below).__name__
        raise Unreachable(f"{url} could not be {could} ({reason})") from None
    finally:
        for answer in answers:
            answer.close()  # pooch leaves it open when something goes wrong


def _below(error: BaseException) -> BaseException:
    """What the system said, below the many sentences of requests."""
    found, below = error, error.__cause__ or error.__context__
    while below is not None:
        if isinstance(below, (OSError, http.client.HTTPException)):
            found = below
        below = below.__cause__ or below.__context__
    return found


def _json(url: str) -> Any:
    answer = io.BytesIO()
    _get(url, answer)
    return json.loads(answer.getvalue())


@contextmanager
def _understood(url: str) -> Iterator[None]:
    """Say so when a list of files is not what it was, or not a list of files."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Unreachable(f"{url} does not list the file") from None
