"""Classics: splits, seasons, and rows of every kind of model."""

import numpy as np
import pytest
from forecasting_helpers import OPTIONS, wave

from paper.forecasting import classics
from paper.forecasting.plan import FINE_TUNED, OURS, Plan

pytestmark = pytest.mark.usefixtures("small_data")
KEY = {"set": "m3", "group": "quarterly", "split": None, "first": None, "options": OPTIONS}


def test_official_splits_are_used():
    (group,) = classics.load("m3", "quarterly")
    assert group.names == [*(f"N{n}" for n in range(6)), "C"]
    assert (group.season, group.horizon) == (4, 8)
    assert np.concatenate([group.past[2], group.future[2]]) == pytest.approx(
        wave(48, 4, 2), abs=1e-4
    )


def test_dev_forecasts_the_last_known_values():
    (test,), (dev,) = classics.load("m3", "yearly"), classics.load("m3", "yearly", "dev")
    assert np.concatenate([dev.past[0], dev.future[0]]).tolist() == test.past[0].tolist()
    assert len(dev.future[0]) == test.horizon


def test_classics_are_cut_by_two_seasons_or_8_values():
    found = {each.names[0]: each for each in classics.load("classics", "all")}
    sizes = {name: (g.season, g.horizon, len(g.past[0])) for name, g in found.items()}
    assert sizes == {"AirPassengers": (12, 24, 72), "Nile": (1, 8, 52)}
    assert np.isfinite(found["Nile"].past[0]).all()  # the first value is missing
    assert len(list(classics.load("classics", "all", first=1))) == 1


@pytest.mark.parametrize("model", [OURS, FINE_TUNED, "LightGBM", "AutoTheta"])
def test_a_row_has_mase_seconds_and_failures(model):
    package = {"LightGBM": "lightgbm", "AutoTheta": "statsforecast"}.get(model, "eattn")
    pytest.importorskip(package, reason='needs pip install "eattn[study]"')
    options = ("finetune_steps=2",) if model == FINE_TUNED else OPTIONS
    row = classics.measure(KEY | {"model": model, "options": options})
    assert row["series"] == 7  # the constant one has no MASE
    assert 0 < row["mase"] < 5
    assert row["seconds"] > 0 and row["failures"] == 0
    assert "by_series" not in row


def test_rows_of_classics_hold_every_series():
    pytest.importorskip("statsforecast", reason='needs pip install "eattn[study]"')
    row = classics.measure(KEY | {"set": "classics", "group": "all", "model": "SeasonalNaive"})
    assert list(row["by_series"]) == ["AirPassengers", "Nile"]
    assert row["mase"] == pytest.approx(np.mean(list(row["by_series"].values())))


def test_a_plan_has_every_set_group_and_model():
    keys = list(classics.keys(Plan(sets=("m3", "classics"), models=(OURS, "AutoETS"))))
    assert [(key["set"], key["group"]) for key in keys[::2]] == [
        *(("m3", group) for group in ("yearly", "quarterly", "monthly", "other")),
        ("classics", "all"),
    ]
    with pytest.raises(ValueError, match="sets must be of m1, m3, tourism, classics, got 'm5'"):
        list(classics.keys(Plan(sets=("m5",))))


def run(model: str, mase: float, **changes: object):
    key = {"what": "classics", "set": "m3", "group": "yearly", "model": model}
    return key | {"mase": mase, "series": 9, "seconds": 1.5, "failures": 0} | changes


def test_tables_and_losses_compare_models():
    rows = [run(OURS, 1.02), run("AutoETS", 1.0, failures=3), run("AutoTheta", 1.2)]
    whole = {"set": "classics", "group": "all"}
    rows += [run(OURS, 1, by_series={"a": 1.0, "b": 2.0, "c": None}, **whole)]
    rows += [run("AutoETS", 2, by_series={"a": 0.5, "b": 3.0, "c": None}, **whole)]
    mase, cost, wins = classics.tables(rows)
    assert mase.head == ["model", "m3 yearly (9)", "classics (9)"]
    assert [line[:2] for line in mase.lines] == [
        [OURS, "1.020"],
        ["AutoTheta", "1.200"],
        ["AutoETS", "1.000"],
    ]
    assert cost.lines[2] == ["AutoETS", "1.5 (3)", "1.5"]
    assert wins.lines == [["AutoETS", "1", "1"]]
    assert list(classics.losses(rows)) == [
        "m3 yearly, mean MASE: AutoETS 1.000; EAForecaster 1.020."
    ]
    target, fine_tuned = [t for t in classics.TARGETS if t.name.startswith("m3 yearly")]
    assert target.value(rows) == pytest.approx(1.02)
    assert fine_tuned.value([*rows, run(FINE_TUNED, 0.9)]) == pytest.approx(0.9)
    assert len(classics.TARGETS) == 15
    (panel,) = classics.panels(rows)
    assert list(panel.looks) == [OURS, "AutoTheta", "AutoETS"]
