"""Files as they lie there: plain or gzipped."""

import gzip
import zlib
from pathlib import Path


def read_bytes(path: Path) -> bytes:
    """All of a file, unpacked if its name ends in .gz."""
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def stem(path: Path) -> str:
    """`GunPoint_TRAIN` of GunPoint_TRAIN.ts.gz."""
    return Path(path.name.removesuffix(".gz")).stem
