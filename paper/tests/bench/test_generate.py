"""`eattn bench generate` at a tiny size: every window a row, checked before it is timed."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from eattn import cli
from paper.bench import generate as bench
from paper.bench.generate import PROMISES, Plan
from paper.bench.target import judge
from paper.report import generate as report
from paper.report.readme import fill

TINY = Plan(tokens=24, window=8, prompt=5, dim=16, depth=2, heads=2, vocab=50)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Rows as returned, where they were written, and what was printed."""
    path = tmp_path_factory.mktemp("bench") / "generate.jsonl"
    console = Console(width=120, file=io.StringIO())
    rows = bench.run(TINY, console, path)
    return rows, path, console.file.getvalue()


def test_every_window_of_every_text_is_a_row(measured):
    rows, path, text = measured
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    for mixer, of in report.by_mixer(rows).items():
        assert [(row["first"], row["last"]) for row in of] == [(1, 8), (9, 16), (17, 24)]
        assert [row["runs"] for row in of] == [7, 8, 8]  # the first token has no time of its own
        assert all(0 < row["p20"] <= row["p50"] <= row["p80"] for row in of)
        held = [count for row in of for count in (row["bytes_first"], row["bytes_last"])]
        token = 2 * 2 * 16 * 4 if mixer == "sa" else 0  # layers, k and v, channels, bytes
        assert [count - held[0] for count in held] == [token * n for n in (0, 7, 8, 15, 16, 23)]
        assert held[0] > 0
    checked = [row for row in rows if row["what"] == "correctness"]
    assert [row["who"] for row in checked] == ["ea-6", "sa"]
    assert all(row["error"] < 1e-4 for row in checked)
    assert "made for another shape: no judgement" in text
    assert "…" not in text, "a cell was cut"


def test_both_ends_of_one_text_are_judged(measured):
    rows, _, _ = measured
    judged = {row["name"]: row["value"] for row in judge(rows, PROMISES)}
    first, _, last = report.by_mixer(rows)["ea-6"]
    assert list(judged.values()) == [last["p50"] / first["p50"], 1.0]
    assert not list(judge([row for row in rows if row.get("mixer") != "ea-6"], PROMISES))


def test_a_cut_off_run_keeps_the_texts_it_has(measured, tmp_path, monkeypatch):
    rows, _, _ = measured
    kept = [row for row in rows if "ea-6" in (row.get("mixer"), row.get("who"))]
    path = tmp_path / "generate.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    monkeypatch.setattr(bench, "text", lambda plan, model, tick: [{"of": model.config.mixer}])
    monkeypatch.setattr(bench, "print_rows", lambda *args: None)
    found = bench.run(TINY, Console(quiet=True), path)
    assert found[: len(kept)] == kept
    assert [row["of"] for row in found if "of" in row] == ["sa"]


def test_the_run_makes_a_table_of_the_readme(measured):
    rows, path, _ = measured
    table = report.markdown(rows)
    assert table.startswith("| mixer | tokens 1 to 8 | tokens 17 to 24 | × |")
    assert "| sa | " in table
    assert "2 blocks of 16 channels" in table
    assert table in fill("<!-- bench:generate -->\n<!-- /bench:generate -->", path.parent)


def test_a_cache_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(bench, "NEAR", 0.0)
    with pytest.raises(RuntimeError, match="with the cache, so nothing was timed"):
        bench.run(TINY, Console(quiet=True))


def test_the_plan_is_bert_base():
    model = Plan(depth=1).model("sa")
    assert model.num_parameters() == 30522 * 768 + 7_087_872 + 5 * 768 + 2 * 768
    assert (Plan().depth, Plan().tokens, Plan().mixers) == (12, 4096, ("ea-6", "sa"))


def test_what_cannot_be_measured_is_named(capsys):
    assert cli.main(["bench", "generate", "--mixers", "ea-6,sax"]) == 1
    assert "unknown mixer 'sax'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"tokens must be a multiple of 8, .* got 20"):
        replace(TINY, tokens=20)
    with pytest.raises(ValueError, match="window must be at least 2, got 1"):
        replace(TINY, window=1)
