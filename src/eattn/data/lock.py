"""A lock between processes, which the system releases when its holder dies, however it dies."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Run the block while no other process runs one with the same `path`; waits for its turn."""
    file = _acquire(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps a file that is open: it stays, empty
            path.unlink()
        os.close(file)


def _acquire(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(file)
        except BaseException:
            os.close(file)
            raise
        # The holder before may have removed the file that this one waited for.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        while True:
            try:
                return msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            except OSError:  # held by another
                time.sleep(0.1)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)
