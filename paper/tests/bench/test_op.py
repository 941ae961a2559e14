"""`eattn bench op` at a tiny size: rows complete, promises judged, a wrong operator not timed."""

import io
import json

import pytest
from rich.console import Console

from paper.bench import contract, op
from paper.bench.op import Plan
from paper.report.readme import last_run, op_table

TINY = Plan(
    shape=(1, 96, 64),
    rounds=2,
    slow_rounds=1,
    lengths=(32, 64, 96),
    orders=(2, 4),
    series=(1, 512, 3),
    calls=3,
    peaks=("ours",),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Rows as returned, as written, and what was printed."""
    path = tmp_path_factory.mktemp("bench") / "op.jsonl"
    console = Console(width=160, file=io.StringIO())
    rows = op.run(TINY, console, path)
    return rows, path, console.file.getvalue()


def test_every_row_is_written_with_its_provenance(measured):
    rows, path, _ = measured
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == json.loads(json.dumps(rows))
    for row in rows:
        assert {"bench", "what", "date", "commit", "dirty", "hardware", "torch"} <= set(row)


def test_correctness_comes_first(measured):
    rows, _, text = measured
    assert rows[0]["what"] == "correctness"
    assert text.lstrip().startswith("correct")


def test_every_time_is_complete(measured):
    rows, _, _ = measured
    times = [row for row in rows if row["what"] not in ("correctness", "ratio")]
    for row in times:
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
        assert row["runs"] > 0
        assert {"who", "shape", "order", "causal", "dtype", "threads", "peak_bytes"} <= set(row)
    who = {row["who"] for row in times if row["what"] == "forward+backward"}
    assert who == {"ours", "quadrature", "paper", "sdpa"}
    assert {row["shape"][1] for row in times if row.get("grows") == "L"} == set(TINY.lengths)
    assert {row["order"] for row in times if row.get("grows") == "order"} == set(TINY.orders)


def test_every_promise_is_judged_and_printed(measured):
    rows, _, text = measured
    judged = {row["name"] for row in rows if row["what"] == "ratio"}
    two_cores = {promise.name for promise in contract.PROMISES if "thread" in promise.name}
    everything = {promise.name for promise in contract.PROMISES}
    assert judged in (everything, everything - two_cores)
    assert all(name in text for name in judged)


def test_the_readme_table_comes_from_the_same_rows(measured):
    rows, path, _ = measured
    table = op_table(last_run(path))
    assert all(row["name"] in table for row in rows if row["what"] == "ratio")


@pytest.mark.parametrize(
    ("at_most", "value", "verdict"),
    [(True, 1.0, "goal"), (True, 1.5, "must"), (True, 2.1, "miss"), (False, 1.0, "miss")],
)
def test_a_verdict_is_the_best_that_holds(at_most, value, verdict):
    goal = 1.2 if at_most else 3.0
    promise = contract.Promise("", lambda rows: value, 2.0, goal, at_most)
    assert promise.verdict(value) == verdict


def test_not_a_number_is_a_miss():
    assert contract.PROMISES[0].verdict(float("nan")) == "miss"


def test_a_wrong_operator_is_not_timed(monkeypatch):
    def wrong(*qkv, **options):
        return op.reference.ea_expanded(*qkv, **options) * 1.01

    monkeypatch.setattr(op, "ea_series", wrong)
    with pytest.raises(RuntimeError, match="nothing was timed"):
        next(op.measure(TINY, lambda name, cost: None))


def test_the_plans_are_the_contracts():
    assert Plan().shape == Plan.quick().shape == contract.SHAPE
    assert Plan().seconds < 300
    assert Plan.quick().seconds < 60
