"""A section of the page: where its rows are, what the paper says, and how rows become its parts.

To add one, write a file in `sections/` with a `SECTION` and list it there.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paper.report import runs
from paper.report.html.figures import Draw
from paper.report.runs import Row

EQUAL = 0.02  # costs this near to each other are equal


def nothing(rows: Sequence[Row]) -> tuple[str, ...]:
    """No losses to tell of."""
    return ()


def better(cost: float, ours: float) -> bool:
    """Whether a cost is below ours by more than measurements vary."""
    return cost < ours / (1 + EQUAL)


@dataclass(frozen=True)
class Section:
    """How one table, figure or benchmark is shown; its rows are in `key`.jsonl."""

    key: str
    title: str
    intro: str  # what was measured, in a sentence or two
    command: str  # makes the rows
    paper: tuple[str, ...] = ()  # what the paper says of it
    draw: Draw | None = None  # rows -> matplotlib's Figure
    markdown: Callable[[Sequence[Row]], str] | None = None  # rows -> the tables of the README
    losses: Callable[[Sequence[Row]], Iterable[str]] = nothing  # where others are better
    highlights: Mapping[str, str] = field(default_factory=dict)  # promise -> what its number says


@dataclass(frozen=True)
class Found:
    """The rows of a section, the last run that came to its end; none, if there is none."""

    section: Section
    rows: list[Row]
    path: Path | None = None
    begun: bool = False  # there is a file, but no run in it has come to its end

    @property
    def quick(self) -> bool:
        return self.path is not None and self.path.stem.endswith("-quick")

    @property
    def promises(self) -> list[Row]:
        return [row for row in self.rows if row["what"] == "ratio"]


def find(section: Section, results: Path) -> Found:
    """The rows of a full run; else those of a quick one."""
    begun = False
    for name in (section.key, f"{section.key}-quick"):
        path = results / f"{name}.jsonl"
        if path.is_file():
            rows = runs.last_run(read(path))
            if rows:
                return Found(section, rows, path)
            begun = True
    return Found(section, [], begun=begun)


def read(path: Path) -> list[Row]:
    """Every row of a file; a last line still being written, or torn by a kill, is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and {"what", "date"} <= row.keys():
            rows.append(row)
        elif line.endswith("\n"):
            raise ValueError(f"{path} must hold rows with `what` and `date`, line {number} is none")
    return rows
