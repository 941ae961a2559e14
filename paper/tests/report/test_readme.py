"""README tables are made from rows: filled in place, from the last run, never by hand."""

import json
from pathlib import Path

import pytest

from paper.report import readme, scaling

ROOT = Path(__file__).parents[2]
ROW = {
    "what": "ratio",
    "name": "a / b",
    "value": 1.234567,
    "unit": "×",
    "must": 2.0,
    "goal": 1.2,
    "at_most": True,
    "verdict": "must",
    "hardware": "a machine",
    "torch": "2.13.0",
    "date": "2026-01-02T00:00:00",
}


@pytest.fixture
def results(tmp_path) -> Path:
    old = ROW | {"value": 9.9, "date": "2026-01-01T00:00:00"}
    lines = [json.dumps(row) for row in (old, ROW)]
    (tmp_path / "op.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_marked_place_gets_the_last_run(results):
    text = readme.fill("before\n<!-- bench:op -->\nold\n<!-- /bench:op -->\nafter\n", results)
    assert "| a / b | 1.23× | ≤ 2 | ≤ 1.2 |" in text
    assert "9.9" not in text
    assert "old" not in text
    assert text.startswith("before\n<!-- bench:op -->\n")
    assert text.endswith("<!-- /bench:op -->\nafter\n")
    assert readme.fill(text, results) == text


def test_a_missed_promise_says_so(results):
    (results / "op.jsonl").write_text(json.dumps(ROW | {"verdict": "miss"}) + "\n")
    assert "(missed)" in readme.op_table(readme.last_run(results / "op.jsonl"))


def test_without_results_nothing_changes(tmp_path):
    assert readme.fill("text", tmp_path) == "text"


def test_a_place_that_is_not_there_is_an_error(results):
    with pytest.raises(ValueError, match="bench:op"):
        readme.fill("no place", results)


@pytest.mark.parametrize("name", readme.DOCUMENTS)
def test_the_tables_of_a_document_are_those_of_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert readme.DOCUMENTS[name](text, ROOT / "results") == text, "run `make readme`"


def test_a_run_of_ranks_stands_beside_what_the_model_of_costs_says():
    about = {"hardware": "a machine", "torch": "2.13.0", "date": "2026-01-02T00:00:00"}
    rows = [
        about | {"what": "step", "ranks": 1, "shape": (1, 1000, 10), "p50": 0.72},
        about | {"what": "step", "ranks": 2, "shape": (1, 1000, 10), "p50": 0.45},
        about
        | {"what": "message", "latency": 1e-3, "bandwidth": 4800.0, "worst": 0.1, "state_bytes": 9},
    ]
    text = scaling.measured(rows)
    assert "| that is, of the block's matrices alone | 0.0 GFLOP/s |" in text
    # 2 messages of 4 (10 · 15 + 2) bytes; then 4800 bytes of gradients, half of them twice
    assert "| model: states exchanged by 2 processes | 255 ms |" in text
    assert "| model: gradients of the weights summed | 1 s |" in text
    assert "| model: 2 processes, a training step | 1.617 s |" in text
    assert "| measured / model | 0.28 |" in text


def test_on_paper_only_the_exchange_of_ring_attention_grows_with_the_sequence():
    machine, D = scaling.PAPER, scaling.PAPER_DIM
    short, long = (scaling.ring_exchange(machine, 8, L, D) for L in scaling.TOKENS.values())
    assert long / short == pytest.approx(1024, rel=0.01)
    assert scaling.ea_exchange(machine, 8, D) < short / 100
