"""`eattn bench ranks` at small sizes: rows, a promise that is judged, and a run that goes on."""

import io
import json

import pytest
from rich.console import Console

from paper.bench import ranks
from paper.bench.peak import DiedError
from paper.bench.target import find

PLAN = ranks.Plan(length=65, dim=8, budget=0.01, sizes=(64, 4096), rounds=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "rows.jsonl"
    shown = io.StringIO()
    rows = ranks.run(PLAN, Console(width=120, file=shown), path)
    return rows, shown.getvalue(), path


def test_slices_are_compared_before_they_are_timed(run):
    rows, text, _ = run
    assert rows[0]["what"] == "correctness"
    assert 0 < rows[0]["error"] < 1e-4
    assert "slices are correct to" in text


def test_both_are_timed_in_one_run_and_judged(run):
    rows, text, path = run
    one, two = (find(rows, what="step", ranks=n) for n in (1, 2))
    assert one["runs"] == two["runs"] >= 3
    ratio = find(rows, what="ratio")
    assert ratio["value"] == one["p50"] / two["p50"]
    assert (ratio["must"], ratio["at_most"]) == (1.7, False)
    assert "no judgement" in text  # it is promised for other sizes
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows


def test_a_message_has_a_latency_and_a_bandwidth():
    """That of times which are latency + bytes / bandwidth."""
    rows = [
        {"what": "gather", "bytes": n, "p50": 2e-4 + n / 1e9} for n in (64, 4096, 262144, 4194304)
    ]
    (found,) = ranks.fit(PLAN, rows)
    assert found["latency"] == pytest.approx(2e-4)
    assert found["bandwidth"] == pytest.approx(1e9)
    assert found["worst"] < 1e-6
    assert found["state_bytes"] == 4 * (8 * 15 + 2)


def test_messages_of_every_size_are_timed(run):
    rows, _, _ = run
    assert [row["bytes"] for row in rows if row["what"] == "gather"] == [64, 4096]


def test_a_process_that_dies_says_why():
    with pytest.raises(DiedError, match=r"process 0 died \(exit 1\): .*dim"):
        ranks.start(1, "check", dim=0)
