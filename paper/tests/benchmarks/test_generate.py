"""The benchmark of one long text at a tiny size."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from paper.benchmarks import generate
from paper.benchmarks.generate import Plan
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = Plan(tokens=24, window=8, prompt=5, dim=16, depth=2, heads=2, vocab=50)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("generate") / "generate.jsonl", "generate")
    assert list(generate.rows(TINY, made)) == made.rows
    return made


def test_every_window_of_every_text_is_a_row(log):
    for mixer, windows in generate.by_mixer(log.rows).items():
        assert [(row["first"], row["last"]) for row in windows] == [(1, 8), (9, 16), (17, 24)]
        assert [row["runs"] for row in windows] == [7, 8, 8]  # the first token has no time
        assert all(0 < row["p20"] <= row["p50"] <= row["p80"] for row in windows)
        held = [count for row in windows for count in (row["bytes_first"], row["bytes_last"])]
        token = 2 * 2 * 16 * 4 if mixer == "sa" else 0  # layers, k and v, channels, bytes
        assert [count - held[0] for count in held] == [token * n for n in (0, 7, 8, 15, 16, 23)]
    first, _, last = generate.by_mixer(log.rows)["ea-6"]
    judged = [verdict.value for verdict in judge(generate.TARGETS, log.rows)]
    assert judged == [last["p50"] / first["p50"], 1.0]
    (table,) = generate.tables(log.rows)
    assert [line[0] for line in table.lines] == ["ea-6", "sa"]
    assert len(generate.draw(log.rows).panels) == 2


def test_a_new_mixer_or_a_longer_text_is_measured(log, monkeypatch):
    written = []
    monkeypatch.setattr(generate, "check", lambda plan, model: {"error": 0.0})
    monkeypatch.setattr(
        generate, "text", lambda plan, model: written.append(model.config.mixer) or plan.windows()
    )
    again = RunLog(log.path, "generate")
    list(generate.rows(replace(TINY, mixers=("ea-6", "sa", "ea-2")), again))
    assert written == ["ea-2"]
    list(generate.rows(replace(TINY, mixers=("sa",), tokens=32), again))
    assert written == ["ea-2", "sa"]
    assert len(generate.by_mixer(again.rows)["sa"]) == 4


def test_a_wrong_cache_is_not_timed(monkeypatch):
    monkeypatch.setattr(generate, "NEAR", 0.0)
    with pytest.raises(RuntimeError, match="with the cache, so nothing was timed"):
        next(generate.rows(TINY, RunLog(None, "generate")))


def test_a_text_of_uneven_windows_is_rejected():
    with pytest.raises(ValueError, match=r"two or more windows .* tokens = 20, window = 8"):
        next(generate.rows(replace(TINY, tokens=20), RunLog(None, "generate")))
