"""Rows are found again by their own settings, whatever else has changed since."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paper.harness import runlog
from paper.harness.runlog import RunLog, find_row, read_rows

RESULTS = Path(__file__).parents[2] / "results"


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(log: RunLog, sizes=(1, 2), offset: int = 0) -> list[int]:
    """Measure single rows and a group of three; return which of them were measured now."""
    new = []

    def one(size: int) -> dict:
        new.append(size)
        return {"cost": 10 * size + offset}

    for size in sizes:
        log.measure({"what": "time", "size": size}, lambda size=size: one(size))
    log.measure({"what": "curve"}, lambda: [one(size) | {"x": size} for size in (3, 4, 5)])
    return new


def test_rows_are_measured_once_and_carry_provenance(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    log = RunLog(path, "bench")
    assert measure(log) == [1, 2, 3, 4, 5]
    assert measure(log) == []
    assert rows(path) == log.rows == read_rows(path)
    assert [row["cost"] for row in log.rows] == [10, 20, 30, 40, 50]
    assert {"bench", "date", "commit", "dirty", "hardware", "torch"} <= set(log.rows[0])


def test_a_run_continues_after_new_commits_and_on_another_day(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    measure(RunLog(path, "bench"))
    other = {"commit": "other", "hardware": "other", "torch": "9", "dirty": True}
    monkeypatch.setattr(runlog, "provenance", lambda: other)
    monkeypatch.setattr(runlog, "now", lambda: "2027-01-01")
    log = RunLog(path, "bench")
    assert measure(log, sizes=(1, 2, 7)) == [7]
    assert log.find({"size": 7})[0]["commit"] == "other"
    assert log.find({"size": 1})[0]["commit"] != "other"


def test_only_missing_keys_are_measured_together():
    log, calls = RunLog(None, "bench"), []

    def work(missing: list) -> list[dict]:
        calls.append([key["mixer"] for key in missing])
        return [{"cost": len(missing)} for _ in missing]

    keys = [{"what": "time", "mixer": name} for name in ("ea-6", "sa", "la")]
    first = log.measure_together(keys[:2], work)
    found = log.measure_together(keys, work)
    assert calls == [["ea-6", "sa"], ["la"]]
    assert found[:2] == first and [row["cost"] for row in found] == [2, 2, 1]


@pytest.mark.parametrize("torn", [b"", b'{"bench": "ben', b"{"], ids=["whole", "torn", "brace"])
@pytest.mark.parametrize(
    ("kept", "again"), [(1, [2, 3, 4, 5]), (2, [3, 4, 5]), (3, [3, 4, 5]), (4, [3, 4, 5]), (5, [])]
)
def test_an_interrupted_run_continues_and_ends_up_the_same(tmp_path, kept, again, torn):
    """A group that lost rows (3 and 4 rows kept) is measured again as a whole."""
    path = tmp_path / "rows.jsonl"
    measure(RunLog(path, "bench"))
    whole = [row["cost"] for row in rows(path)]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]) + torn)
    log = RunLog(path, "bench")
    assert measure(log) == again
    assert [row["cost"] for row in log.rows] == whole
    assert read_rows(path) == log.rows


def test_a_complete_row_without_its_newline_is_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    measure(RunLog(path, "bench"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert measure(RunLog(path, "bench")) == []
    assert path.read_bytes() == whole


def test_fresh_measures_again_and_the_newest_row_wins(tmp_path):
    path = tmp_path / "rows.jsonl"
    measure(RunLog(path, "bench"))
    assert measure(RunLog(path, "bench", fresh=True), sizes=(2,), offset=1) == [2, 3, 4, 5]
    assert sorted(row["cost"] for row in read_rows(path)) == [10, 21, 31, 41, 51]
    assert len(rows(path)) == 9


def test_a_new_row_replaces_one_without_a_stored_key(tmp_path):
    path = tmp_path / "rows.jsonl"
    old = [{"what": "time", "date": "2026", "size": n, "shape": [1, n]} for n in (1, 2)]
    old += [{"what": "ratio", "date": "2026"}, {"what": "finished", "date": "2026"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in old))
    log = RunLog(path, "bench", fresh=True)
    log.add({"what": "time", "shape": (1, 2), "grows": None}, {"cost": 3})
    assert [row.get("cost") for row in read_rows(path)] == [None, 3]
    assert "grows" not in rows(path)[-1]


def test_none_matches_a_missing_field():
    found = [{"what": "a", "grows": "L"}, {"what": "a"}]
    assert find_row(found, what="a", grows=None) is found[1]
    with pytest.raises(LookupError, match="no row with"):
        find_row(found, what="b")


def test_progress_counts_missing_keys_only():
    calls = []
    log = RunLog(None, "bench", report=lambda *call: calls.append(call))
    keys = [{"what": "time", "size": size} for size in (1, 2)]
    log.measure(keys[0], dict)
    log.expect(keys)
    log.measure(keys[1], dict)
    assert calls[-1] == (2, 1, "time 2")


@pytest.mark.parametrize("text", ["a letter to my aunt", "[1]\n", '{"a": 1}\n\nand more'])
def test_another_kind_of_file_is_refused_and_left_alone(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"notes.txt"):
        RunLog(path, "bench")
    assert path.read_text() == text


def test_an_unwritable_path_fails_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        RunLog(tmp_path / "file" / "rows.jsonl", "bench")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_published_rows_are_readable(path):
    before = path.read_bytes()
    log = RunLog(path, path.stem)
    assert log.rows
    assert not {row["what"] for row in log.rows} & {"finished", "ratio"}
    assert path.read_bytes() == before


SLOW = """
import sys, time
from pathlib import Path
from paper.harness.runlog import RunLog

log = RunLog(Path(sys.argv[1]), "bench")
for n in range(6):
    log.measure({"what": "time", "n": n}, lambda: time.sleep(float(sys.argv[2])) or {"pid": n})
"""


def test_a_killed_run_continues_in_another_process(tmp_path):
    path = tmp_path / "rows.jsonl"
    command = [sys.executable, "-c", SLOW, str(path)]
    child = subprocess.Popen([*command, "0.2"])
    while not path.exists() or len(path.read_bytes().splitlines()) < 2:
        assert child.poll() is None
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    before = rows(path)
    assert 2 <= len(before) < 6
    subprocess.run([*command, "0"], check=True)
    assert rows(path)[: len(before)] == before
    assert [row["n"] for row in rows(path)] == list(range(6))
