"""Find a dataset on this machine, or download it.

Locations are searched in this order: the folder in the argument or in EATTN_DATA, the package that
ships the dataset, and the cache. A dataset that is not found is downloaded to the cache.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eattn.data.catalog import DataSet, look_up
from eattn.data.download import fetch

VARIABLE = "EATTN_DATA"
Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Found:
    """Path of a file, and `where` it was found: "data folder", a package name or "cache"."""

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
    """Return the path of a dataset's file, which may be gzipped.

    Parameters
    ----------
    name : str
        Name or alias of the dataset.
    split : {"train", "test"} or None
        Split of a classification dataset; None for forecasting.
    data_dir : path, optional
        Folder to look in first, instead of EATTN_DATA.
    download : bool, default True
        Download a dataset that is not on this machine.
    progress : bool, default False
        Show the progress of a download on stderr.

    Returns
    -------
    Path

    Raises
    ------
    FileNotFoundError
        If the dataset is not on this machine and `download` is False.
    """
    known = look_up(name)
    found = locate(name, split, data_dir=data_dir)
    if found is None and download:
        get(name, progress=progress)
        found = locate(name, split, data_dir=data_dir)
    if found is None:
        raise FileNotFoundError(
            f"{known.name} is not on this machine; download it with `eattn data get {known.name}`, "
            f"or pass its folder as --data-dir or {VARIABLE}"
        )
    return found.path


def locate(name: str, split: str | None = None, *, data_dir: Folder | None = None) -> Found | None:
    """Find a dataset's file without downloading it.

    Parameters
    ----------
    name : str
        Name or alias of the dataset.
    split : {"train", "test"} or None
        Split of a classification dataset; None for forecasting.
    data_dir : path, optional
        Folder to look in first, instead of EATTN_DATA.

    Returns
    -------
    Found or None
        None if the file is not on this machine.
    """
    known = look_up(name)
    names = known.files[known.split(split)]
    for folder, where in _folders(known, data_dir):
        if path := _file(folder, known, names):
            return Found(path, where)
    return None


def get(name: str, *, folder: Folder | None = None, progress: bool = False) -> list[Path]:
    """Download the files of a dataset unless they exist.

    Parameters
    ----------
    name : str
        Name or alias of the dataset.
    folder : path, optional
        Folder to store the files in; by default the cache.
    progress : bool, default False
        Show the progress on stderr.

    Returns
    -------
    list of Path
        One file per split.
    """
    known = look_up(name)
    root = Path(folder).expanduser() if folder is not None else cache_dir()
    wanted = [(file,) for file in known.published()]
    if not all(_file(root, known, names) for names in wanted):
        fetch(known, root / known.name, progress=progress)
    return [path for names in wanted if (path := _file(root, known, names))]


def cache_dir() -> Path:
    """Return the folder for downloads in the cache folder of the user."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "eattn" / "data"


def _folders(known: DataSet, data_dir: Folder | None) -> Iterator[tuple[Path, str]]:
    named = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if named:
        folder = Path(named).expanduser()
        if not folder.is_dir():
            source = "the data folder" if data_dir is not None else VARIABLE
            raise NotADirectoryError(f"{source} must be a folder, got {folder}")
        yield folder, "data folder"
    for package in known.packages:
        for folder in _shipped(package):
            yield folder, package.replace("_", "-")
    yield cache_dir(), "cache"


def _shipped(package: str) -> list[Path]:
    """Return the data folder of a package without importing it, which takes seconds."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return [Path(folder, "datasets", "data") for folder in folders or ()]


def _file(root: Path, known: DataSet, names: tuple[str, ...]) -> Path | None:
    """Return the first of these files in `root` or in its subfolder for the dataset."""
    folders = (root / known.name, root)
    paths = [f / f"{name}{end}" for name in names for f in folders for end in ("", ".gz")]
    return next((path for path in paths if path.is_file()), None)
