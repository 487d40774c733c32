"""One folder of an archive with many, unpacked completely or not at all.

pooch's ``Untar`` does not do this: it unpacks in place, reports no progress, reads the archive again for each
member, and on Python 3.11 lets members write outside of the folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from scbatchprox.core.checks import some_of
from scbatchprox.errors import BadValue
from scbatchprox.progress import Progress

from .downloads import Figshare

__all__ = ["Unpacked", "unpack"]


@dataclass(frozen=True)
class Unpacked:
    """A folder of ``.h5ad`` files in an archive, which is downloaded if it is missing."""

    archive: Figshare
    name: str

    def fetch(self, folder: Path, progress: Progress) -> Path:
        """Unpack the folder; the archive is kept, because it has other folders too."""
        packed = folder / self.archive.name
        if not packed.exists():
            self.archive.fetch(folder, progress)
        return unpack(packed, folder / self.name, progress)


def unpack(archive: Path, target: Path, progress: Progress) -> Path:
    """Unpack the ``.h5ad`` files in the folder of the archive that has the name of ``target``.

    Only regular files are unpacked, and only into ``target``, whatever paths the archive gives.
    """
    temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}.partial"
    temporary.mkdir()
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
                    assert content is not None  # only None for members that are not regular files
                    with open(temporary / path.name, "wb") as file:
                        shutil.copyfileobj(content, file, 1 << 20)
                progress(f"unpack {archive.name}", min(packed.tell(), size), size)
        if not any(temporary.iterdir()):
            raise BadValue(
                f"Expected a folder {target.name!r} with .h5ad files in {archive}, found none; "
                f"available: {some_of(filter(None, seen), most=20)}."
            )
        os.replace(temporary, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system, not of the archive
        raise BadValue(
            f"Expected an archive, found {archive}, which is damaged ({error})."
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
