"""A run that is cut off continues where it stopped; any other starts anew, with its own date."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from paper.bench import runlog as module
from paper.bench.runlog import Journal

PLAN = {"sizes": (1, 2, 3)}


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(journal: Journal) -> list[int]:
    """Two single rows and a group of three; which of them were measured now."""
    new = []

    def one(size: int) -> dict:
        new.append(size)
        return {"cost": 10 * size}

    for size in (1, 2):
        journal.row({"what": "time", "size": size}, lambda size=size: one(size))
    journal.group({"what": "curve"}, lambda: [one(size) | {"x": size} for size in (3, 4, 5)])
    return new


def test_rows_are_measured_once_and_carry_one_provenance(tmp_path):
    path = tmp_path / "rows.jsonl"
    journal = Journal(path, "bench", PLAN)
    assert measure(journal) == [1, 2, 3, 4, 5]
    assert measure(journal) == []
    journal.finish()
    assert rows(path) == journal.rows
    assert [row["what"] for row in rows(path)] == ["time"] * 2 + ["curve"] * 3 + ["finished"]
    assert [row.get("cost") for row in rows(path)] == [10, 20, 30, 40, 50, None]
    assert len({row["date"] for row in rows(path)}) == 1
    assert {"bench", "commit", "hardware", "torch", "plan"} <= set(rows(path)[0])


def test_without_a_file_rows_are_kept_in_memory():
    journal = Journal(None, "bench", PLAN)
    assert measure(journal) == [1, 2, 3, 4, 5]
    assert measure(journal) == []
    assert len(journal.rows) == 5


def cut_after(path, count: int, torn: bytes = b"") -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:count]) + torn)


@pytest.mark.parametrize("torn", [b"", b'{"bench": "ben', b"{"], ids=["whole", "torn", "brace"])
@pytest.mark.parametrize(
    ("kept", "again"),
    [(1, [2, 3, 4, 5]), (2, [3, 4, 5]), (3, [3, 4, 5]), (4, [3, 4, 5]), (5, [])],
)
def test_a_run_cut_off_anywhere_continues_and_ends_up_the_same(tmp_path, kept, again, torn):
    """Within the group (3 and 4 rows kept) all of it is measured again, and none is there twice."""
    path = tmp_path / "rows.jsonl"
    measure(Journal(path, "bench", PLAN))
    whole = rows(path)
    cut_after(path, kept, torn)
    journal = Journal(path, "bench", PLAN)
    assert journal.kept == (kept if kept in (1, 2, 5) else 2)
    assert measure(journal) == again
    assert rows(path) == journal.rows == whole


def test_a_row_that_only_lacks_its_end_of_line_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    measure(Journal(path, "bench", PLAN))
    whole = rows(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert measure(Journal(path, "bench", PLAN)) == []
    assert rows(path) == whole


@pytest.mark.parametrize(
    "change", ["bench", "plan", "commit", "dirty", "hardware", "torch", "finished", "never"]
)
def test_any_other_run_starts_anew(tmp_path, monkeypatch, change):
    path = tmp_path / "rows.jsonl"
    first = Journal(path, "bench", PLAN)
    measure(first)
    if change == "finished":
        first.finish()
    bench = "other" if change == "bench" else "bench"
    plan = {"plan": {"sizes": (1, 2)}, "never": None}.get(change, PLAN)
    if change in first.origin and change not in ("bench", "plan"):
        other = {name: first.origin[name] for name in module.provenance()}
        other |= {change: "other", "date": "2026-01-01"}
        monkeypatch.setattr(module, "provenance", lambda: dict(other))
    second = Journal(path, bench, plan)
    assert (second.kept, second.rows) == (0, [])
    assert measure(second) == [1, 2, 3, 4, 5]
    assert second.origin["date"] != first.origin["date"]
    assert rows(path) == first.rows + second.rows


def test_only_the_last_run_continues(tmp_path):
    """An older one that was cut off stays as it is."""
    path = tmp_path / "rows.jsonl"
    old = Journal(path, "bench", {"old": True})
    old.row({"size": 1}, lambda: {"what": "time"})
    measure(Journal(path, "bench", PLAN))
    assert measure(Journal(path, "bench", PLAN)) == []
    assert Journal(path, "bench", {"old": True}).kept == 0


def test_what_is_left_is_the_cost_of_rows_not_kept():
    journal = Journal(None, "bench", PLAN)
    costs = [({"size": 1}, 2.0), ({"size": 2}, 3.0)]
    assert journal.left(costs) == 5.0
    journal.row({"size": 1}, dict)
    assert journal.left(costs) == 3.0


@pytest.mark.parametrize("text", ["a letter to my aunt", "[1]\n", '{"a": 1}\n\nand more'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"notes.txt must hold JSON rows, line \d"):
        Journal(path, "bench", PLAN)
    assert path.read_text() == text


def test_a_path_that_cannot_be_written_fails_before_the_work(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        Journal(tmp_path / "none" / "rows.jsonl", "bench", PLAN)


SLOW = """
import sys, time
from pathlib import Path
from paper.bench.runlog import Journal

journal = Journal(Path(sys.argv[1]), "bench", {})
for n in range(6):
    journal.row({"what": "time", "n": n}, lambda: time.sleep(float(sys.argv[2])) or {"pid": n})
journal.finish()
"""


def test_a_run_that_was_killed_continues_in_another_process(tmp_path):
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, "-c", SLOW, str(path)]
    child = subprocess.Popen([*command, "0.2"])
    while not path.exists() or len(path.read_bytes().splitlines()) < 2:
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    before = rows(path)
    assert 2 <= len(before) < 7
    subprocess.run([*command, "0"], check=True)
    assert rows(path)[: len(before)] == before
    assert [row.get("n") for row in rows(path)] == [0, 1, 2, 3, 4, 5, None]
    assert len({row["date"] for row in rows(path)}) == 1
