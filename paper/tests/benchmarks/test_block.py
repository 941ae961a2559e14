"""The benchmark of a block at a tiny size."""

import pytest
import torch

from eattn.nn import MIXERS
from paper.benchmarks import block
from paper.benchmarks.block import SUM, Plan, make_block, parameters, step
from paper.harness.runlog import RunLog

TINY = Plan(mixers=(SUM, "ea-6"), causal=("ea-6",), lengths=(24,), dim=48, budget=0.01)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> RunLog:
    made = RunLog(tmp_path_factory.mktemp("block") / "block.jsonl", "block")
    assert list(block.rows(TINY, made)) == made.rows
    list(block.rows(TINY, RunLog(made.path, "block")))  # measures nothing again
    assert len(made.path.read_text().splitlines()) == len(made.rows) == 7
    return made


def test_every_mechanism_has_a_complete_row(log):
    steps = [row for row in log.rows if row["what"] == "step"]
    assert [block.label(row) for row in steps] == [SUM, "ea-6", "ea-6, causal"]
    for row in steps:
        assert 0 < row["p20"] <= row["p50"] <= row["p80"] and row["runs"] >= 3
        assert row["tokens_per_second"] == pytest.approx(24 / row["p50"])
        assert row["peak_bytes"] >= 0 and row["parameters"] > 4 * 48 * 48
    (table,) = block.tables(log.rows)
    assert [line[0] for line in table.lines] == [f"`{block.label(row)}`" for row in steps]
    assert len(block.draw(log.rows).panels) == 1


def test_failed_and_slow_steps_are_rows_too(log):
    keys = [{**key, "what": "step", "shape": (1, 24, 48)} for key in TINY.keys(24)]
    again = RunLog(None, "block")
    again.rows = [row for row in log.rows if row["what"] == "trial"]
    again.add(TINY.keys(24)[0], {"reason": "not done after 1 s"})
    failed, *slow = block.times(Plan(dim=48, patience=0.0), again, keys)
    assert failed["reason"] == "not done after 1 s" and "p50" not in failed
    assert [row["runs"] for row in slow] == [1, 1]
    (table,) = block.tables([keys[0] | failed])
    assert table.notes == ["`q+k+v`: not done after 1 s."]


def test_the_baseline_has_parameters_of_ea_and_mixes_nothing():
    assert parameters(SUM, 8, 48) == parameters("ea-6", 8, 48)
    assert parameters("sa", 2048, 768) == 7_087_872  # as counted for bert-base-uncased
    base, x = make_block(SUM, 8, dim=48), torch.randn(1, 8, 48)
    changed = x.clone()
    changed[:, 3] += 1
    moved = (base(changed) - base(x)).abs().amax((0, 2)) > 1e-6
    assert moved.tolist() == [n == 3 for n in range(8)]


@pytest.mark.parametrize("name", [SUM, *MIXERS])
def test_every_mechanism_can_be_trained(name):
    causal = name in ("deltanet", "la+gate", "ea-6+decay", "ea-6+gate")
    assert step(name, length=12, dim=48, causal=causal)().isfinite().all()


def test_a_wrong_layer_is_not_timed(monkeypatch):
    monkeypatch.setattr(block.reference, "ea_series", lambda q, k, v, order: 1.01 * v)
    with pytest.raises(RuntimeError, match="nothing was timed"):
        next(block.rows(TINY, RunLog(None, "block")))
