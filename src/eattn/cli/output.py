"""Files that commands write: never overwritten by accident, and complete or not there."""

import sys
from pathlib import Path

from eattn import _io


def check_out(option: str, out: Path | None, *, force: bool) -> None:
    """Raise before any work if the file of `option` cannot be written."""
    if out is None:
        return
    if out.is_dir() or not out.parent.is_dir():
        what = f"the folder {out}" if out.is_dir() else f"{out}, whose folder does not exist"
        raise ValueError(f"{option} must be a file, got {what}")
    if out.exists() and not force:
        raise ValueError(f"{out} exists already: --force overwrites it")


def write_text(text: str, out: Path | None) -> None:
    """Write a file atomically, or to stdout if `out` is None."""
    if out is None:
        sys.stdout.write(text)
        return
    _io.write_text(out, text)
