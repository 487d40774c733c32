"""One folder of an archive that holds many, unpacked whole or not at all.

pooch's ``Untar`` would lose that: it unpacks in place, without progress, reads the archive once more for each
member, and on Python 3.11 lets members write elsewhere.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...core.checks import some_of
from ...errors import BadValue
from ...progress import Progress
from .downloads import Figshare

__all__ = ["Unpacked", "unpack"]


@dataclass(frozen=True)
class Unpacked:
    """A folder of ``.h5ad`` files in an archive, which is downloaded unless it is there."""

    archive: Figshare
    name: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Bring the folder; the archive is kept for the other folders in it."""
        packed = folder / self.archive.name
        if not packed.exists():
            self.archive.fetch(folder, progress)
        return unpack(packed, folder / self.name, progress)


def unpack(archive: Path, target: Path, progress: Progress) -> Path:
    """Unpack the ``.h5ad`` files in the archive's folder of the same name as ``target``.

    Nothing but the content of plain files is taken, wherever the archive says that they belong.
    """
    beside = target.parent / f".{target.name}.{secrets.token_hex(6)}.partial"
    beside.mkdir()
    seen: dict[str, None] = {}
    try:
        with open(archive, "rb") as packed, tarfile.open(fileobj=packed, mode="r|*") as members:
            size = archive.stat().st_size
            for member in members:
                path = PurePosixPath(member.name)
                seen.setdefault(path.parent.name)
                wanted = path.parent.name == target.name and path.suffix == ".h5ad"
                if wanted and member.isfile() and not path.name.startswith("."):
                    content = members.extractfile(member)
                    assert content is not None  # as of every plain file
                    with open(beside / path.name, "wb") as file:
                        shutil.copyfileobj(content, file, 1 << 20)
                progress(f"unpack {archive.name}", min(packed.tell(), size), size)
        if not any(beside.iterdir()):
            raise BadValue(
                f"Expected a folder {target.name!r} with .h5ad files in {archive}, found none; "
                f"available: {some_of(filter(None, seen), most=20)}."
            )
        os.replace(beside, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system, not of the archive
        raise BadValue(
            f"Expected an archive, found {archive}, which is damaged ({error})."
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target
