"""Download datasets with pooch: with retries, checksums and atomic writes."""

import os
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from eattn._checks import need
from eattn.data.catalog import SHA256, DataSet

RETRIES = 2
HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; eattn)"
}  # some servers reject the default of Python


class DownloadError(OSError):
    """A dataset could not be downloaded. The message is one line with the reason."""


def fetch(known: DataSet, folder: Path, *, progress: bool = False) -> None:
    """Download the files of a dataset into `folder`."""
    failures = (
        need("requests", extra="timeseries").RequestException,
        *(ValueError, zipfile.BadZipFile, zlib.error, EOFError),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{known.name}.") as scratch:
        try:
            paths = _fetch(known, Path(scratch), progress)
        except failures as error:
            files = " and ".join(known.published())
            raise DownloadError(
                f"cannot download {known.name}: {error}. Download {known.url} manually, put "
                f"{files} into a folder, and pass the folder as --data-dir or EATTN_DATA"
            ) from error
        folder.mkdir(exist_ok=True)
        for path in paths:
            os.replace(path, folder / path.name)


def _fetch(known: DataSet, scratch: Path, progress: bool) -> list[Path]:
    """Download and unpack into `scratch`; return the checked files."""
    pooch = need("pooch", extra="timeseries")
    is_zip = known.url.endswith(".zip")
    name = f"{known.name}.zip" if is_zip else known.published()[0]
    pup = pooch.create(
        scratch, "", registry={name: None}, urls={name: known.url}, retry_if_failed=RETRIES
    )
    downloader = pooch.HTTPDownloader(
        progressbar=progress and sys.stderr.isatty(),
        chunk_size=1 << 16,
        headers=HEADERS,
        # pooch does not close a response with an error status.
        hooks={"response": lambda response, **_: None if response.ok else response.close()},
    )
    processor = pooch.Unzip() if is_zip else None
    fetched = pup.fetch(name, processor=processor, downloader=downloader)
    found = {Path(path).name: Path(path) for path in (fetched if is_zip else [fetched])}
    for file in known.published():
        if file not in found:
            raise ValueError(f"the archive must contain {file}, got {', '.join(found)}")
        with found[file].open("rb") as opened:  # a sign-in page also has status 200
            if file.endswith(".csv") and not (head := opened.read(20)).startswith(b"date,"):
                raise ValueError(f"{file} must begin with b'date,', got {head!r}")
        if (got := pooch.file_hash(found[file])) != SHA256.get(file, got):
            raise ValueError(f"the sha256 of {file} must be {SHA256[file]}, got {got}")
    return [found[file] for file in known.published()]
