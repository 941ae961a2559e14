"""Files that commands write: never over others by chance, and whole or not at all."""

import sys
from pathlib import Path

from eattn import _io


def check_out(option: str, out: Path | None, *, force: bool) -> None:
    """That a file may be written, before the work that would be for nothing."""
    if out is None:
        return
    if out.is_dir() or not out.parent.is_dir():
        what = f"the folder {out}" if out.is_dir() else f"{out}, whose folder does not exist"
        raise ValueError(f"{option} must be a file, got {what}")
    if out.exists() and not force:
        raise ValueError(f"{out} exists already: --force overwrites it")


def write_text(text: str, out: Path | None) -> None:
    """To stdout if there is no file."""
    if out is None:
        sys.stdout.write(text)
        return
    _io.write_text(out, text)
