"""Files out of a zip archive, each checked before any is put in place."""

import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from eattn.data.catalog import File
from eattn.data.download import DownloadError, digest

DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def unpack(archive: Path, folder: Path, files: Sequence[File]) -> None:
    """Write these `files` of the archive into `folder`: all of them, or none.

    Members are found by the last part of their name, so that no path inside the archive decides
    where anything is written.
    """
    parts = [folder / f"{file.name}.part" for file in files]
    try:
        try:
            with zipfile.ZipFile(archive) as opened:
                for file, part in zip(files, parts, strict=True):
                    _extract(opened, file, part)
        except DAMAGED as error:
            raise DownloadError(f"the archive is damaged ({error})") from error
        for file, part in zip(files, parts, strict=True):
            os.replace(part, folder / file.name)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def _extract(opened: zipfile.ZipFile, file: File, part: Path) -> None:
    members = {PurePosixPath(member).name: member for member in opened.namelist()}
    if file.name not in members:
        inside = ", ".join(sorted(members)) or "nothing"
        raise DownloadError(f"the archive must hold {file.name}, it has {inside}")
    with opened.open(members[file.name]) as source, part.open("wb") as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    if file.sha256 is not None and (got := digest(part)) != file.sha256:
        raise DownloadError(
            f"wrong checksum of {file.name}: sha256 must be {file.sha256}, got {got}"
        )
