"""Pretraining: runs that resume, weights that load, tables and curves."""

import pytest

from eattn.timeseries.pretrained import load_pretrained
from paper.beyond import pretraining
from paper.beyond.pretraining import evaluation, training
from paper.beyond.pretraining.recipe import Groups
from paper.forecasting import classics
from paper.harness.experiment import change
from paper.harness.runlog import RunLog


def row(mixer: str, loss: float, error: float, steps: int = 10) -> dict:
    points = [{"tokens": 10**6 * n, "loss": loss + 1 / n} for n in (1, 2)]
    points.append({"tokens": 4 * 10**6, "loss": loss})
    errors = {"m1 yearly": error, "m3 yearly": error}
    sizes = {"parameters": 1000, "seconds": 5400.0, "steps": steps, "lr": 2e-3}
    return {"mixer": mixer, "points": points, "errors": errors} | sizes


def test_tables_sort_by_loss_and_losses_name_better_mixers():
    rows = [row("ea-6+decay", 0.8, 0.9), row("gru", 0.7, 0.95), row("ea-6+decay", 0.6, 0.8, 1000)]
    mixers, errors = pretraining.tables(rows)
    names = ["ea-6+decay, 1,000 steps", "gru, 10 steps", "ea-6+decay, 10 steps"]
    assert [line[0] for line in mixers.lines] == names
    assert mixers.lines[1][1:] == ["0.7000", "0.950", "1,000", "1.5"]
    assert errors.head == ["mixer", "m1 yearly", "m3 yearly"]
    (sentence,) = pretraining.losses(rows)
    assert "`gru` 0.7000; `ea-6+decay` 0.8000" in sentence
    compared, shipped = pretraining.draw(rows).panels
    assert set(compared.looks) == {"ea-6+decay", "gru"}
    assert set(shipped.looks) == {"ea-6+decay"}


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
    changes = {"mixers": "gru", "steps": "1", "compared": "2", "folder": str(tmp_path)}
    plan = change(pretraining.plan(quick=True), changes)
    log = RunLog(None, "pretraining")
    found = list(pretraining.rows(plan, log))
    assert sorted(len(row["points"]) for row in found) == [1, 2]
    for row in found:
        assert [point["tokens"] for point in row["points"]] == [16384, 32768][: row["steps"]]
        assert all(error > 0 for error in row["errors"].values())
    weights = tmp_path / "gru-2" / "weights.safetensors"
    assert load_pretrained(str(weights)).design["mixer"] == "gru"
    training._judged.cache_clear()
