"""Two processes on one sequence, at a small size."""

from functools import partial

import pytest
import torchrun_helpers

from paper.benchmarks import ranks
from paper.harness.peak import DiedError
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = ranks.Plan(length=65, dim=8, budget=0.01, sizes=(64, 4096), rounds=2)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    start, made = ranks.start, RunLog(tmp_path_factory.mktemp("ranks") / "ranks.jsonl", "ranks")

    def forked(world, work, **options):
        if work == "check":
            return start(world, work, **options)
        function = partial(ranks.WORK[work], **options)
        found, _ = torchrun_helpers.run(function, world, tmp_path_factory.mktemp(work))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "start", forked)
        assert list(ranks.rows(TINY, made)) == made.rows
    return made


def test_shards_are_checked_before_they_are_timed(log):
    assert log.rows[0]["what"] == "correctness"
    assert 0 < log.rows[0]["error"] < 1e-4


def test_steps_and_messages_are_timed(log):
    one, two = (row for row in log.rows if row["what"] == "step")
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["runs"] == two["runs"] >= 3
    assert [row["bytes"] for row in log.rows if row["what"] == "gather"] == [64, 4096]
    before = log.path.read_bytes()
    assert list(ranks.rows(TINY, RunLog(log.path, "ranks"))) == log.rows
    assert log.path.read_bytes() == before


def test_the_target_is_judged_at_its_shape_only(log):
    assert judge(ranks.TARGETS, log.rows) == []
    moved = [row | {"shape": list(ranks.SHAPE)} for row in log.rows]
    assert len(judge(ranks.TARGETS, moved)) == 1
    steps, messages = ranks.tables(log.rows)
    assert [cells[0] for cells in steps.lines] == ["1", "2"]
    assert [cells[0] for cells in messages.lines] == ["64", "4,096"]


def test_a_process_that_dies_reports_why():
    with pytest.raises(DiedError, match=r"process 0 died \(exit 1\): .*dim"):
        ranks.start(1, "check", dim=0)
