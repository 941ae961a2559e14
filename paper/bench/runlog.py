"""The rows of a long run in a JSON-lines file: a run that was cut off continues where it stopped.

Every row is flushed as it is measured and carries the run's provenance, the same `date` in all.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from paper.bench.measure import Row, append_rows, provenance

FINISHED = "finished"  # `what` of the row that closes a run


class Journal:
    """`rows` of this run, those kept from before it was cut off first.

    The last run in the file continues when no closing row ends it and bench, plan, commit, hardware
    and versions are the same; otherwise a new one starts. Without a `plan` it always starts anew
    and has no closing row; without a `path` rows are only kept in memory.
    """

    def __init__(
        self, path: Path | None, bench: str, plan: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.plan = path, plan
        self.origin: Row = {"bench": bench} | provenance()
        self.rows: list[Row] = []
        if path is not None:
            append_rows(path, [])  # what cannot be written must fail before the work, not after
        past = [] if path is None else _read(path)
        if plan is not None:
            self.origin["plan"] = _digest(plan)
            self._continue(past)
        self.kept = len(self.rows)

    def row(self, key: Row, measure: Callable[[], Row]) -> Row:
        """The row with these fields: the one kept, or a new one, `key` and what `measure` gives."""
        return self.group(key, lambda: [measure()])[0]

    def group(self, key: Row, measure: Callable[[], Iterable[Row]]) -> list[Row]:
        """As `row`, for rows measured together: after a kill they are all there, or all made anew.

        A key picks every row that has its fields, so no key may be part of another.
        """
        if not self.has(key):
            rows = [key | row for row in measure()]
            if len(rows) > 1:
                rows = [row | {"part": [n, len(rows)]} for n, row in enumerate(rows, 1)]
            self.add(*rows)
        return self._of(key)

    def has(self, key: Row) -> bool:
        """Whether it was measured already."""
        return bool(self._of(key))

    def left(self, costs: Iterable[tuple[Row, float]]) -> float:
        """What is still to be paid, given the cost of each key."""
        return sum(cost for key, cost in costs if not self.has(key))

    def add(self, *rows: Row) -> None:
        """Write these rows out, at once."""
        new: list[Row] = [json.loads(json.dumps(self.origin | row)) for row in rows]
        self.rows += new
        if self.path is not None:
            append_rows(self.path, new)

    def finish(self) -> None:
        """Close the run: the next one in this file is a new one."""
        self.add({"what": FINISHED, "config": self.plan})

    def _of(self, key: Row) -> list[Row]:
        fields = json.loads(json.dumps(key)).items()
        return [row for row in self.rows if all(row.get(n, ...) == v for n, v in fields)]

    def _continue(self, past: list[Row]) -> None:
        """Take up the last run of the file if it is this one, cut off."""
        last = past[-1] if past else {}
        same = all(
            last.get(name, ...) == self.origin[name] for name in self.origin.keys() - {"date"}
        )
        if self.path is None or not same or last["what"] == FINISHED:
            return
        self.origin["date"] = last["date"]
        number, total = last.get("part", (1, 1))
        if number < total:  # killed in the middle of a group
            _cut(self.path, number)
            past = past[:-number]
        self.rows = [row for row in past if row["date"] == last["date"]]


def _digest(plan: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]


def _read(path: Path) -> list[Row]:
    """All rows of a file, less a last line that a kill tore, which is cut off."""
    rows: list[Row] = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        torn = number == len(lines) and line.startswith(b"{") and not line.endswith(b"\n")
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif torn:
            _cut(path, 1)
        else:
            raise ValueError(f"{path} must hold JSON rows, line {number} is none")
    if lines and len(rows) == len(lines) and not lines[-1].endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    return rows


def _cut(path: Path, count: int) -> None:
    """Remove the last lines of a file."""
    lines = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, sum(map(len, lines[:-count])))
