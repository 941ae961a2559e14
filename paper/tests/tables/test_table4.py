"""Table 4: windows without overlap, equal features for all models, and runs that are resumed."""

import numpy as np
import pytest
import torch

from paper.harness.experiment import result
from paper.harness.runlog import RunLog
from paper.harness.target import judge
from paper.tables import table4
from paper.tables.table4 import FIELDS_READ, WINDOW, Cuts, Plan, Windows, cuts, windows

ROWS = 800
AT = Cuts(700, 800, 1000)
TINY = Plan(("ea-6", "sa"), ("Traffic",), (6,), ("chronological",), seeds=1, share=0.4)
KEY = {"data": "Traffic", "split": "chronological", "horizon": 6}


def test_datasets_are_cut_as_in_the_literature():
    assert cuts("ETTh1", 17420) == (8640, 11520, 14400)
    assert cuts("ETTm2", 69680) == (34560, 46080, 57600)
    assert cuts("Traffic", 17544) == (12280, 14036, 17544)
    with pytest.raises(ValueError, match="ETTh2 must have 14400 rows to be cut by months, got 99"):
        cuts("ETTh2", 99)


def predicted(starts: torch.Tensor, horizon: int) -> set[int]:
    return {row + WINDOW + step for row in starts.tolist() for step in range(horizon)}


@pytest.mark.parametrize("horizon", [1, 12])
def test_chronological_parts_predict_every_row_once(horizon):
    at = Cuts(50, 70, 97)
    rows = [predicted(windows(at, horizon, part), horizon) for part in Cuts._fields]
    assert rows == [set(range(WINDOW, 50)), set(range(50, 70)), set(range(70, 97))]
    assert windows(at, horizon, "val").tolist() == [*range(50 - WINDOW, 71 - WINDOW - horizon)]


def test_random_parts_share_out_all_windows_and_leak():
    parts = [windows(AT, 6, part, split="random") for part in Cuts._fields]
    assert torch.cat(parts).sort().values.tolist() == list(range(1000 - 12 + 1))
    assert [len(part) for part in parts] == [692, 99, 198]
    trained, tested = predicted(parts[0], 6), predicted(parts[2], 6)
    assert len(tested & trained) > 0.9 * len(tested)


def test_impossible_windows_are_refused():
    with pytest.raises(ValueError, match="split must be one of chronological, random, got 'x'"):
        windows(AT, 6, "train", split="x")
    for horizon, reason in ((0, "at least 1, got 0"), (15, "20 rows give no window of 6 . 15")):
        for split in table4.SPLITS:
            with pytest.raises(ValueError, match=reason):
                windows(Cuts(14, 16, 20), horizon, "val", split=split)


@pytest.fixture
def traffic(tmp_path, monkeypatch) -> None:
    """Make Traffic 800 hours of a daily wave with noise."""
    pandas = pytest.importorskip("pandas")
    noise = np.random.default_rng(0).normal(0, 0.1, ROWS)
    values = 3 + np.sin(2 * np.pi * np.arange(ROWS) / 24) + noise
    frame = pandas.DataFrame({"date": pandas.date_range("2024-01-01", periods=ROWS, freq="h")})
    frame.assign(OT=values).to_csv(tmp_path / "traffic.csv", index=False)
    monkeypatch.setenv("EATTN_DATA", str(tmp_path))


@pytest.mark.usefixtures("traffic")
@pytest.mark.parametrize("split", table4.SPLITS)
def test_windows_hold_standardised_values_and_their_times(split):
    data = Windows(KEY | {"split": split})
    values, calendar = data.at(torch.tensor([3, 50]))
    assert values.shape == (2, WINDOW + 6)
    assert calendar.shape == (2, WINDOW + 6, len(FIELDS_READ[split]))
    hours = calendar[1, :, FIELDS_READ[split].index("hour")].tolist()
    assert hours == [hour % 24 for hour in range(50, 62)]
    assert data.values[: int(ROWS * 0.7)].mean().abs() < 1e-5
    assert values[0].tolist() == data.values[3:15].tolist()


@pytest.mark.usefixtures("traffic")
def test_no_model_sees_rows_after_its_window():
    data = Windows(KEY)
    starts = data.starts["test"]
    assert (table4.persistence(data) == data.values[starts + WINDOW - 1].unsqueeze(1)).all()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = table4.SETTINGS["Traffic"].model("ea-6", "chronological")
        torch.nn.init.normal_(model.head.weight)
    values, calendar = data.at(starts[:2])
    errors = table4.forecast_errors(model, values, calendar)
    later = values.clone()
    later[:, WINDOW:] += 1.0
    moved = table4.forecast_errors(model, later, calendar)
    assert torch.allclose(moved, errors - 1.0, atol=1e-5)
    assert errors.abs().max() > 0
    before, _ = table4.features(data, "test")
    data.values[int(starts[0]) + WINDOW :] = 9.0
    after, _ = table4.features(data, "test")
    assert before[0].tolist() == after[0].tolist()


@pytest.mark.usefixtures("traffic")
def test_models_learn_the_wave_and_runs_are_resumed(tmp_path):
    pytest.importorskip("lightgbm")
    path = tmp_path / "rows.jsonl"
    first = {row["model"]: row for row in table4.rows(TINY, RunLog(path, "table4"))}
    assert set(first) == {"persistence", "lightgbm", "ea-6", "sa"}
    for model in ("lightgbm", "ea-6", "sa"):
        assert first[model]["mae"] < 0.7 * first["persistence"]["mae"]
    assert all(row["rmse"] >= row["mae"] > 0 for row in first.values())
    assert {row["windows"] for row in first.values()} == {155}
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"model": "ea-6"' not in line))
    again = {row["model"]: row for row in table4.rows(TINY, RunLog(path, "table4"))}
    assert again.pop("ea-6")["mae"] == first.pop("ea-6")["mae"]  # the seed decides everything
    assert again == first


def test_published_rows_belong_to_the_full_plan():
    log = RunLog(None, "table4")
    log.rows = result("table4").rows
    keys = list(table4.plan(quick=False).runs())
    assert [len(log.find(key)) for key in keys] == [1] * len(log.rows)
    trained = [key for key in table4.plan(quick=True).runs() if key["epochs"] is not None]
    assert not any(log.has(key) for key in trained)


def rows_of(**mae: float) -> list[dict[str, object]]:
    """Chronological runs of every dataset and horizon, with these errors by model."""
    common = {"what": "run", "split": "chronological", "seed": 0}
    return [
        common
        | {"data": data, "horizon": horizon, "mae": value, "rmse": 2 * value}
        | {"model": model.replace("_", "-")}
        for data, horizon in table4.CELLS
        for model, value in mae.items()
    ]


@pytest.mark.parametrize(
    ("trees", "sa", "words"), [(1.1, 1, "stretch met"), (0.97, 0.99, "met"), (0.9, 0.9, "missed")]
)
def test_ea_6_is_compared_with_trees_and_softmax(trees, sa, words):
    rows = rows_of(ea_6=1.0, sa=sa, lightgbm=trees)
    judged = {verdict.target.name: verdict.words for verdict in judge(table4.TARGETS, rows)}
    assert len(judged) == 12
    assert judged["ETTm2/12: MAE, EA-6 / LightGBM"] == words
    assert judged["ETTm2/12: MAE, EA-6 / SA"] == words.removeprefix("stretch ")
    lost = "ETTh2/6, windows in the order of time: MAE of EA-6 1.000, of sa 0.900."
    assert (lost in list(table4.losses(rows))) == (sa == 0.9)


def test_missing_models_are_not_judged():
    rows = rows_of(ea_6=1.25, persistence=2.5)
    assert judge(table4.TARGETS, rows) == []
    (table,) = table4.tables(rows)
    assert table.lines[0][:2] == ["ea-6", "1.250 / 2.500"]
    assert ["paper's ea-6", "1.23 / 1.79"] in [line[:2] for line in table.lines]
    assert "ea-6, paper" in table4.draw(rows).legend
