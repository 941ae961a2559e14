"""Pretraining: runs that resume, weights that load, tables and curves."""

import pytest

from eattn.timeseries.pretrained import load_pretrained
from paper.beyond import pretraining
from paper.beyond.pretraining import evaluation, training
from paper.beyond.pretraining.recipe import Groups
from paper.forecasting import classics
from paper.harness.experiment import change
from paper.harness.runlog import RunLog


def row(mixer: str, loss: float, error: float) -> dict:
    points = [{"tokens": 10**6 * n, "loss": loss + 1 / n} for n in (1, 2)]
    points.append({"tokens": 4 * 10**6, "loss": loss})
    errors = {"m1 yearly": error, "m3 yearly": error}
    sizes = {"parameters": 1000, "seconds": 5400.0, "steps": 10, "lr": 2e-3}
    return {"mixer": mixer, "points": points, "errors": errors} | sizes


def test_tables_sort_by_loss_and_losses_name_better_mixers():
    rows = [row("ea-6+decay", 0.8, 0.9), row("gru", 0.7, 0.95)]
    mixers, errors = pretraining.tables(rows)
    assert [line[0] for line in mixers.lines] == ["gru", "ea-6+decay"]
    assert mixers.lines[0][1:] == ["0.7000", "0.950", "1,000", "1.5"]
    assert errors.head == ["mixer", "m1 yearly", "m3 yearly"]
    (sentence,) = pretraining.losses(rows)
    assert "`gru` 0.7000; `ea-6+decay` 0.8000" in sentence
    (panel,) = pretraining.draw(rows).panels
    assert set(panel.looks) == {"ea-6+decay", "gru"}


def test_groups_follow_from_their_numbers():
    again, first = Groups(4).collate([1]), Groups(4).collate([0, 1])
    for name, value in first[1].items():
        assert (value == again[0][name]).all(), name


@pytest.mark.usefixtures("small_data")
def test_a_short_run_trains_saves_and_forecasts(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "JUDGED", 2)
    monkeypatch.setattr(training, "EVALUATIONS", 2)
    training._judged.cache_clear()
    monkeypatch.setattr(evaluation, "SETS", ("m3",))
    monkeypatch.setitem(classics.GROUPS, "m3", ("quarterly",))
    changes = {"mixers": "gru", "steps": "2", "folder": str(tmp_path), "jobs": "1"}
    plan = change(pretraining.plan(quick=True), changes)
    log = RunLog(None, "pretraining")
    (found,) = pretraining.rows(plan, log)
    assert [point["tokens"] for point in found["points"]] == [16384, 32768]
    assert all(error > 0 for error in found["errors"].values())
    assert load_pretrained(str(tmp_path / "gru" / "weights.safetensors")).design["mixer"] == "gru"
    training._judged.cache_clear()
