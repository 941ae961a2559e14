"""Read files that may be gzipped, and name datasets after their files."""

import gzip
import zlib
from pathlib import Path


def read_bytes(path: Path) -> bytes:
    """Read a file, and decompress it if its name ends with .gz."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file: {error}") from error


def stem(path: Path) -> str:
    """Return the file name without .gz and without its extension."""
    return Path(path.name.removesuffix(".gz")).stem
