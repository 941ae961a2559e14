"""Where a set is on this machine, or how it gets here.

In this order: the folder that the user names, by argument or by EATTN_DATA; the package that ships
it; the cache; and a download into the cache.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eattn.data.catalog import DataSet, File, look_up
from eattn.data.download import DownloadError, fetch
from eattn.data.lock import alone
from eattn.data.progress import bar
from eattn.data.unpack import unpack

VARIABLE = "EATTN_DATA"
Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Found:
    """A file, and `where` it was found: data folder, a package's name, or cache."""

    path: Path
    where: str


def find(
    name: str,
    split: str | None = None,
    *,
    data_dir: Folder | None = None,
    download: bool = True,
    progress: bool = False,
) -> Path:
    """The file of a set, which may be gzipped; downloaded if it is not here and `download` is on.

    `split` is "train" or "test" for classification, None for forecasting.
    """
    known = look_up(name)
    split = known.split(split)
    found = locate(name, split, data_dir=data_dir)
    if found is None and download:
        get(name, progress=progress)
        found = locate(name, split, data_dir=data_dir)
    if found is None:
        raise FileNotFoundError(
            f"{known.name} is not here: `eattn data get {known.name}` downloads it; "
            f"or name the folder that has it by --data-dir or {VARIABLE}"
        )
    return found.path


def locate(name: str, split: str | None = None, *, data_dir: Folder | None = None) -> Found | None:
    """Where the file of a set is, without downloading; None when it is nowhere."""
    known = look_up(name)
    files = known.files[known.split(split)]
    for folder, where in _places(known, data_dir):
        for file in files:
            for path in _layouts(folder, known, file):
                if path.is_file():
                    return Found(path, where)
    return None


def get(name: str, *, folder: Folder | None = None, progress: bool = False) -> list[Path]:
    """Download the files of a set into `folder`, the cache if None, unless they are there."""
    known = look_up(name)
    root = Path(folder).expanduser() if folder is not None else cache_dir()
    here = root / known.name
    root.mkdir(parents=True, exist_ok=True)
    with alone(root / f".{known.name}.lock"):
        if not all(_is_here(root, known, file) for file in known.published()):
            here.mkdir(exist_ok=True)
            try:
                _download(known, here, progress)
            except DownloadError as error:
                raise type(error)(f"{known.name}: {error}{_by_hand(known)}") from error
            finally:
                with contextlib.suppress(OSError):  # it is not empty, unless nothing came
                    here.rmdir()
    return [
        next(path for path in _layouts(root, known, file) if path.is_file())
        for file in known.published()
    ]


def cache_dir() -> Path:
    """Where downloads stay: the user's cache folder, as each system has it."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "eattn" / "data"


def _places(known: DataSet, data_dir: Folder | None) -> Iterator[tuple[Path, str]]:
    named = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser()
        if not folder.is_dir():
            by = "the data folder" if data_dir is not None else f"{VARIABLE}"
            raise NotADirectoryError(f"{by} must be a folder, got {folder}")
        yield folder, "data folder"
    for package in known.packages:
        for folder in _shipped(package):
            yield folder, package.replace("_", "-")
    yield cache_dir(), "cache"


def _shipped(package: str) -> list[Path]:
    """Where a package keeps its data; it is not imported, which would take seconds."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return [Path(folder, "datasets", "data") for folder in folders or ()]


def _layouts(folder: Path, known: DataSet, file: File) -> Iterator[Path]:
    for place in (folder / known.name, folder):
        yield place / file.name
        yield place / f"{file.name}.gz"


def _is_here(root: Path, known: DataSet, file: File) -> bool:
    return any(path.is_file() for path in _layouts(root, known, file))


def _download(known: DataSet, here: Path, progress: bool) -> None:
    if not known.url.endswith(".zip"):
        [file] = known.published()
        with bar(known.name, shown=progress) as report:
            fetch(known.url, here / file.name, sha256=file.sha256, begins=b"date,", report=report)
        return
    archive = here / f"{known.name}.zip"
    with bar(known.name, shown=progress) as report:
        fetch(known.url, archive, begins=b"PK", report=report)
    try:
        unpack(archive, here, known.published())
    finally:
        archive.unlink()  # what is wrong with it will not be better next time


def _by_hand(known: DataSet) -> str:
    files = " and ".join(file.name for file in known.published())
    return (
        f". Or fetch {known.url} by hand, put {files} into a folder, "
        f"and name that by --data-dir or {VARIABLE}"
    )
