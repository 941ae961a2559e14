"""The benchmark of drafts, edits and snapshots at a tiny size."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from paper.benchmarks import speculate
from paper.benchmarks.speculate import Plan
from paper.harness.runlog import RunLog, rows_of
from paper.harness.target import judge

TINY = Plan(
    tokens=40,
    prompt=60,
    drafts=4,
    rounds=2,
    length=60,
    every=8,
    edit_rounds=2,
    dim=16,
    depth=2,
    heads=2,
    vocab=400,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("speculate") / "speculate.jsonl", "speculate")
    assert list(speculate.rows(TINY, made)) == made.rows
    return made


def test_every_text_and_edit_is_a_row(log):
    texts = {(row["text"], row["way"]): row for row in rows_of(log.rows, "text")}
    assert set(texts) == {(t, w) for t in ("code", "prose") for w in ("plain", "lookup")}
    assert all(0 < row["p20"] <= row["p50"] <= row["p80"] for row in texts.values())
    for text in ("code", "prose"):
        plain, lookup = texts[text, "plain"], texts[text, "lookup"]
        assert lookup["calls"] < plain["calls"] == 40 and lookup["bytes"] > plain["bytes"]
    assert texts["code", "lookup"]["calls"] < texts["prose", "lookup"]["calls"]
    edits = {(row["edit"], row["way"]): row for row in rows_of(log.rows, "edit")}
    assert {key: row["read"] for key, row in edits.items()} == {
        (0.1, "prefix"): 60,
        (0.1, "again"): 60,
        (0.1, "sa"): 54,
        (0.5, "prefix"): 36,
        (0.5, "again"): 60,
        (0.5, "sa"): 30,
        (0.9, "prefix"): 12,
        (0.9, "again"): 60,
        (0.9, "sa"): 6,
    }


def test_bytes_of_a_session_are_counted(log):
    row = rows_of(log.rows, "edit")[0]
    state = 2 * (2 * 7 + 1 + 3) * 16 * 4  # layers; s and z, shift and convolution; bytes
    assert row["state"] == state and row["count"] == 8
    assert row["snapshots"] == 8 * state
    assert 3 < row["snapshots"] / row["int8"] < 4 and 0 < row["int8_error"] < 0.05
    assert row["keys"] == 60 * 2 * 2 * 16 * 4  # tokens, layers, k and v, channels, bytes


def test_results_are_reported(log):
    assert len(judge(speculate.TARGETS, log.rows)) == 3
    assert [len(table.lines) for table in speculate.tables(log.rows)] == [2, 3, 5]
    assert len(speculate.draw(log.rows).panels) == 1
    rows = [
        row | {"p50": 2.0 if row.get("way") in ("lookup", "prefix") else 1.0} for row in log.rows
    ]
    assert len(list(speculate.losses(rows))) == 2 + 6


def test_rows_that_exist_are_not_measured_again(log, monkeypatch):
    monkeypatch.setattr(RunLog, "add", None)
    assert list(speculate.rows(TINY, RunLog(log.path, "speculate"))) == log.rows


def test_text_is_forced_without_forbidding_other_tokens():
    prompt, text = TINY.text("prose")
    force = speculate.Force(text, prompt.shape[1])
    for n in (0, 3):
        scores = torch.randn(1, TINY.vocab)
        forced = force(torch.cat([prompt, text[:, :n]], 1), scores.clone())
        assert forced.argmax() == text[0, n] and bool(forced.isfinite().all())
        assert int((forced != scores).sum()) == 1
    end = torch.cat([prompt, text], 1)
    assert torch.equal(force(end, scores), scores)


def test_only_the_variable_of_the_file_is_renamed():
    prompt, text = replace(TINY, tokens=500).text("code")
    same = (prompt[:, :500] == text).float().mean()
    assert prompt.shape[1] > 2000 and 0 < same < 1


def test_wrong_logits_are_not_timed(monkeypatch):
    monkeypatch.setattr(speculate, "NEAR", 0.0)
    with pytest.raises(RuntimeError, match="with drafts, so nothing was timed"):
        next(speculate.rows(TINY, RunLog(None, "speculate")))


def test_a_text_that_is_too_short_is_rejected():
    with pytest.raises(ValueError, match=r"prose has \d+ tokens, fewer than 9999"):
        replace(TINY, tokens=9999).text("prose")
    with pytest.raises(ValueError, match=r"length must be at least 10 .* length = 5"):
        next(speculate.rows(replace(TINY, length=5), RunLog(None, "speculate")))
