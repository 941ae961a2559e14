"""Covariates: known values at local times, and models with and without them."""

import numpy as np
import pytest
from forecasting_helpers import OPTIONS

from paper.forecasting import covariates
from paper.forecasting.covariates import DAYS
from paper.forecasting.plan import OURS, TREES, Plan

pytestmark = pytest.mark.usefixtures("small_data")
KEY = {"split": None, "first": None, "options": OPTIONS, "covariates": True}


def test_demand_has_local_times_and_its_temperature():
    data = covariates.load("vic_elec")
    assert str(data.times[0][0]) == "2012-03-02 00:00:00+11:00"
    assert list(data.known) == ["temperature", "holiday"]
    assert (data.horizon, data.windows, data.season) == (48, DAYS, 48)
    assert data.start(0, 0) == 14 * 48


def test_loads_have_the_holidays_of_the_country():
    data = covariates.load("gefcom2012_load")
    assert len(data.values) == 2 and np.isnan(data.values[0]).sum() == 1
    days = data.times[0][data.known["holiday"][0] > 0].strftime("%m-%d").unique()
    assert days.tolist() == ["01-01", "01-19", "02-16"]  # new year, King's day, Washington's day


def test_dev_leaves_out_the_days_that_are_forecast():
    test, dev = covariates.load("vic_elec"), covariates.load("vic_elec", "dev")
    assert len(dev.values[0]) == len(dev.known["holiday"][0]) == test.start(0, 0)


@pytest.mark.parametrize("data", covariates.SETS)
def test_trees_use_covariates(data, monkeypatch):
    pytest.importorskip("lightgbm", reason='needs pip install "eattn[study]"')
    monkeypatch.setitem(covariates.Trees.__init__.__globals__["OPTIONS"], "n_estimators", 40)
    key = KEY | {"set": data, "model": TREES}
    seeing, blind = (covariates.measure(key | {"covariates": used}) for used in (True, False))
    assert blind["columns"] == [] and "crps" not in blind
    assert seeing["columns"] == list(covariates.load(data).known)
    if data == "vic_elec":
        assert seeing["mase"] < 0.7 * blind["mase"]


@pytest.mark.parametrize("used", [False, True])
def test_ours_gets_known_values_of_the_forecast_days(used, monkeypatch):
    monkeypatch.setattr(covariates, "DAYS", 2)
    row = covariates.measure(KEY | {"set": "vic_elec", "model": OURS, "covariates": used})
    assert row["columns"] == ["temperature", "holiday"] * used
    assert 0 < row["mase"] < 20 and 0 < row["crps"] < 5


def test_only_models_that_can_use_covariates_are_planned():
    keys = list(covariates.keys(Plan()))
    assert [(key["model"], key["covariates"]) for key in keys[:4]] == [
        *[(OURS, False), (OURS, True)],
        *[(TREES, False), (TREES, True)],
    ]
    assert len(keys) == 8
    with pytest.raises(
        ValueError, match="covariates must be of gefcom2012_load, vic_elec, got 'x'"
    ):
        list(covariates.keys(Plan(covariates=("x",))))


def run(model: str, used: bool, mase: float):
    row = {"what": "covariates", "set": "vic_elec", "model": model, "covariates": used}
    row |= {"mase": mase, "naive_mase": 1.5, "columns": ["temperature"] * used}
    row |= {"fit_seconds": 2.0, "predict_seconds": 1.0}
    return row | ({"crps": mase / 10} if model == OURS else {})


def test_the_table_has_a_line_per_model():
    rows = [
        run(OURS, False, 0.8),
        run(OURS, True, 0.9),
        run(TREES, False, 1.0),
        run(TREES, True, 0.5),
    ]
    (table,) = covariates.tables(rows)
    assert table.lines == [
        ["vic_elec", OURS, "0.800", "0.900", "0.080", "0.090", "1.500", "temperature", "6"],
        ["vic_elec", TREES, "1.000", "0.500", "", "", "1.500", "temperature", "6"],
    ]
    assert list(covariates.losses(rows)) == [
        "vic_elec: covariates raise MASE of EAForecaster from 0.800 to 0.900.",
        "vic_elec with covariates, MASE: LightGBM 0.500; EAForecaster 0.900.",
    ]
    assert list(covariates.tables([])) == []
