"""Table 4: the same windows and features for all, baselines beside, and rows that a kill spares."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from paper.bench.target import judge
from paper.report import table4 as report
from paper.reproduce import table4
from paper.reproduce.table4 import FIELDS_READ, PROMISES, WINDOW, Plan, Windows

ROWS = 800
TINY = Plan(
    mixers=("ea-6", "sa"),
    sets=("Traffic",),
    horizons=(6,),
    splits=("chronological",),
    seeds=1,
    share=0.4,
)
KEY = {"data": "Traffic", "split": "chronological", "horizon": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A made-up Traffic of 800 hours: a daily wave, and noise."""
    pandas = pytest.importorskip("pandas")
    hour = np.arange(ROWS)
    noise = np.random.default_rng(0).normal(0, 0.1, ROWS)
    values = 3 + np.sin(2 * np.pi * hour / 24) + noise
    frame = pandas.DataFrame({"date": pandas.date_range("2024-01-01", periods=ROWS, freq="h")})
    path = tmp_path_factory.mktemp("data")
    frame.assign(OT=values).to_csv(path / "traffic.csv", index=False)
    return path


@pytest.mark.parametrize("split", table4.SPLITS)
def test_a_window_holds_values_in_units_of_training_and_the_times_of_its_rows(folder, split):
    data = Windows(KEY | {"split": split}, folder)
    values, calendar = data.at(torch.tensor([3, 50]))
    assert values.shape == (2, WINDOW + 6)
    assert calendar.shape == (2, WINDOW + 6, len(FIELDS_READ[split]))
    assert calendar[1, :, FIELDS_READ[split].index("hour")].tolist() == [
        hour % 24 for hour in range(50, 62)
    ]
    assert data.values[: int(ROWS * 0.7)].mean().abs() < 1e-5
    assert values[0].tolist() == data.values[3:15].tolist()


def test_persistence_is_the_last_known_value(folder):
    data = Windows(KEY, folder)
    forecast = table4.persistence(data)
    starts = data.part("test")
    assert forecast.shape == (len(starts), 6)
    assert (forecast == data.values[starts + WINDOW - 1].unsqueeze(1)).all()


def test_the_trees_see_the_window_and_nothing_after_it(folder):
    data = Windows(KEY, folder)
    before, _ = table4._features(data, "test")
    first = int(data.part("test")[0])
    data.values[first + WINDOW :] = 9.0
    after, _ = table4._features(data, "test")
    assert before[0].tolist() == after[0].tolist()


def test_a_forecaster_sees_the_window_and_nothing_after_it(folder):
    data = Windows(KEY, folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = table4.SETTINGS["Traffic"].model("ea-6", "chronological")
        torch.nn.init.normal_(model.head.weight)
    values, calendar = data.at(data.part("test")[:2])
    errors = table4._errors(model, values, calendar)
    later = values.clone()
    later[:, WINDOW:] += 1.0
    assert torch.allclose(table4._errors(model, later, calendar), errors - 1.0, atol=1e-5)
    assert errors.abs().max() > 0


def test_a_run_is_written_and_a_cut_off_one_continues(folder, tmp_path):
    pytest.importorskip("lightgbm")
    console = Console(quiet=True)
    (path,) = table4.run(TINY, console, tmp_path, data_dir=folder)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    runs = {row["model"]: row for row in rows if row["what"] == "run"}
    assert set(runs) == {"persistence", "lightgbm", "ea-6", "sa"}
    for model in ("lightgbm", "ea-6", "sa"):  # the wave is there to be learnt
        assert runs[model]["mae"] < 0.7 * runs["persistence"]["mae"]
    assert all(row["rmse"] >= row["mae"] > 0 for row in runs.values())
    assert {row["windows"] for row in runs.values()} == {155}
    # As after a kill: the last lines are missing, and some runs with them.
    kept = [row for row in rows if row["what"] == "run" and row["model"] != "ea-6"]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    table4.run(TINY, console, tmp_path, data_dir=folder)
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert again[:3] == kept
    assert again[3]["mae"] == runs["ea-6"]["mae"]  # a seed decides everything
    assert again[-1]["what"] == "finished"


def rows_of(**mae: float) -> list[dict[str, object]]:
    """A chronological run of every set and horizon, with these errors by model."""
    common = {"what": "run", "split": "chronological", "seed": 0, "parameters": 4e4}
    common |= {"hardware": "here", "torch": "2", "date": "2026-01-01", "commit": None}
    return [
        common
        | {"data": data, "horizon": horizon, "model": model.replace("_", "-")}
        | {"mae": value, "rmse": 2 * value, "seconds": 3.0}
        for data, horizon in report.CELLS
        for model, value in mae.items()
    ]


@pytest.mark.parametrize(
    ("trees", "sa", "verdicts"),
    [(1.1, 1.0, ("goal", "must")), (0.97, 0.99, ("must", "must")), (0.9, 0.9, ("miss", "miss"))],
)
def test_ea_6_is_held_to_trees_and_to_softmax_attention(trees, sa, verdicts):
    rows = rows_of(ea_6=1.0, sa=sa, lightgbm=trees)
    judged = {row["name"]: row["verdict"] for row in judge(rows, PROMISES)}
    assert len(judged) == 12
    found = [judged[f"ETTm2/12: MAE, EA-6 / {other}"] for other in ("LightGBM", "SA")]
    assert found == list(verdicts)


def test_what_was_not_run_is_not_judged():
    assert not list(judge(rows_of(ea_6=1.0), PROMISES))


def test_the_table_has_the_paper_beside_it():
    text = report.markdown(rows_of(ea_6=1.25, persistence=2.5))
    assert "| ea-6 | 1.250 / 2.500 |" in text
    assert "| paper's ea-6 | 1.23 / 1.79 |" in text
    assert "random" not in text


def test_an_unknown_mixer_is_named():
    with pytest.raises(ValueError, match="unknown mixer 'xx'"):
        replace(TINY, mixers=("xx",))
