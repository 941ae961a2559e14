"""The benchmark of streams and many series at a tiny size."""

from dataclasses import replace

import pytest

pytest.importorskip("pandas", reason='needs pip install "eattn[timeseries]"')

from eattn.timeseries import training
from paper.benchmarks import stream
from paper.benchmarks.stream import Plan
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = Plan(rows=20, part=10, horizon=2, series=3, length=60, rounds=2)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("stream") / "stream.jsonl", "stream")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "STEPS", (2, 2))
        assert list(stream.rows(TINY, made)) == made.rows
    return made


def test_every_part_and_every_call_is_a_row(log):
    parts = [row for row in log.rows if row["what"] == "stream"]
    assert [(row["last"], row["runs"]) for row in parts] == [(10, 10), (20, 10)]
    assert all(0 < row["p50"] <= row["p99"] and row["resident"] for row in parts)
    assert parts[0]["state"] == parts[1]["state"] > 0
    assert [row["runs"] for row in log.rows[2:]] == [1, 2, 2]
    assert len(judge(stream.TARGETS, log.rows)) == len(stream.TARGETS)
    assert [len(table.lines) for table in stream.tables(log.rows)] == [2, 3]
    assert len(stream.draw(log.rows).panels) == 2


def test_rows_that_exist_are_not_measured_again(log, monkeypatch):
    monkeypatch.setattr(stream, "follow", None)
    monkeypatch.setattr(stream, "many", None)
    assert list(stream.rows(TINY, RunLog(log.path, "stream"))) == log.rows


def test_a_stream_of_uneven_parts_is_rejected():
    with pytest.raises(ValueError, match=r"multiple of a part .* rows = 25, part = 10"):
        next(stream.rows(replace(TINY, rows=25), RunLog(None, "stream")))


def test_the_text_continues_the_history():
    rows = list(stream.text(2))
    assert rows[0].startswith("2020-02-11 16:00:00,")  # 1,000 hours after the start
