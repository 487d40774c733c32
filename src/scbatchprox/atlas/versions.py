"""The versions of an atlas on disk: a list of them, and one file per version, which never changes.

``atlas.json`` lists every version with the checksum of its file. ``versions/000002.safetensors`` and so on
are saved models. The file of a version is complete on disk before the new list replaces the old one in one
step. So a process that is killed at any moment leaves the last good version. Files of versions that the list
does not name are deleted by the next writer. Anything else in the folder is left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from .._version import __version__
from ..api.estimator import BatchProx
from ..core.checks import some_of
from ..core.labels import label_array
from ..errors import BadFile, BadKey, BadValue
from ..io.atomic import replacing, sync_folder
from ..io.locks import locked_by
from ..io.model_file import params_from_json
from ..upstream import Upstream, is_saved
from ..upstream import load as load_upstream

__all__ = [
    "FORMAT_VERSION",
    "AtlasList",
    "Counts",
    "Entry",
    "as_version",
    "check_new_folder",
    "check_upstream",
    "checksum",
    "commit",
    "fingerprint",
    "load",
    "locked",
    "next_entry",
    "read",
]

FORMAT = "scbatchprox atlas"
FORMAT_VERSION = 1
LIST, VERSIONS, LOCK = "atlas.json", "versions", "lock"
_FINGERPRINT = re.compile(r"(sha256|pca|scvi):[0-9a-f]{64}")
_VERSION_FILE = re.compile(r"[0-9]{6,}\.safetensors")
#: As ``io.atomic.replacing`` names the files that it writes.
_PARTIAL = re.compile(rf"\.({re.escape(LIST)}|{_VERSION_FILE.pattern})\..*\.partial")

#: Batches and their cells, as ``{"batch": ..., "n_cells": ...}``: labels need not be strings.
Counts = list[dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """One version: the action, its time, the version of the software, and the file with the result."""

    number: int
    action: str
    parent: int | None
    when: str
    scbatchprox_version: str
    added: Counts = field(default_factory=list)
    removed: Counts = field(default_factory=list)
    policy: str | None = None
    forced: bool = False
    #: The file of the cells: name, batch_key, use_rep, and the fingerprint of its upstream if it has one.
    source: dict[str, Any] | None = None
    #: The version that a rollback returned to.
    to: int | None = None
    n_batches: int = 0
    n_cells: int = 0
    #: None if the atlas has no batches.
    file: str | None = None
    sha256: str | None = None


#: Types that JSON has for the fields of an entry.
_TYPES = {
    name: [
        get_origin(one) or one for one in (get_args(hint) if type(hint) is UnionType else [hint])
    ]
    for name, hint in get_type_hints(Entry).items()
}


@dataclass(frozen=True)
class AtlasList:
    """The content of ``atlas.json``: parameters, upstream, and all versions; the last is current."""

    params: dict[str, Any]
    upstream: str | None
    versions: tuple[Entry, ...]
    #: The text that this was read from, or written as.
    text: str = field(default="", repr=False, compare=False)

    @cached_property
    def blank(self) -> BatchProx:
        """The model without any batch; never fitted itself."""
        return BatchProx(**params_from_json(self.params))

    @property
    def current(self) -> Entry:
        """The current version."""
        return self.versions[-1]

    def entry(self, number: int) -> Entry:
        """Return a version by its number."""
        if 1 <= number <= len(self.versions):  # they are numbered 1, 2, ...
            return self.versions[number - 1]
        raise BadKey(
            f"Expected a version of the atlas, found {number!r}; available: 1 to "
            f"{self.current.number}."
        )

    @property
    def recorded_upstream(self) -> str | None:
        """Fingerprint of the upstream in the file of the latest cells that had one."""
        entry = self.current
        while entry.n_batches and entry.parent is not None:
            if entry.source and "upstream" in entry.source:
                return str(entry.source["upstream"])
            entry = self.entry(entry.parent if entry.to is None else entry.to)
        return None

    def batches(self, number: int) -> dict[Any, int]:
        """Batches of a version and their numbers of cells, from the log."""
        wanted = self.entry(number)
        return next(dict(now) for entry, now in _states(self.versions) if entry is wanted)

    def changes(self, a: int, b: int) -> tuple[Counts, Counts]:
        """Batches that only version ``b`` has, and batches that only version ``a`` has."""
        old, new = self.batches(a), self.batches(b)
        return _without(new, old), _without(old, new)


def record_from(stored: dict[str, Any], text: str) -> AtlasList:
    """Return the list of versions from JSON; raises an error of any type if it is not one."""
    versions = tuple(Entry(**entry) for entry in stored["versions"])
    if [entry.number for entry in versions] != list(range(1, len(versions) + 1)):
        raise ValueError("versions are not numbered 1, 2, ...")
    known: set[int | None] = {None}
    for entry in versions:
        wrong = [name for name, types in _TYPES.items() if type(getattr(entry, name)) not in types]
        if wrong:
            raise TypeError(f"{wrong[0]} of version {entry.number}")
        if not {entry.parent, entry.to} <= known:
            raise ValueError(f"version {entry.number} comes before its parent")
        _check_entry(entry)
        known.add(entry.number)
    upstream = stored["upstream"]
    if not (versions and (upstream is None or isinstance(upstream, str))):
        raise TypeError("no versions, or an upstream that is not text")
    record = AtlasList(stored["params"], upstream, versions, text)
    record.blank.check_params()
    counts = (one for entry in versions for one in entry.added + entry.removed)
    label_array(list({one["batch"]: None for one in counts}))  # labels of one type
    for _ in _states(versions):
        pass  # an error if a version removes what it does not have
    return record


def _states(versions: tuple[Entry, ...]) -> Iterator[tuple[Entry, dict[Any, int]]]:
    """Yield every version with its batches and their numbers of cells, a version after the one it came from.

    There is one dictionary for all: it is changed to reach a version, and changed back to leave it. A copy
    for each version would take time and memory that grow with the square of their number.
    """
    after: dict[int | None, list[Entry]] = defaultdict(list)
    for entry in versions:
        after[entry.parent if entry.to is None else entry.to].append(entry)
    now: dict[Any, int] = {}
    steps: list[Entry | dict[Any, int | None]] = [*after[None]]
    while steps:
        step = steps.pop()
        if not isinstance(step, Entry):  # all that came from it was visited: back to before it
            for batch, n in step.items():
                now.pop(batch, None)
                if n is not None:
                    now[batch] = n
            continue
        steps.append({one["batch"]: now.get(one["batch"]) for one in step.added + step.removed})
        if step.to is None:
            for one in step.added:
                now[one["batch"]] = now.get(one["batch"], 0) + one["n_cells"]
            for one in step.removed:
                del now[one["batch"]]
        yield step, now
        steps += after[step.number]


def _check_entry(entry: Entry) -> None:
    for one in entry.added + entry.removed:
        if set(one) != {"batch", "n_cells"} or type(one["n_cells"]) is not int:
            raise TypeError(f"batches of version {entry.number}")
        if type(one["batch"]) not in (str, int, float, bool):
            raise TypeError(f"a batch of version {entry.number}")
    if entry.file is not None and not _VERSION_FILE.fullmatch(entry.file):
        raise ValueError(f"file {entry.file!r} of version {entry.number}")
    if entry.source is not None and not {"name", "batch_key", "use_rep"} <= set(entry.source):
        raise KeyError(f"the source of version {entry.number}")
    for name, value in (entry.source or {}).items():
        several = name == "batch_key" and isinstance(value, list)
        kind = str if name == "batch_key" else str | None
        if not all(isinstance(v, kind) for v in (value if several else [value])):
            raise TypeError(f"{name} of the source of version {entry.number}")
        if several and (not value or len(set(value)) < len(value)):
            raise ValueError(f"{name} of the source of version {entry.number}")


def read(path: Path, known: AtlasList | None = None) -> AtlasList:
    """Read the list of versions; ``known``, which was read before, is returned if it is still the list."""
    where = path / LIST
    if not where.is_file():
        raise BadFile(
            f"Expected an atlas (a folder with {LIST}), found none at {path}; create one with "
            f"`scbatchprox atlas init`."
        )
    damaged = f"Expected the list of versions of an atlas, found {where}, which is damaged"
    try:
        text = where.read_text("utf-8")
        if known is not None and text == known.text:
            return known
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:  # also of its encoding
        raise BadValue(f"{damaged} ({error}).") from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise BadValue(f"{damaged} or is not of an atlas.")
    version = stored.get("format_version")
    if type(version) is not int or version > FORMAT_VERSION:
        raise BadValue(
            f"Expected atlas format {FORMAT_VERSION} or older, found {version!r} in {where}, written by "
            f"scbatchprox {stored.get('scbatchprox_version')}: upgrade scbatchprox to read it."
        )
    if stored.pop("sha256", None) != checksum(stored):
        raise BadValue(f"{damaged} or was edited (its checksum does not match).")
    try:
        return record_from(stored, text)
    except Exception as error:  # of any type: an entry may be anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise BadValue(f"{damaged} ({reason}).") from error


def load(path: Path, entry: Entry) -> BatchProx | None:
    """Read the model of a version, if the checksum of its file matches."""
    if entry.file is None:
        return None
    where = path / VERSIONS / entry.file
    found = file_sha256(where) if where.is_file() else None
    if found != entry.sha256:
        what = "no such file" if found is None else "a damaged one (its checksum does not match)"
        raise BadValue(f"Expected version {entry.number} of the atlas in {where}, found {what}.")
    return BatchProx.load(where)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock, or raise an error if another writer has it, or if the files may be another atlas'."""
    _check_own(path)
    with locked_by(path / LOCK, f"the atlas {path}"):
        yield


def commit(
    path: Path, record: AtlasList, entry: Entry, model: BatchProx | None = None
) -> AtlasList:
    """Append a version; ``model`` is its content, or ``None`` if the entry names an older file."""
    _check_own(path)  # again: cells may have been read for hours since the lock was taken
    (path / VERSIONS).mkdir(exist_ok=True)
    _delete_leftovers(path, record)
    if model is not None:
        name = _free_name(path, record, entry)
        model.save(path / VERSIONS / name)
        entry = replace(entry, file=name, sha256=file_sha256(path / VERSIONS / name))
    sync_folder(path)
    record = replace(record, versions=(*record.versions, entry))
    stored: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "scbatchprox_version": __version__,
        "upstream": record.upstream,
        "params": record.params,
        "current": record.current.number,
        "versions": [asdict(version) for version in record.versions],
    }
    text = json.dumps(stored | {"sha256": checksum(stored)}, indent=1, ensure_ascii=False) + "\n"
    with replacing(path / LIST) as partial:
        partial.write_text(text, "utf-8")
    return replace(record, text=text)


def _check_own(path: Path) -> None:
    """Check that nothing of an atlas is a link: a copy of the atlas would lead to the same place.

    Its writer would delete the versions that only the other list names. The folder itself may be a link.
    """
    for name in (LIST, VERSIONS, LOCK):
        where = path / name
        if where.is_symlink():
            raise BadValue(
                f"Expected {name} of an atlas to be its own to write to it, found a link at {where}, which "
                f"another atlas may share; put a copy of what it leads to in its place (to keep an atlas "
                f"on another disk, link to its whole folder)."
            )


def check_new_folder(path: Path) -> None:
    """Check that a folder is new or empty, so that an atlas can be created in it."""
    if not path.resolve().parent.is_dir():
        raise BadFile(f"Expected a folder to create an atlas in, found none at {path.parent}.")
    if path.exists() and not path.is_dir():
        raise BadValue(f"Expected a new or empty folder for the atlas, found a file at {path}.")
    if path.is_dir() and (found := _other_files(path)):
        raise BadValue(
            f"Expected a new or empty folder for the atlas, found {some_of(found)} in {path}."
        )


def next_entry(record: AtlasList, action: str, **facts: Any) -> Entry:
    """Return the version after the current one, without its file."""
    parent = record.current.number if record.versions else None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Entry((parent or 0) + 1, action, parent, now, __version__, **facts)


def _other_files(path: Path) -> list[str]:
    """Names in a folder, except those that a killed ``create`` leaves."""
    names = {item.name for item in path.iterdir() if not _PARTIAL.fullmatch(item.name)}
    versions = path / VERSIONS
    if versions.is_dir() and not any(versions.iterdir()):
        names.discard(VERSIONS)
    return sorted(names - {LOCK})


def file_sha256(path: Path) -> str:
    """Checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    record: AtlasList, upstream: str | Path | Upstream | None, recorded: str | None = None
) -> None:
    """Check that cells have the same upstream as the atlas, if it is known.

    ``recorded`` is the fingerprint in the file of the cells. It is compared with the fingerprint of the
    atlas. If the upstream of the atlas is a text, it is compared with the fingerprint in earlier files.
    """
    if upstream is not None:
        _same_upstream(record.upstream, fingerprint(upstream))
    own = record.upstream
    known = own if own is not None and _FINGERPRINT.fullmatch(own) else record.recorded_upstream
    if recorded is not None and known is not None:
        _same_upstream(known, recorded)


def _same_upstream(known: str | None, found: str) -> None:
    if found != known:
        wanted = "none (the atlas names none)" if known is None else repr(known)
        raise BadValue(f"Expected the upstream of the atlas, {wanted}, found {found!r}.")


def as_version(text: str | int) -> int:
    """Return the number of a version."""
    try:
        return int(text)
    except ValueError:
        raise BadValue(f"Expected the number of a version, found {some_of([text])}.") from None


def _without(some: dict[Any, int], others: dict[Any, int]) -> Counts:
    gone = {batch: n for batch, n in some.items() if batch not in others}
    return [{"batch": batch, "n_cells": gone[batch]} for batch in sorted(gone)]


def checksum(stored: Any) -> str:
    """Checksum of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


def _delete_leftovers(path: Path, record: AtlasList) -> None:
    """Delete files that killed writers left; the caller must hold the lock."""
    named = {entry.file for entry in record.versions}
    inside = list((path / VERSIONS).iterdir())
    left = [i for i in inside if _VERSION_FILE.fullmatch(i.name) and i.name not in named]
    left += [item for item in (*inside, *path.iterdir()) if _PARTIAL.fullmatch(item.name)]
    for item in left:
        if item.is_file() and not item.is_symlink():
            with suppress(OSError):  # a leftover is no reason not to write
                item.unlink()


def _free_name(path: Path, record: AtlasList, entry: Entry) -> str:
    """Return a name for the file of a version: its number, or a later one if that is taken."""
    named = {entry.file for entry in record.versions}
    names = (f"{number:06d}.safetensors" for number in count(entry.number))
    taken = {item.name for item in (path / VERSIONS).iterdir()} | named
    return next(name for name in names if name not in taken)
