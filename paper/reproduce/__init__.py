"""One file per table and figure of the paper: it yields rows, and pictures are drawn from these."""

import os
from collections.abc import Iterable
from pathlib import Path

from paper.bench.measure import Row, append_rows, provenance


def publish(name: str, rows: Iterable[Row], out: Path) -> Path:
    """Write out/name.jsonl, every row with its provenance, and replace the file as a whole.

    Rows are taken one by one after the file was opened: a folder that cannot be written fails
    before the work, and a kill during it leaves the old file.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.jsonl"
    part = out / f".{name}.{os.getpid()}.jsonl"
    origin = {"reproduce": name} | provenance()
    try:
        append_rows(part, (origin | row for row in rows))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def significant(values: Iterable[float], digits: int) -> list[float]:
    """What a picture can show of these numbers, so that the files stay small."""
    return [float(f"{value:.{digits}g}") for value in values]
