"""Atomic writes: a reader sees either the new content or the previous one, even after a crash."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PathLike = str | os.PathLike[str]


@contextmanager
def replace_file(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds.

    The temporary file has a fixed name in the same folder, so that the next write removes the
    remains of one that was killed.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        sync(partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    sync(target.parent)


def write_text(path: PathLike, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replace_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: PathLike, content: Any) -> None:
    """Write a JSON file atomically; NaN and infinity raise ValueError."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


@contextmanager
def replace_directory(path: PathLike) -> Iterator[Path]:
    """Yield a new directory that replaces `path` when the block succeeds."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A rename works only within one file system.
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir()
        yield fresh
        for written in (*fresh.rglob("*"), fresh):
            sync(written)
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
    except BaseException:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file or directory to disk; Windows cannot open directories."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
