"""EAForecaster: input and output, quality, updates, backtests and saving."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from forecaster_helpers import NAME, long, randomize, same, tiny, wave
from pandas.testing import assert_frame_equal
from sklearn.base import clone

from eattn.timeseries import EAForecaster, store, training
from eattn.timeseries.fitting import TRAINED
from eattn.timeseries.metrics import mase, scores, seasonal_scale
from eattn.timeseries.store import ModelError

MIXERS = ["ea-6+decay", "la+gate", "gru", "sa+rope"]
QUANTILES = [f"{NAME}-q10", f"{NAME}-q90"]


@pytest.fixture(scope="module")
def two() -> EAForecaster:
    """Return a forecaster of two series of unequal length, with quantiles."""
    return tiny(quantiles=(0.9, 0.1)).fit(long({"b": 60, "a": 45}))


@pytest.fixture(scope="module")
def fitted() -> EAForecaster:
    """Return a forecaster of one series without times."""
    return tiny().fit(wave(45))


@pytest.fixture
def one(fitted) -> EAForecaster:
    """Return a copy of `fitted`, which tests may update."""
    return fitted.with_history(wave(45))


def test_parameters_are_checked_only_by_fit(one):
    model = EAForecaster(horizon=0, mixer="unknown", quantiles="x")
    assert model.get_params()["horizon"] == 0
    model.set_params(horizon=4, mixer="ea-2", quantiles=None)
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(one), "states_")
    with pytest.raises(ValueError, match="not fitted"):
        model.predict()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (dict(horizon=0), "horizon must be at least 1, got 0"),
        (dict(horizon=2.5), "horizon must be an int, got float"),
        (dict(dim=0), "dim must be at least 1"),
        (dict(epochs=0), "epochs must be at least 1, got 0"),
        (dict(batch_size=0), "batch_size must be at least 1, got 0"),
        (dict(epochs=2.5), "epochs must be an int, got float"),
        (dict(mixer="lstm"), "unknown mixer 'lstm'"),
        (dict(mixer="aft"), "mixer 'aft' has a fixed number of positions"),
        (dict(season_length=0), "season_length must be at least 1, got 0"),
        (dict(season_length=[7.5]), "season_length must be an int, got float"),
        (dict(lower="x"), "lower must be a number, got str"),
        (dict(lower=np.nan), "lower must be finite, got nan"),
        (dict(holidays="DE"), "holidays need times, but ds contains integers"),
        (dict(hist_exog_list=["load"]), "hist_exog_list needs a data frame"),
        (dict(hist_exog_list="load"), r"must be a list of column names, got 'load'"),
        (dict(quantiles=(0.1, 1.0)), "quantiles must be distinct and between 0 and 1"),
        (dict(quantiles=0.1), "quantiles must be numbers"),
        (dict(freq="h"), "freq='h' cannot be used: ds contains integers"),
        (dict(dtype="float16"), "dtype must be 'float32' or 'float64', got 'float16'"),
        (dict(validation_fraction=1), "validation_fraction must be"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_invalid_parameters_raise(arguments, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        tiny(**arguments).fit(wave(45))


def test_too_short_series_raise():
    with pytest.raises(ValueError, match=r"longest series has 4 values, .* needs at least 5"):
        tiny().fit([1.0, 2, 3, 4])
    with pytest.raises(TypeError, match="y must be None"):
        tiny().fit([1.0, 2, 3, 4, 5], [1, 2, 3, 4, 5])


def test_seed_determines_result_and_global_state_is_kept():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first, again = (tiny(random_state=3).fit(wave(45)).predict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    same(first, again, 0)
    assert not first.equals(tiny(random_state=4).fit(wave(45)).predict())


def test_forecasts_follow_each_series_in_order_of_fit(two):
    table = two.predict()
    assert list(table) == ["unique_id", "ds", NAME, f"{NAME}-q10", f"{NAME}-q90"]
    assert table["unique_id"].tolist() == ["b"] * 3 + ["a"] * 3
    for name, length in (("b", 60), ("a", 45)):
        expected = pd.date_range("2024-01-01", periods=length + 3, freq="h")[length:]
        assert (table[table["unique_id"] == name]["ds"] == expected).all()
    assert table.dtypes["ds"] == "datetime64[ns]"


@pytest.mark.parametrize("kind", [int, "category", "string"])
def test_unique_id_keeps_its_dtype(two, kind):
    frame = long({2: 30, 1: 30}).astype({"unique_id": kind})
    model = two.with_history(frame)
    assert model.predict()["unique_id"].dtype == frame["unique_id"].dtype
    assert model.backtest(1)["unique_id"].dtype == frame["unique_id"].dtype


@pytest.mark.parametrize("freq", ["MS", "ME", "B", "W-WED", "15min", "QS-OCT"])
def test_times_continue_at_the_frequency_of_the_series(freq):
    model = tiny(epochs=1).fit(long({"a": 40}, freq))
    expected = pd.date_range("2024-01-01", periods=43, freq=freq)[40:]
    assert model.freq_ == freq
    assert (model.predict()["ds"] == expected).all()


@pytest.mark.parametrize("freq", ["D", "2h", "15min", "MS"])
def test_history_of_another_frequency_raises(two, freq):
    with pytest.raises(
        ValueError, match=f"series 'a': the times have the frequency '{freq}', not 'h'"
    ):
        two.with_history(long({"a": 40}, freq))
    new = long({"b": 5}, "D", start="2024-01-04")
    with pytest.raises(ValueError, match="the times have the frequency 'D', not 'h'"):
        two.update(new)
    with pytest.raises(ValueError, match="freq='h' cannot be used: ds contains integers"):
        two.with_history(wave(45))


@pytest.mark.parametrize(("freq", "start"), [("h", "2024-03-29 20:00"), ("D", "2024-02-21")])
def test_forecasts_are_in_the_zone_of_the_history(tmp_path, freq, start):
    times = pd.date_range(
        start, periods=40, freq=freq, tz="Europe/Berlin"
    )  # clock changes: March 31
    local = long({"b": 40, "a": 40}).assign(ds=times.append(times))
    model = tiny(epochs=1).fit(local)
    last = local["ds"].iloc[-1]
    expected = pd.date_range(last, periods=4, freq=freq)[1:]
    found = model.predict()
    assert found["ds"].dtype == "datetime64[ns, Europe/Berlin]"
    assert found["ds"].iloc[-3:].tolist() == expected.tolist()
    assert model.backtest(2)["cutoff"].dtype == found["ds"].dtype
    model.save(tmp_path / "model")
    loaded = EAForecaster.load(tmp_path / "model")
    same(loaded.predict(), found, 0)
    new = pd.DataFrame({"unique_id": "b", "ds": expected[:1].tz_convert("UTC"), "y": [1.0]})
    known = pd.concat([local.assign(ds=local["ds"].dt.tz_convert("UTC")), new])
    assert model.score(known) == model.score(new)
    same(loaded.update(known, skip_known=True).predict(), model.update(new).predict(), 0)
    assert loaded.predict()["ds"].iloc[0] == expected[1]
    with pytest.raises(ValueError, match=r"has the time zone Europe/Berlin, but .* no time zone"):
        model.update(new.assign(ds=expected[1:2].tz_localize(None)))


def test_update_with_zone_needs_a_history_with_zone(two):
    new = pd.DataFrame({"unique_id": "b", "ds": ["2024-01-03T12:00Z"], "y": [1.0]})
    with pytest.raises(ValueError, match=r"history has no time zone, but .* the time zone UTC"):
        two.update(new)
    with pytest.raises(ValueError, match=r"history has no time zone, but .* the time zone UTC"):
        two.update(new, skip_known=True)


def test_columns_may_have_other_names(two):
    names = {"unique_id": "shop", "ds": "day", "y": "sales"}
    columns = dict(id_col="shop", time_col="day", target_col="sales")
    frame = long({"b": 60, "a": 45})
    model = tiny(quantiles=(0.9, 0.1)).fit(frame.rename(columns=names), **columns)
    same(model.predict(), two.predict().rename(columns=names), 0)
    table = model.backtest(1)
    assert list(table)[:4] == ["shop", "cutoff", "day", "sales"]
    expected = scores(two.with_history(frame).backtest(1)).rename_axis("shop")
    assert_frame_equal(scores(table, id_col="shop", target_col="sales"), expected)
    longer = long({"b": 64, "a": 50})
    expected = two.with_history(frame).score(longer)
    assert model.score(longer.rename(columns=names)) == expected
    assert model.score(longer, id_col="unique_id", time_col="ds", target_col="y") == expected
    new = long({"b": 1}, start="2024-01-03 12:00")
    expected = two.with_history(frame).update(new).predict()
    same(model.update(new.rename(columns=names)).predict(), expected.rename(columns=names), 0)
    other = model.with_history(frame, id_col="unique_id", time_col="ds", target_col="y")
    same(other.predict(), two.with_history(frame).predict(), 0)


def test_far_future_time_is_refused(two):
    before = two.predict()
    new = pd.DataFrame({"unique_id": "b", "ds": [pd.Timestamp("2034-01-03")], "y": [1.0]})
    with pytest.raises(
        ValueError, match=r"2034-01-03 .* is 87,661 steps \(h\) after .* 1,000 steps"
    ):
        two.update(new)
    same(two.predict(), before, 0)


@pytest.mark.parametrize("make", [list, pd.Series], ids=lambda f: f.__name__)
def test_values_without_times_are_counted(one, make):
    model = tiny().fit(make(wave(45)))
    assert model.predict()["ds"].tolist() == [45, 46, 47]
    assert model.predictor_.fields == ()
    same(model.predict(), one.predict(), 0)


def test_dates_give_a_calendar():
    index = pd.date_range("2024-01-01", periods=60, freq="h")
    model = tiny().fit(pd.Series(wave(60), index))
    assert model.predict()["ds"].iloc[0] == pd.Timestamp("2024-01-03 12:00")
    assert model.predictor_.fields == ("hour",)
    same(model.predict(), tiny().fit(pd.DataFrame({"ds": index, "y": wave(60)})).predict(), 0)


def test_longer_horizon_continues_the_trained_one(two):
    longer = two.predict(20)
    same(longer.groupby("unique_id", sort=False).head(3), two.predict())
    assert len(longer) == 40
    assert (longer[QUANTILES[0]] < longer[NAME]).all()
    assert (longer[NAME] < longer[QUANTILES[1]]).all()
    same(two.predict(np.int64(2)), longer.groupby("unique_id", sort=False).head(2))
    with pytest.raises(ValueError, match="horizon must be at least 1, got 0"):
        two.predict(0)


# ---- quality ----


def test_noisy_sine_is_learned(monkeypatch):
    monkeypatch.setattr(training, "DIRECT_STEPS", 150)
    y = np.sin(np.arange(400) / 3) + 0.1 * np.random.default_rng(0).normal(size=400)
    model = EAForecaster(
        horizon=8, pretrained=None, dim=16, depth=1, heads=2, epochs=12, lr=5e-3
    ).fit(y[:300])
    table = model.backtest(windows=12, step=8, df=y)
    assert (table["cutoff"] >= 299).all()  # not trained on
    persistence = np.abs(y[table["cutoff"]] - table["y"]).mean()
    assert scores(table).loc["all", "MAE"] < persistence / 2


def test_quantiles_cover_their_level_and_never_cross():
    y = np.random.default_rng(0).normal(size=700)
    model = tiny(quantiles=(0.1, 0.5, 0.9)).fit(y[:500])
    table = model.backtest(windows=65, step=3, df=y)
    low, middle, high = (table[f"{NAME}-q{q}"] for q in (10, 50, 90))
    assert (low < middle).all() and (middle < high).all()
    assert middle.equals(table[NAME].rename(middle.name))
    # The standard error of 195 dependent values is about 0.04.
    assert 0.7 < ((low < table["y"]) & (table["y"] < high)).mean() < 0.9
    assert 0.4 < (table["y"] < middle).mean() < 0.6


def test_intervals_of_a_stream_follow_its_noise():
    rng = np.random.default_rng(0)
    model = tiny(quantiles=(0.1, 0.9)).fit(rng.normal(size=300))

    def width():
        return model.predict().eval(f"`{NAME}-q90` - `{NAME}-q10`")[0]

    before = width()
    model.update(5 * rng.normal(size=300))
    assert 3 < width() / before < 8


def test_any_levels_become_columns():
    model = tiny(quantiles=[0.975, 0.5, 0.025], epochs=1).fit(wave(60))
    names = [f"{NAME}-q{q}" for q in ("2.5", "50", "97.5")]
    assert list(model.predict())[3:] == names
    assert model.levels_ == (0.025, 0.5, 0.975)
    values = model.predict()[names].to_numpy()
    assert (np.diff(values) > 0).all()
    assert list(tiny(epochs=1).fit(wave(60)).predict()) == ["unique_id", "ds", NAME]


@pytest.mark.parametrize("horizon", [3, 12])
def test_short_series_have_intervals_around_the_forecast(horizon):
    rng = np.random.default_rng(0)
    months = pd.date_range("2020-01-01", periods=15, freq="MS")
    kinds = {
        "noise": rng.normal(size=15),
        "trend": np.arange(15.0),
        "counts": rng.poisson(0.5, 15),
        "flat": np.full(15, 7.0),
    }
    parts = [pd.DataFrame({"unique_id": n, "ds": months, "y": y}) for n, y in kinds.items()]
    table = tiny(horizon=horizon, quantiles=(0.1, 0.9)).fit(pd.concat(parts)).predict()
    assert (table[QUANTILES[0]] <= table[NAME]).all() and (table[NAME] <= table[QUANTILES[1]]).all()
    assert (table[QUANTILES[1]] > table[QUANTILES[0]]).all()
    assert np.isfinite(table[[NAME, *QUANTILES]]).all(None)
    flat = table[table["unique_id"] == "flat"]
    assert np.abs(flat[NAME] - 7).max() < 0.1


def test_counts_have_no_negative_forecasts(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.linspace(6, 0.1, 80))
    model = tiny(quantiles=(0.1, 0.9)).fit(counts)
    table = model.predict(30)
    assert (table[[NAME, *QUANTILES]] >= 0).all(None)
    assert (table[QUANTILES[1]] > table[QUANTILES[0]]).all()
    unbounded = tiny(quantiles=(0.1, 0.9), lower=-1e9).fit(counts).predict(30)
    assert (unbounded[QUANTILES[0]] < 0).any()
    model.save(tmp_path / "model")
    same(EAForecaster.load(tmp_path / "model").predict(30), table)
    for other in (counts - 10, counts + 0.5):  # not counts
        assert model.with_history(other).states_["y"].lower == -np.inf
    bounded = tiny(lower=2.0, quantiles=(0.1,)).fit(wave(60)).predict()
    assert (bounded[[NAME, QUANTILES[0]]] == 2).all(None)


def test_a_negative_value_lifts_an_inferred_bound():
    y = np.random.default_rng(0).poisson(3, 60).astype(float)
    for lower, expected in ((None, -np.inf), (0.0, 0.0)):
        model = tiny(epochs=1, lower=lower).fit(y)
        assert model.update([2.0, np.nan]).states_["y"].lower == 0
        assert model.update([-1.0]).states_["y"].lower == expected


def test_bound_of_counts_is_inferred_from_the_past_only():
    y = np.concatenate([np.random.default_rng(0).poisson(3, 80), [-50.0, -60.0, -70.0]])
    model = tiny(epochs=1, quantiles=(0.1,)).fit(y[:80])
    table = model.backtest(windows=1, df=y)
    assert (table[QUANTILES[0]] >= 0).all()


@pytest.mark.parametrize("at", [0, 3, 30, 42])
def test_outlier_does_not_move_forecasts(at):
    y = wave(45)
    y[at] = y[1] if at == 0 else np.nan
    outlier = y.copy()
    outlier[at] = 1e12
    model, expected = (tiny(quantiles=(0.1, 0.9)).fit(x) for x in (outlier, y))
    same(model.predict(9), expected.predict(9))
    assert model.fit_report_.equals(expected.fit_report_)


def test_outlier_in_a_stream_does_not_move_forecasts(one):
    other = one.with_history(wave(45))
    scores = one.update([1e12], return_scores=True)
    other.update([np.nan])
    same(one.predict(), other.predict())
    assert scores["score"].item() > 0.4
    same(one.update(wave(20)).predict(), other.update(wave(20)).predict())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_value_does_not_corrupt_the_state(dtype):
    model = tiny(dtype=dtype).fit(wave(90)).update([1e99])
    assert np.isfinite(model.predict()[NAME]).all()
    assert np.abs(model.update(wave(50)).predict()[NAME]).max() < 100


def test_series_fall_back_to_simple_forecasts(monkeypatch):
    """One model for all series follows the season of most of them, but a walk has none."""
    monkeypatch.setattr(training, "DIRECT_STEPS", 150)
    rng = np.random.default_rng(0)
    seasonal = {f"s{i}": np.tile(rng.normal(0, 5, 7), 60) for i in range(4)}
    values = {n: y + 0.1 * rng.normal(size=420) for n, y in seasonal.items()}
    values["walk"] = rng.normal(size=420).cumsum()
    days = pd.date_range("2024-01-01", periods=420)
    frame = pd.concat(
        [pd.DataFrame({"unique_id": n, "ds": days, "y": y}) for n, y in values.items()]
    )
    options = dict(horizon=7, lr=1e-3, epochs=1)
    model = tiny(**options).fit(frame)
    report = model.fit_report_.set_index("unique_id")
    assert list(report) == ["choice", TRAINED, "seasonal naive", "naive", "drift"]
    assert report.index.tolist() == list(values)
    choice = report.loc["walk", "choice"]
    assert choice != TRAINED and report.loc["walk", choice] < report.loc["walk", TRAINED]
    y, steps = values["walk"], np.arange(1, 8)
    expected = {
        "seasonal naive": y[-7:],
        "naive": np.full(7, y[-1]),
        "drift": y[-1] + steps * (y[-1] - y[0]) / 419,
    }
    forecast = model.predict().set_index("unique_id").loc["walk", NAME]
    np.testing.assert_allclose(forecast, expected[choice])
    without = tiny(**options, fallback=False).fit(frame)
    assert (without.fit_report_["choice"] == TRAINED).all()
    assert without.fit_report_[TRAINED].equals(model.fit_report_[TRAINED])
    new = model.with_history(frame.replace({"unique_id": {"walk": "other"}}))
    assert new.states_["other"].rule is None  # the model forecasts new series


def test_wide_frame_equals_long_frame():
    frame = long({"b": 60, "a": 60})
    wide = frame.pivot(index="ds", columns="unique_id", values="y")[["b", "a"]]
    model = tiny(epochs=1).fit(wide)
    same(model.predict(), tiny(epochs=1).fit(frame).predict(), 0)
    later = wide.set_axis(wide.index + pd.Timedelta("60h"))
    assert len(model.update(later[:2], return_scores=True)) == 4


def test_constant_series_are_allowed_unless_all_are():
    flat = long({"flat": 45}).assign(y=5e9)
    forecast = tiny().fit(pd.concat([long({"wave": 45}), flat])).predict()
    assert np.isfinite(forecast.set_index("unique_id").loc["flat", NAME]).all()
    values = np.full(45, -7.1)
    values[3] = np.nan
    with pytest.raises(ValueError, match=r"series 'y' is constant \(-7\.1\); there is nothing"):
        tiny().fit(values)
    frame = pd.concat([long({name: 45}).assign(y=5.0) for name in "ab"])
    with pytest.raises(ValueError, match=r"series 'a' is constant \(5\), and so are all others"):
        tiny().fit(frame)


# ---- updates ----


@pytest.mark.parametrize("mixer", MIXERS)
def test_update_equals_longer_history(mixer):
    frame = long({"b": 60, "a": 45})
    model = tiny(mixer=mixer).fit(frame)
    longer = long({"b": 97, "a": 62})
    counts = longer.groupby("unique_id").cumcount()
    new = longer[counts >= longer["unique_id"].map(dict(b=60, a=45))]
    expected = model.with_history(longer).predict()
    one_by_one = model.with_history(frame)
    for i in range(len(new)):
        one_by_one.update(new.iloc[i : i + 1])
    same(one_by_one.predict(), expected)
    assert not model.update(new[:1]).predict().equals(expected)  # forecasts do differ
    same(model.update(new[1:]).predict(), expected)


def test_state_does_not_grow_with_updates(one):
    size = one.state_nbytes
    assert one.update(wave(1000)).state_nbytes == size


def test_scores_are_high_for_spikes():
    y = wave(300)
    model = tiny().fit(y[:200])
    new = y[200:].copy()
    new[50] = 8.0
    table = model.update(new, return_scores=True)
    assert list(table) == ["unique_id", "ds", "y", "score"]
    assert table["ds"].tolist() == list(range(200, 300))
    assert table["y"].tolist() == new.tolist()
    assert table["score"].between(0, 1).all()
    assert table["score"].idxmax() == 50 and table["score"][50] > 0.8


def test_scores_do_not_depend_on_chunks_or_other_series(two):
    frame, longer = long({"b": 60, "a": 45}), long({"b": 90, "a": 75})
    counts = longer.groupby("unique_id").cumcount()
    new = longer[counts >= longer["unique_id"].map(dict(b=60, a=45))]
    expected = two.with_history(frame).update(new, return_scores=True)
    model = two.with_history(frame)
    parts = [model.update(new.iloc[[i]], return_scores=True) for i in range(len(new))]
    same(pd.concat(parts), expected)
    gaps = new.drop(index=new.index[[3, 4]])
    table = two.with_history(frame).update(gaps, return_scores=True)
    assert len(table) == len(expected)  # missing rows have the score 0
    assert table["y"].isna().sum() == 2 and (table["score"][table["y"].isna()] == 0).all()
    none = two.with_history(frame).update(frame, skip_known=True, return_scores=True)
    assert list(none) == ["unique_id", "ds", "y", "score"] and none.empty


def test_score_names_follow_the_columns_of_fit():
    names = {"unique_id": "shop", "ds": "day", "y": "sales"}
    frame = long({"b": 60}).rename(columns=names)
    columns = dict(id_col="shop", time_col="day", target_col="sales")
    model = tiny(epochs=1).fit(frame[:50], **columns)
    assert list(model.update(frame[50:], return_scores=True)) == ["shop", "day", "sales", "score"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("b", "2024-01-03 11:00", 1.0)], "series 'b': 2024-01-03 11:00:00 is already known"),
        ([("b", "2024-01-01", 1.0)], "2024-01-01 00:00:00 is before 2024-01-03 11:00:00"),
        ([("b", "2024-01-03 12:30", 1.0)], "12:30:00 is not a whole number of steps"),
        ([("c", "2024-01-03 12:00", 1.0)], "unknown series 'c'; known series are 'b', 'a'"),
        ([("b", "2024-01-04", 1.0)] * 2, "series 'b': 2024-01-04 00:00:00 occurs twice"),
        ([("b", "2024-01-03 12:00", "x")], "y must be a finite number, got 'x'"),
        ([("b", "9024-01-03 12:00", 1.0)], "9024"),
        ([("a", "2024-01-02 21:00", 1.0), ("b", "2024-01-01", 1.0)], "is before"),
    ],
)
def test_update_reads_no_row_if_any_is_invalid(two, rows, reason):
    before = two.predict()
    with pytest.raises(ValueError, match=reason):
        two.update(pd.DataFrame(rows, columns=["unique_id", "ds", "y"]))
    same(two.predict(), before, 0)


def test_update_needs_unique_id_for_several_series(one, two):
    assert one.update([0.1, 0.2]).predict()["ds"].iloc[0] == 47
    with pytest.raises(
        ValueError, match="new rows need a column unique_id: the forecaster has 2 series"
    ):
        two.update([1.0])


def test_missing_rows_equal_missing_values():
    frame = long({"a": 60})
    gaps = [20, 21, 22, 57, 58]
    model = tiny().fit(frame)
    without = frame.drop(index=gaps)
    empty = frame.assign(y=frame["y"].where(~frame.index.isin(gaps)))
    expected = model.with_history(empty).predict()
    assert np.isfinite(expected[NAME]).all()
    same(model.with_history(without).predict(), expected, 0)
    same(tiny().fit(without).predict(), tiny().fit(empty).predict(), 0)
    same(model.with_history(empty[:50]).update(empty[50:]).predict(), expected)
    same(model.with_history(without[:45]).update(without[45:]).predict(), expected)


def test_leading_missing_values_are_ignored(one):
    table = tiny().fit(np.concatenate([[np.nan] * 5, wave(45)])).predict()
    expected = one.predict()
    same(table, expected.assign(ds=expected["ds"] + 5), 0)


# ---- backtests ----


def test_backtest_repeats_earlier_forecasts():
    frame = long({"b": 60, "a": 45})
    model = tiny(quantiles=(0.2,)).fit(frame)
    table = model.backtest(windows=4, step=2)
    assert list(table) == ["unique_id", "cutoff", "ds", "y", NAME, f"{NAME}-q20", "scale"]
    assert table.groupby("unique_id", sort=False).size().to_dict() == {"b": 12, "a": 12}
    same(table[["unique_id", "ds", "y"]].merge(frame), table[["unique_id", "ds", "y"]], 0)
    for (name, cutoff), part in table.groupby(["unique_id", "cutoff"]):  # each series alone
        past = frame[(frame["unique_id"] == name) & (frame["ds"] <= cutoff)]
        first = table.loc[table["unique_id"] == name, "cutoff"].iloc[0]
        stream = model.with_history(past[past["ds"] <= first])  # its values calibrate intervals
        stream.update(past, skip_known=True)
        same(stream.predict(), part.drop(columns=["cutoff", "y", "scale"]))
        same(model.with_history(past).predict()[["ds", NAME]], part[["ds", NAME]])
    last = table.groupby("unique_id")["ds"].max().to_dict()
    assert last == frame.groupby("unique_id")["ds"].max().to_dict()
    with pytest.raises(ValueError, match=r"series 'a' has 45 values, but 15 windows .* need"):
        model.backtest(15)


def test_refitted_backtest_trains_before_each_cutoff():
    frame = long({"b": 60, "a": 45})
    model = tiny(quantiles=(0.2,), epochs=2).fit(frame)
    table = model.backtest(windows=2, step=4, horizon=5, refit=True)
    assert table["unique_id"].tolist() == ["b"] * 10 + ["a"] * 10
    row = frame.groupby("unique_id").cumcount(ascending=False)
    for window, rows in ((0, row >= 9), (1, row >= 5)):
        expected = tiny(quantiles=(0.2,), epochs=2).fit(frame[rows]).predict(5)
        found = table[table.groupby("unique_id").cumcount() // 5 == window]
        same(found.drop(columns=["cutoff", "y", "scale"]), expected, 0)
        past = frame[rows].groupby("unique_id", sort=False)
        assert found["cutoff"].unique().tolist() == past["ds"].max().tolist()
        scales = past["y"].agg(lambda y: seasonal_scale(y, 24))
        assert found["scale"].tolist() == pytest.approx(found["unique_id"].map(scales).tolist())
    plain = model.backtest(windows=2, step=4, horizon=5)
    columns = ["unique_id", "cutoff", "ds", "y", "scale"]
    assert_frame_equal(plain[columns], table[columns])
    assert not plain[NAME].equals(table[NAME])


def test_score_is_negative_mase_of_rows_after_training(two):
    longer = long({"b": 64, "a": 50})
    model = two.with_history(long({"b": 60, "a": 45}))
    new = longer[longer["ds"] > longer["unique_id"].map({n: s.ds for n, s in two.states_.items()})]
    both = new.merge(two.predict(5), on=["unique_id", "ds"])
    scales = {s.unique_id: seasonal_scale(s.y, 24) for s in two.series_}
    both["scale"] = both["unique_id"].map(scales)
    assert len(both) == 9
    gaps = longer.assign(y=longer["y"].where(longer.index != 62)).drop(index=61)
    for rows, compared in ((longer, both), (new, both), (gaps, both.drop(index=[1, 2]))):
        expected = -mase(compared["y"], compared[NAME], compared["scale"])
        assert model.score(rows) == pytest.approx(expected)
    with pytest.raises(ValueError, match="rows that follow the training rows, but it has none"):
        model.score(longer[:60])


def test_loaded_forecaster_has_no_score(two, tmp_path):
    two.save(tmp_path / "model")
    with pytest.raises(ValueError, match="score needs the training rows"):
        EAForecaster.load(tmp_path / "model").score(long({"b": 64, "a": 50}))


def test_update_skips_known_rows_on_request(two):
    longer = long({"b": 64, "a": 50})
    model = two.with_history(long({"b": 60, "a": 45}))
    assert model.update(longer, skip_known=True) is model
    expected = model.predict()
    other = two.with_history(long({"b": 60, "a": 45}))
    same(other.update(longer.iloc[[*range(60, 64), *range(109, 114)]]).predict(), expected)
    same(model.update(longer, skip_known=True).predict(), expected, 0)
    with pytest.raises(ValueError, match="unknown series 'c'"):
        model.update(long({"c": 3}), skip_known=True)
    with pytest.raises(ValueError, match="ds must be a time, got 1"):
        model.update(pd.DataFrame({"unique_id": "a", "ds": [1], "y": [1.0]}), skip_known=True)


# ---- saving ----


@pytest.mark.parametrize("mixer", MIXERS)
def test_loaded_model_continues_like_the_saved_one(tmp_path, mixer):
    frame = long({"b": 60, "a": 45, "c": 12})
    options = dict(quantiles=(0.1, 0.9), random_state=None)
    model = tiny(mixer=mixer, **options).fit(frame)
    model.update(frame.assign(ds=frame["ds"] + pd.Timedelta("3D"))[:3])
    model.save(tmp_path / "model")
    loaded = EAForecaster.load(tmp_path / "model")
    same(loaded.predict(9), model.predict(9))
    new = pd.DataFrame({"unique_id": "a", "ds": [pd.Timestamp("2024-01-02 23:00")], "y": [1.5]})
    same(loaded.update(new).predict(), model.update(new).predict())
    assert loaded.state_nbytes == model.state_nbytes
    assert_frame_equal(loaded.fit_report_, model.fit_report_)
    assert (loaded.levels_, loaded.chosen_) == (model.levels_, model.chosen_)
    given = loaded.get_params() | {"random_state": None, "quantiles": (0.1, 0.9)}
    assert given == model.get_params()


def test_saved_model_holds_no_history_and_no_code(tmp_path):
    model = tiny(epochs=1).fit(long({1: 3000}))
    model.save(tmp_path / "model")
    assert sum(path.stat().st_size for path in (tmp_path / "model").iterdir()) < 100_000
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}
    loaded = EAForecaster.load(tmp_path / "model")
    with pytest.raises(ValueError, match="df is required"):
        loaded.backtest()
    same(loaded.backtest(df=long({1: 3000})), model.backtest())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_of_states_can_be_chosen_when_loading(tmp_path, dtype):
    model = tiny(dtype=dtype).fit(wave(45))
    model.save(tmp_path / "model")
    expected = model.update([1.0]).predict()
    for other in ("float32", "float64"):
        loaded = EAForecaster.load(tmp_path / "model", dtype=other)
        assert loaded.model_.embed.weight.dtype == getattr(torch, other)
        same(loaded.update([1.0]).predict(), expected, 1e-4)


def test_saved_model_is_replaced_only_by_force(one, tmp_path):
    path = tmp_path / "model"
    one.save(path)
    with pytest.raises(ValueError, match="force"):
        one.save(path)
    one.update([1.0]).save(path, force=True)
    same(EAForecaster.load(path).predict(), one.predict(), 0)
    config = json.loads((path / "config.json").read_text())
    config["config"]["tracks"][0]["name"] = "z"
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json is corrupt"):
        EAForecaster.load(path)


def test_ids_and_parameters_survive_saving(tmp_path):
    """Text that looks like a number stays text, and arrays may be parameters."""
    options = dict(quantiles=np.array([0.1, 0.9]), season_length=np.array([4]), epochs=1)
    model = tiny(**options, horizon=40).fit(long({"007": 60, "1e3": 60}))
    assert model.fit_report_[TRAINED].isna().all()  # too short for validation
    model.save(tmp_path / "model")
    loaded = EAForecaster.load(tmp_path / "model")
    assert_frame_equal(loaded.fit_report_, model.fit_report_)
    same(loaded.predict(), model.predict(), 0)
    assert loaded.quantiles == [0.1, 0.9] and loaded.season_length == [4]


def test_states_are_saved_in_one_file(two, tmp_path):
    frame = long({"b": 60, "a": 45})
    model, other = two.with_history(frame), two.with_history(frame)
    model.update(long({"b": 5}, start="2024-01-03 12:00"))
    store.save_states(model, tmp_path / "states")
    store.load_states(other, tmp_path / "states")
    same(other.predict(), model.predict(), 0)
    new = long({"b": 5}, start="2024-01-03 17:00")
    same(other.update(new, return_scores=True), model.update(new, return_scores=True), 0)
    with pytest.raises(ModelError, match="states of another model; choose another file"):
        store.load_states(tiny(random_state=5).fit(frame), tmp_path / "states")
    (tmp_path / "states").write_bytes(b"text")
    with pytest.raises(ModelError, match="does not hold the states of series"):
        store.load_states(other, tmp_path / "states")


# ---- covariates ----


EXOG = dict(futr_exog_list=["temp", "kind"], hist_exog_list=["load"], stat_exog_list=["region"])


def with_covariates(lengths: dict, **options) -> pd.DataFrame:
    frame = long(lengths, **options)
    t = np.arange(len(frame))
    first = frame["unique_id"] == frame["unique_id"].iloc[0]
    return frame.assign(
        temp=np.cos(t / 3), kind=np.where(t % 2, "x", "y"), load=t % 5, region=np.where(first, 1, 2)
    )


def future(model: EAForecaster, horizon: int = 3, **columns) -> pd.DataFrame:
    """Return the future rows of all series, with the same covariates at each step."""
    own = dict(temp=0.5, kind="x") | columns
    parts = [
        pd.DataFrame({"unique_id": name, "ds": state.next_times(horizon)} | own)
        for name, state in model.states_.items()
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def exog() -> EAForecaster:
    frame = with_covariates({"b": 90, "a": 75})
    frame["y"] += 5 * frame["temp"]
    model = tiny(**EXOG, holidays="DE", quantiles=(0.1, 0.9)).fit(frame)
    randomize(model.model_)  # so that everything counts
    model.predictor_ = replace(model.predictor_)  # without a copy of the old weights
    return model.with_history(frame)


def test_all_covariates_change_forecasts(exog):
    expected = exog.predict(futr_df=future(exog))
    for changes in (dict(temp=1.0), dict(kind="y")):
        assert not exog.predict(futr_df=future(exog, **changes))[NAME].equals(expected[NAME])
    frame = with_covariates({"b": 90, "a": 75})
    for changes in (dict(temp=frame["temp"] + 1), dict(load=0), dict(region=3 - frame["region"])):
        other = exog.with_history(frame.assign(**changes))
        original = exog.with_history(frame)
        a, b = (model.predict(futr_df=future(model)) for model in (other, original))
        assert not a[NAME].equals(b[NAME])


def test_future_temperature_is_used():
    rng = np.random.default_rng(0)
    temp = rng.normal(size=400)
    days = pd.date_range("2024-01-01", periods=400)
    frame = pd.DataFrame(
        {"ds": days, "y": 20 + 5 * temp + 0.1 * rng.normal(size=400), "temp": temp}
    )
    model = tiny(futr_exog_list=["temp"], epochs=15, dim=16).fit(frame)
    rows = pd.DataFrame({"ds": model.states_["y"].next_times(3)})
    ahead = [model.predict(futr_df=rows.assign(temp=x)) for x in (1.0, -1.0)]
    assert 7 < (ahead[0][NAME] - ahead[1][NAME]).mean() < 13  # 10
    assert abs(ahead[0][NAME].mean() - 25) < 2


def test_future_rows_are_required(exog):
    with pytest.raises(ValueError, match="futr_df must be a data frame with the columns"):
        exog.predict()
    with pytest.raises(ValueError, match=r"futr_df, row 4 .* temp must not be missing"):
        exog.predict(futr_df=future(exog).assign(temp=[1, 2, 3, 4, np.nan, 6]))
    with pytest.raises(ValueError, match=r"has no row of series 'b' at"):
        exog.predict(5, futr_df=future(exog))
    assert len(exog.predict(5, futr_df=future(exog, 8))) == 10


def test_new_rows_need_their_covariates_but_no_static_columns(exog):
    frame = with_covariates({"b": 90, "a": 75})
    model = exog.with_history(frame)
    new = with_covariates({"b": 93})[90:]
    with pytest.raises(ValueError, match=r"must have a column 'load' \(hist_exog_list\)"):
        model.update(new.drop(columns="load"))
    longer = pd.concat([with_covariates({"b": 93, "a": 0}), frame[90:]])
    expected = exog.with_history(longer.assign(region=longer["unique_id"].map(dict(b=1, a=2))))
    model.update(new.drop(columns="region"))
    a, b = (m.predict(futr_df=future(m))[["unique_id", "ds", NAME]] for m in (model, expected))
    same(a, b)


def test_static_columns_must_be_constant():
    frame = with_covariates({"b": 60})
    frame.loc[40:, "region"] = 7
    with pytest.raises(ValueError, match=r"series 'b', .*: region must be constant in each series"):
        tiny(stat_exog_list=["region"]).fit(frame.drop(columns=["temp", "kind", "load"]))


def test_backtests_and_scores_use_known_covariates(exog):
    table = exog.backtest(windows=3, step=2)
    assert np.isfinite(table[NAME]).all() and len(table) == 18
    frame = with_covariates({"b": 93, "a": 78})
    original = exog.with_history(with_covariates({"b": 90, "a": 75}))
    assert original.score(frame) != original.score(frame.assign(temp=frame["temp"] + 1))


def test_covariates_are_saved(exog, tmp_path):
    model = exog.with_history(with_covariates({"b": 90, "a": 75}))
    model.save(tmp_path / "model")
    loaded = EAForecaster.load(tmp_path / "model")
    rows = future(model)
    same(loaded.predict(futr_df=rows), model.predict(futr_df=rows), 1e-6)  # weights are float32
    new = with_covariates({"b": 93})[90:]
    for each in (model, loaded):
        each.update(new)
    rows = future(model)
    same(loaded.predict(futr_df=rows), model.predict(futr_df=rows), 1e-6)
    assert loaded.holidays == "DE" and loaded.futr_exog_list == ["temp", "kind"]


@pytest.mark.parametrize("code", ["XX", "DE-XX"])
def test_unknown_holidays_raise(code):
    with pytest.raises(ValueError, match="holidays"):
        tiny(holidays=code).fit(long({"a": 60}))
