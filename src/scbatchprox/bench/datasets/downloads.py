"""Files from public addresses: whole and with the right checksum, or not there at all."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..._version import __version__
from ...errors import BadFile, BadValue
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
    found = hashlib.new(algorithm, usedforsecurity=False)
    done = 0
    with _open(remote.url) as answer:
        path.parent.mkdir(parents=True, exist_ok=True)  # of the user's cache; others exist
        with replacing(path) as beside, open(beside, "wb") as file:
            total = remote.size or int(answer.headers.get("Content-Length") or 0)
            while chunk := _read(answer, remote.url, _CHUNK):
                file.write(chunk)
                found.update(chunk)
                done += len(chunk)
                progress(path.name, done, max(total, done))
            if done < total:
                raise Unreachable(f"{remote.url} ended after {done:,} of {total:,} bytes")
            if found.hexdigest() != expected:
                raise BadValue(
                    f"Expected {algorithm} {expected} of {remote.url}, found {found.hexdigest()}; "
                    f"nothing was kept."
                )
    return path


def _json(url: str) -> Any:
    with _open(url) as answer:
        return json.loads(_read(answer, url))


@contextmanager
def _understood(url: str) -> Iterator[None]:
    """Say so when a list of files is not what it was, or not a list of files."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Unreachable(f"{url} does not list the file") from None


@contextmanager
def _open(url: str) -> Iterator[http.client.HTTPResponse]:
    request = urllib.request.Request(url, headers={"User-Agent": f"scbatchprox/{__version__}"})
    with _reached(url):
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    with answer:
        yield answer


def _read(answer: http.client.HTTPResponse, url: str, most: int | None = None) -> bytes:
    with _reached(url):
        return answer.read(most)


@contextmanager
def _reached(url: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise Unreachable(f"{url} answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise Unreachable(f"{url} could not be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} could not be read ({error or type(error).__name__})") from None
