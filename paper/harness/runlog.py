"""Run log: measured rows in a JSON-lines file, each identified by its own settings.

A row is found again by its key, for example dataset, mixer, learning rate, seed and steps. Commit,
versions, hardware and date are provenance: they are stored in every row and identify nothing. So a
run continues after new commits and on another day, and a new mixer keeps the rows of the others.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paper.harness.measure import Row, now, provenance

Key = Mapping[str, Any]
Report = Callable[[int, int, str], None]

DERIVED = ("finished", "ratio", "exponent", "message")  # stored by earlier versions, computed now


class RunLog:
    """Newest row of every key of one experiment, appended to a file as they are measured.

    Without a path, the rows stay in memory. Every row stores the name of the experiment as `bench`.
    With `fresh` every key is measured again; earlier rows stay in the file. `report` is called with
    (done, total, label) whenever work starts or ends.
    """

    def __init__(
        self, path: Path | None, name: str, *, fresh: bool = False, report: Report | None = None
    ) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._origin: Row = {"bench": name} | provenance()
        self._report = report or (lambda done, total, label: None)
        self._done = self._total = 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(path)  # also fails here, before the work, when nothing can be written
            self.rows = [] if fresh else read_rows(path)

    def expect(self, keys: Iterable[Key]) -> None:
        """Announce work for the progress bar; keys that have rows do not count."""
        self._total += sum(not self.has(key) for key in keys)

    def has(self, key: Key) -> bool:
        """Return whether the key has rows."""
        return any(matches(row, key) for row in self.rows)

    def find(self, key: Key) -> list[Row]:
        """Return the rows of a key."""
        return [row for row in self.rows if matches(row, key)]

    def measure(self, key: Key, work: Callable[[], Row | Iterable[Row]]) -> list[Row]:
        """Return the rows of a key, and measure them first if there are none.

        The key has the fields that identify the rows; a field of None must be missing in them. No
        key may be a part of another one of the same experiment. Rows that `work` returns together
        are stored as one group: after an interruption either all of them exist or none.
        """
        if not self.has(key):
            self._report(self._done, self._total, label(key))
            made = work()
            self.add(key, *([made] if isinstance(made, dict) else made))
        return self.find(key)

    def measure_all(
        self,
        work: Iterable[tuple[Key, Callable[[], Row | Iterable[Row]]]],
        check: tuple[Key, Callable[[], Row]] | None = None,
    ) -> Iterator[Row]:
        """Yield the rows of all keys, and measure those that are missing.

        If any are missing, `check` (a key and its work) runs first; it raises on wrong numbers.
        """
        work = list(work)
        self.expect(key for key, _ in work)
        if check is not None:
            if not all(self.has(key) for key, _ in work):
                self.add(check[0], check[1]())
            yield from self.find(check[0])
        for key, measure in work:
            yield from self.measure(key, measure)

    def measure_together(
        self, keys: Iterable[Key], work: Callable[[list[Key]], Iterable[Row]]
    ) -> list[Row]:
        """Return the rows of keys that are timed in turn, one row per key.

        `work` gets the keys that have no row yet and returns their rows in the same order.
        """
        keys = list(keys)
        missing = [key for key in keys if not self.has(key)]
        if missing:
            self._report(self._done, self._total, label(missing[0]))
            for key, row in zip(missing, list(work(missing)), strict=True):
                self.add(key, row)
        return [row for key in keys for row in self.find(key)]

    def add(self, key: Key, *rows: Row) -> None:
        """Append rows that were measured together, in one write; they replace earlier ones."""
        fields = {name: value for name, value in key.items() if value is not None}
        start = self._origin | {"date": now(), "key": list(key)} | fields
        new = [start | row for row in rows]
        if len(new) > 1:
            new = [row | {"part": [n, len(new)]} for n, row in enumerate(new, 1)]
        text = "".join(json.dumps(row) + "\n" for row in new)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        self.rows = [row for row in self.rows if not matches(row, key)]
        self.rows += [json.loads(line) for line in text.splitlines()]
        self._done += 1
        self._report(self._done, self._total, label(key))


def read_rows(path: Path) -> list[Row]:
    """Read a run log: the newest rows of every key, without rows that are derived from others.

    A line that is still being written, and a group whose last rows are missing, are left out.
    """
    rows: list[Row] = []
    group: list[Row] = []
    for row in _parse(path):
        number, count = row.get("part", (1, 1))
        group = [row] if number == 1 else [*group, row]
        if len(group) < count:
            continue
        if "key" in row:
            key = {name: row.get(name) for name in row["key"]}
            rows = [old for old in rows if not matches(old, key)]
        rows += group
    return [row for row in rows if row["what"] not in DERIVED]


def find_row(rows: Iterable[Row], **fields: object) -> Row:
    """Return the first row with these fields, or raise LookupError; None matches a missing one."""
    for row in rows:
        if matches(row, fields):
            return row
    raise LookupError(f"no row with {fields}")


def rows_of(rows: Iterable[Row], what: str) -> list[Row]:
    """Return the rows of one kind."""
    return [row for row in rows if row["what"] == what]


def group(rows: Iterable[Row], *fields: str) -> dict[Any, list[Row]]:
    """Group rows by the value of a field, or by the values of several fields."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[field] for field in fields)
        found.setdefault(key if len(fields) > 1 else key[0], []).append(row)
    return found


def matches(row: Row, key: Key) -> bool:
    """Return whether a row has the fields of a key; None matches a missing field."""
    return all(row.get(name) == _plain(value) for name, value in key.items())


def label(key: Key) -> str:
    """Return a key as words for the progress bar."""
    return " ".join(str(value) for value in key.values() if value is not None)


def _plain(value: object) -> object:
    """Return a value as JSON reads it back."""
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def _parse(path: Path) -> Iterator[Row]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and {"what", "date"} <= row.keys():
            yield row
        elif line.endswith("\n"):
            raise ValueError(f"{path}, line {number}: not a row with the fields `what` and `date`")


def _end_last_line(path: Path) -> None:
    """Remove a last line that an interruption has torn, and end a complete one."""
    with path.open("a+b") as file:
        file.seek(0)
        last = file.read().rpartition(b"\n")[2]
        try:
            complete = bool(last) and isinstance(json.loads(last), dict)
        except ValueError:
            complete = False
        if complete:
            file.write(b"\n")
        elif last.startswith(b"{"):
            os.truncate(path, file.tell() - len(last))
        elif last:
            raise ValueError(f"{path} does not end with a row: {last[:40]!r}")
