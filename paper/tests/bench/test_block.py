"""`eattn bench block` at a tiny size: every mechanism a row, dead ones too, promises judged."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from eattn.nn import MIXERS
from paper.bench import block, peak
from paper.bench.block import PROMISES, Plan
from paper.bench.step import SUM, make_block, parameters, step
from paper.bench.target import judge
from paper.report.readme import block_table, fill, last_run

TINY = Plan(mixers=(SUM, "ea-6"), causal=("ea-6",), lengths=(24,), dim=48, budget=0.01)


def printed(plan: Plan, path: Path | None) -> tuple[list[dict], str]:
    console = Console(width=80, file=io.StringIO())
    rows = block.run(plan, console, path)
    return rows, console.file.getvalue()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Rows as returned, as written, and what was printed."""
    path = tmp_path_factory.mktemp("bench") / "block.jsonl"
    rows, text = printed(TINY, path)
    return rows, path, text


def steps(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["what"] == "step"]


def test_every_row_is_written_as_returned_and_the_run_is_closed(measured):
    rows, path, _ = measured
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    assert rows[0]["what"] == "correctness"
    assert rows[-1]["what"] == "finished"
    assert rows[-1]["config"]["lengths"] == [24]


def test_every_mechanism_has_a_complete_row(measured):
    rows, _, text = measured
    found = {(row["mixer"], row["causal"]) for row in steps(rows)}
    assert found == {(SUM, False), ("ea-6", False), ("ea-6", True)}
    for row in steps(rows):
        assert 0 < row["p20"] <= row["p50"] <= row["p80"]
        assert row["tokens_per_second"] == pytest.approx(24 / row["p50"])
        assert row["runs"] >= 3
        assert row["peak_bytes"] >= 0
        assert row["parameters"] > 4 * 48 * 48
    assert all(name in text for name in (SUM, "ea-6, causal", "token/s"))
    assert "…" not in text, "a cell was cut"


def test_the_run_makes_a_table_of_the_readme(measured):
    _, path, _ = measured
    table = block_table(last_run(path))
    assert "| `ea-6` |" in table
    assert "| `ea-6`, causal |" in table
    place = "<!-- bench:block -->\n<!-- /bench:block -->"
    assert table in fill(place, path.parent)


def test_what_cannot_run_is_a_row_with_the_reason():
    """Every trial is given up at once here; the run goes on, and there is nothing to judge."""
    plan = Plan(mixers=(SUM, "ea-6"), causal=(), lengths=(8,), dim=48, limit=0.01)
    rows, text = printed(plan, None)
    assert [row["reason"] for row in steps(rows)] == ["not done after 0.01 s"] * 2
    assert not any("p50" in row for row in steps(rows))
    assert "ea-6: not done after 0.01 s" in text
    assert not any(row["what"] == "ratio" for row in rows)
    assert "`ea-6` at L = 8: not done after 0.01 s" in block_table(rows)


def test_what_is_slow_is_timed_once(measured):
    rows, _, _ = measured
    trials = {(r["mixer"], r["causal"]): r for r in rows if r["what"] == "trial"}
    hasty = Plan(mixers=TINY.mixers, causal=("ea-6",), lengths=(24,), dim=48, patience=0.0)
    found = list(block.times(hasty, 24, trials, lambda name, cost: None))
    assert [row["runs"] for row in found] == [1] * 3
    assert [row["p50"] for row in found] == [row["seconds"] for row in trials.values()]


# ---- what is timed -------------------------------------------------------------------------------


def test_a_step_computes_gradients_of_all_parameters_and_of_the_input():
    block = make_block("ea-6", 8, dim=48)
    x = torch.randn(1, 8, 48, requires_grad=True)
    block(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is not None for p in block.parameters())


def test_the_base_line_has_the_parameters_of_ea_and_mixes_nothing():
    assert parameters(SUM, 8, 48) == parameters("ea-6", 8, 48)
    base = make_block(SUM, 8, dim=48)
    x = torch.randn(1, 8, 48)
    changed = x.clone()
    changed[:, 3] += 1
    moved = (base(changed) - base(x)).abs().amax((0, 2)) > 1e-6
    assert moved.tolist() == [n == 3 for n in range(8)]


def test_a_block_of_bert_base_has_its_seven_million_parameters():
    assert parameters("sa", 2048, 768) == 7_087_872  # as counted for bert-base-uncased


@pytest.mark.parametrize("name", [SUM, *MIXERS])
@pytest.mark.parametrize("causal", [False, True])
def test_every_mechanism_can_be_stepped(name, causal):
    y = step(name, length=12, dim=48, causal=causal)()
    assert y.shape == (1, 12, 48)
    assert y.isfinite().all()


def test_a_wrong_layer_is_not_timed(monkeypatch):
    monkeypatch.setattr("paper.bench.step.reference.ea_series", lambda q, k, v, order: 1.01 * v)
    with pytest.raises(RuntimeError, match="nothing was timed"):
        printed(TINY, None)


# ---- plans and promises --------------------------------------------------------------------------


def test_the_plans_hold_every_mechanism_and_the_promised_lengths():
    assert set(Plan().mixers) == {SUM, *MIXERS} - {"ea-q17"}  # costs what ea-N does
    assert Plan().lengths == (2048, 8192)
    assert Plan.quick().lengths == (2048,)
    assert set(Plan().mixers) - set(Plan.quick().mixers) == {"ea"}
    assert Plan().dim == Plan.quick().dim == 768


def test_lengths_and_mixers_come_from_the_command_line():
    plan = Plan.quick().changed(lengths="16,32", mixers="ea-4, q+k+v")
    assert (plan.lengths, plan.mixers) == ((16, 32), ("ea-4", SUM))
    assert Plan().changed(lengths=None, mixers=None) == Plan()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lengths": "2048;8192"}, "lengths must be numbers .* got '2048;8192'"),
        ({"lengths": ""}, "lengths must be numbers"),
        ({"lengths": "0"}, "lengths must be at least 1, got 0"),
        ({"mixers": "ea-6,sax"}, "unknown mixer 'sax'"),
    ],
)
def test_a_bad_option_is_named(changes, reason):
    with pytest.raises(ValueError, match=reason):
        Plan().changed(**{"lengths": None, "mixers": None} | changes)


def row(mixer: str, length: int, p50: float) -> dict:
    return {"what": "step", "mixer": mixer, "causal": False, "L": length, "p50": p50}


@pytest.mark.parametrize(("ea", "sa", "verdicts"), [(1.1, 2.0, "must"), (1.2, 1.1, "miss")])
def test_promises_are_judged_from_the_rows(ea, sa, verdicts):
    rows = [row(m, L, t) for L in (2048, 8192) for m, t in ((SUM, 1.0), ("ea-6", ea), ("sa", sa))]
    judged = list(judge(rows, PROMISES))
    assert [r["name"] for r in judged] == [promise.name for promise in PROMISES]
    assert {r["verdict"] for r in judged} == {verdicts}
    assert judged[0]["value"] == pytest.approx(ea)
    assert judged[1]["value"] == pytest.approx(sa / ea)


# ---- points that die -----------------------------------------------------------------------------


def greedy():
    return lambda: torch.ones(10**15, dtype=torch.uint8)


def killed():
    import os
    import signal

    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def asleep():
    import time

    return lambda: time.sleep(1000)


@pytest.mark.parametrize(
    ("function", "limit", "reason"),
    [
        ("greedy", None, "out of memory"),
        ("killed", None, "killed by SIGKILL"),
        ("asleep", 0.5, "not done after 0.5 s"),
    ],
)
def test_a_point_that_dies_gives_its_reason(monkeypatch, function, limit, reason):
    folder, _, module = __file__.removesuffix(".py").rpartition("/")
    monkeypatch.setenv("PYTHONPATH", folder)
    row = peak.trial(f"{module}:{function}", limit=limit)
    assert set(row) == {"reason"}
    assert reason in row["reason"]
