"""The operator's benchmark at a tiny size."""

import pytest

from paper.benchmarks import op
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = op.Plan(
    shape=(1, 96, 64),
    rounds=2,
    slow_rounds=1,
    lengths=(32, 64),
    orders=(2, 4),
    series=(1, 512, 3),
    calls=3,
    peaks=("ours",),
)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("bench") / "op.jsonl", "op")
    assert list(op.rows(TINY, made)) == made.rows
    return made


def test_correctness_comes_first_and_times_are_complete(log):
    assert log.rows[0]["what"] == "correctness"
    for row in log.rows[1:]:
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
        assert {"who", "shape", "order", "causal", "dtype", "threads", "peak_bytes"} <= set(row)
    grown = {row["shape"][1] for row in log.rows if row.get("grows") == "L"}
    assert grown == set(TINY.lengths)
    trained = [r for r in log.rows if r["what"] == "forward+backward" and not r.get("grows")]
    assert [row["who"] for row in trained] == list(op.CANDIDATES)
    assert trained[0]["peak_bytes"] > 0
    forgetting = [row["who"] for row in log.rows if row.get("grows") == "decay"]
    assert forgetting == ["ours", "decay", "gate"]


def test_a_finished_run_measures_nothing(log, monkeypatch):
    before = log.path.read_bytes()
    again = RunLog(log.path, "op")
    assert list(op.rows(TINY, again)) == log.rows
    assert log.path.read_bytes() == before


def test_every_target_is_judged_at_the_contract_shape(log):
    assert judge(op.TARGETS, log.rows, quick=True) == []
    moved = [row | {"shape": op.SHAPE} if row["shape"] == [1, 96, 64] else row for row in log.rows]
    moved = [row | {"shape": list(row["shape"])} for row in moved]
    judged = {verdict.target.name for verdict in judge(op.TARGETS, moved)}
    everything = {target.name for target in op.TARGETS}
    assert judged in (everything, {name for name in everything if "long series" not in name})
    assert sum(target.quick for target in op.TARGETS) == 5


def test_tables_and_chart_show_the_rows(log):
    titles = [table.title for table in op.tables(log.rows)]
    assert "Growth with L" in titles and "Growth with order" in titles
    chart = op.draw(log.rows)
    assert [panel.title[:3] for panel in chart.panels] == ["(a)", "(b)", "(c)"]


def test_a_wrong_operator_is_not_timed(monkeypatch):
    def wrong(*qkv, **options):
        return op.reference.ea_expanded(*qkv, **options) * 1.01

    monkeypatch.setattr(op, "ea_series", wrong)
    with pytest.raises(RuntimeError, match="nothing was timed"):
        next(op.rows(TINY, RunLog(None, "op")))
