"""README tables are made from rows: filled in place, from the last run, never by hand."""

import json
from pathlib import Path

import pytest

from eattn.report import readme

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


def test_the_tables_of_the_readme_are_those_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.fill(text, ROOT / "results") == text, "run `make readme`"
