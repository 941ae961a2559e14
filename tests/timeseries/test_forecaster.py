"""EAForecaster: input and output, quality, updates, backtests and saving."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal
from sklearn.base import clone

from eattn.timeseries import EAForecaster
from eattn.timeseries.metrics import mase, scores, seasonal_scale

# Enough training that forecasts differ from the last value.
TINY = dict(
    horizon=3, dim=8, depth=1, heads=2, lags=4, context=16, epochs=4, batch_size=16, lr=0.02
)
CONSTANT = [
    "ea-2",
    "ea-6",
    "ea-6+decay",
    "ea-6+gate",
    "ea-q25r12",
    "la",
    "taylor",
    "deltanet",
    "la+gate",
    "gru",
    "linear-rnn",
]
GROWING = ["ea", "sa", "sa-math", "sa+rope"]
# With a window, the state holds the last values for every mixer.
MODES = [*((mixer, None) for mixer in (*CONSTANT, *GROWING)), ("ea-6", 8), ("sa", 8)]
UPDATED = [(mixer, window, 16) for mixer, window in (*MODES, ("aft", 8))]
NAME = "EAForecaster"


def tiny(**changes) -> EAForecaster:
    return EAForecaster(**TINY | changes)


def wave(length: int, seed: int = 0, noise: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sin(np.arange(length) / 2 + seed) + noise * rng.normal(size=length)


def long(lengths: dict, freq: str = "h", start: str = "2024-01-01") -> pd.DataFrame:
    """Series of these lengths, each with its own level and deviation."""
    parts = [
        pd.DataFrame(
            {
                "unique_id": name,
                "ds": pd.date_range(start, periods=length, freq=freq),
                "y": 10.0 * number + (number + 1) * wave(length, number),
            }
        )
        for number, (name, length) in enumerate(lengths.items())
    ]
    return pd.concat(parts, ignore_index=True)


def same(a: pd.DataFrame, b: pd.DataFrame, tolerance: float = 1e-9) -> None:
    assert_frame_equal(a.reset_index(drop=True), b.reset_index(drop=True), rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def two() -> EAForecaster:
    """Return a forecaster of two series of unequal length, with quantiles."""
    return tiny(quantiles=(0.9, 0.1)).fit(long({"b": 60, "a": 45}))


@pytest.fixture
def one() -> EAForecaster:
    """Return a forecaster of one series without times."""
    return tiny().fit(wave(45))


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
        (dict(window=0), "window must be at least 1, got 0"),
        (dict(lags=0), "lags must be at least 1"),
        (dict(mixer="aft"), "mixer 'aft' needs a window"),
        (dict(quantiles=(0.1, 1.0)), "quantiles must be distinct and between 0 and 1"),
        (dict(quantiles=0.1), "quantiles must be numbers"),
        (dict(freq="h"), "freq='h' cannot be used: ds contains integers"),
        (dict(dtype="float16"), "dtype must be 'float32' or 'float64', got 'float16'"),
        (dict(validation_fraction=1), "validation_fraction must be"),
        (
            dict(window=30, horizon=20),
            "'y' has 45 values, but window=30 and horizon=20 need at least 50",
        ),
        (dict(horizon=50), "the longest series has 45 values.* horizon=50 needs at least 51"),
        (dict(quantiles=(0.1,), validation_fraction=0), "quantiles need validation values"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_invalid_parameters_raise(arguments, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        tiny(**arguments).fit(wave(45))


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


@pytest.mark.parametrize("window", [None, 8])
def test_longer_horizon_continues_the_trained_one(window):
    model = tiny(window=window, quantiles=(0.1, 0.9)).fit(wave(90))
    same(model.predict(20)[:3], model.predict(), 0)
    assert len(model.predict(20)) == 20
    width = model.predict(6).eval(f"`{NAME}-q90` - `{NAME}-q10`").to_numpy()
    np.testing.assert_allclose(width[3:], width[2])
    with pytest.raises(ValueError, match="horizon must be at least 1, got 0"):
        model.predict(0)


def test_noisy_sine_is_learned():
    y = np.sin(np.arange(400) / 3) + 0.1 * np.random.default_rng(0).normal(size=400)
    model = EAForecaster(horizon=8, dim=16, depth=1, heads=2, lags=12, epochs=12, lr=5e-3)
    model.fit(y[:300])
    table = model.backtest(windows=12, step=8, df=y)
    assert (table["cutoff"] >= 299).all()  # not trained on
    persistence = np.abs(y[table["cutoff"]] - table["y"]).mean()
    assert scores(table).loc["all", "MAE"] < persistence / 2


def test_quantiles_cover_their_level_and_never_cross():
    y = np.random.default_rng(0).normal(size=700)
    model = tiny(quantiles=(0.1, 0.5, 0.9), validation_fraction=0.4).fit(y[:500])
    table = model.backtest(windows=65, step=3, df=y)
    low, middle, high = (table[f"{NAME}-q{q}"] for q in (10, 50, 90))
    assert (low <= middle).all() and (middle <= high).all()
    assert 0.7 < ((low < table["y"]) & (table["y"] < high)).mean() < 0.9
    assert 0.4 < (table["y"] < middle).mean() < 0.6


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_value_does_not_corrupt_the_state(dtype):
    model = tiny(dtype=dtype).fit(wave(90)).update([1e99])
    assert np.isfinite(model.predict()[NAME]).all()
    assert np.abs(model.update(wave(50)).predict()[NAME]).max() < 100


@pytest.mark.parametrize(("mixer", "window", "context"), [*UPDATED, ("ea-6", None, None)])
def test_update_equals_longer_history(mixer, window, context):
    frame = long({"b": 60, "a": 45})
    model = tiny(mixer=mixer, window=window, context=context).fit(frame)
    longer = long({"b": 97, "a": 62})  # several states are replaced on the way
    new = longer[
        longer.groupby("unique_id").cumcount() >= longer["unique_id"].map(dict(b=60, a=45))
    ]
    expected = model.with_history(longer).predict()
    one_by_one = model.with_history(frame)
    for i in range(len(new)):
        one_by_one.update(new.iloc[i : i + 1])
    same(one_by_one.predict(), expected)
    assert not model.update(new[:1]).predict().equals(expected)  # forecasts do differ
    same(model.update(new[1:]).predict(), expected)


@pytest.mark.parametrize("mixer", CONSTANT)
def test_state_does_not_grow_with_updates(mixer):
    model = tiny(mixer=mixer, epochs=1).fit(wave(45))
    after_ten = model.update(wave(10)).state_nbytes
    assert model.update(wave(1000)).state_nbytes == after_ten
    model = tiny(mixer=mixer, context=None, epochs=1).fit(wave(45))
    assert model.state_nbytes == after_ten // 2


def test_growing_states_are_bounded_by_window_or_context():
    model = tiny(mixer="sa", window=8).fit(wave(45))
    assert model.state_nbytes == model.update(wave(100)).state_nbytes == 8 * 8
    model = tiny(mixer="sa").fit(wave(45))
    sizes = [model.update([0.5]).state_nbytes for _ in range(100)]
    assert max(sizes) == max(sizes[:20])


def test_forecast_depends_on_window_or_context_only(one):
    y = wave(16)
    changed = np.concatenate([[y[0] + 1], y[1:]])
    assert not one.with_history(y).predict().equals(one.with_history(changed).predict())
    model = tiny(window=8).fit(wave(45))
    expected = model.with_history(y[-8:]).predict().assign(ds=range(16, 19))
    same(model.with_history(y).predict(), expected)
    y = wave(40)  # states start at 0, 8, 16, … and are replaced after 16 values
    expected = one.with_history(y[24:]).predict()[NAME]
    np.testing.assert_allclose(one.with_history(y).predict()[NAME], expected, rtol=0, atol=1e-9)


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


@pytest.mark.parametrize("window", [None, 8])
def test_missing_rows_and_values_repeat_the_last_value(window):
    frame = long({"a": 60})
    gaps = [20, 21, 22, 57, 58]
    model = tiny(window=window).fit(frame)
    without = frame.drop(index=gaps)
    empty = frame.assign(y=frame["y"].where(~frame.index.isin(gaps)))
    expected = model.with_history(empty.assign(y=empty["y"].ffill())).predict()
    same(model.with_history(without).predict(), expected)
    same(model.with_history(empty).predict(), expected)
    same(model.with_history(empty[:50]).update(empty[50:]).predict(), expected)
    same(model.with_history(without[:45]).update(without[45:]).predict(), expected)


def test_leading_missing_values_are_ignored(one):
    table = tiny().fit(np.concatenate([[np.nan] * 5, wave(45)])).predict()
    expected = one.predict()
    same(table, expected.assign(ds=expected["ds"] + 5), 0)


@pytest.mark.parametrize("window", [None, 8])
def test_backtest_repeats_earlier_forecasts(window):
    frame = long({"b": 60, "a": 45})
    model = tiny(window=window, quantiles=(0.2,)).fit(frame)
    table = model.backtest(windows=4, step=2)
    assert list(table) == ["unique_id", "cutoff", "ds", "y", NAME, f"{NAME}-q20", "scale"]
    assert table.groupby("unique_id", sort=False).size().to_dict() == {"b": 12, "a": 12}
    same(table[["unique_id", "ds", "y"]].merge(frame), table[["unique_id", "ds", "y"]], 0)
    for (name, cutoff), part in table.groupby(["unique_id", "cutoff"]):  # each series alone
        past = frame[(frame["unique_id"] == name) & (frame["ds"] <= cutoff)]
        same(model.with_history(past).predict(), part.drop(columns=["cutoff", "y", "scale"]))
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
    same(expected, two.with_history(longer).predict())
    same(model.update(longer, skip_known=True).predict(), expected, 0)
    with pytest.raises(ValueError, match="unknown series 'c'"):
        model.update(long({"c": 3}), skip_known=True)
    with pytest.raises(ValueError, match="ds must be a time, got 1"):
        model.update(pd.DataFrame({"unique_id": "a", "ds": [1], "y": [1.0]}), skip_known=True)


@pytest.mark.parametrize(("mixer", "window"), MODES)
def test_loaded_model_continues_like_the_saved_one(tmp_path, mixer, window):
    frame = long({"b": 60, "a": 45, "c": 12})
    options = dict(quantiles=(0.1, 0.9), random_state=None, epochs=1)
    model = tiny(mixer=mixer, window=window, **options).fit(frame)
    model.update(frame.assign(ds=frame["ds"] + pd.Timedelta("3D"))[:3])
    model.save(tmp_path / "model")
    loaded = EAForecaster.load(tmp_path / "model")
    same(loaded.predict(9), model.predict(9), 0)
    new = pd.DataFrame({"unique_id": "a", "ds": [pd.Timestamp("2024-01-02 23:00")], "y": [1.5]})
    same(loaded.update(new).predict(), model.update(new).predict(), 0)
    assert loaded.state_nbytes == model.state_nbytes
    given = loaded.get_params() | {"random_state": None, "quantiles": (0.1, 0.9)}
    assert given == model.get_params()


def test_saved_model_holds_no_history_and_no_code(tmp_path):
    model = tiny(epochs=1, batch_size=1000).fit(long({1: 5000}))
    model.save(tmp_path / "model")
    assert sum(path.stat().st_size for path in (tmp_path / "model").iterdir()) < 50_000
    assert {path.suffix for path in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}
    loaded = EAForecaster.load(tmp_path / "model")
    with pytest.raises(ValueError, match="df is required"):
        loaded.backtest()
    same(loaded.backtest(df=long({1: 5000})), model.backtest())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_of_states_can_be_chosen_when_loading(tmp_path, dtype):
    model = tiny(dtype=dtype).fit(wave(45))
    model.save(tmp_path / "model")
    expected = model.update([1.0]).predict()
    for other in ("float32", "float64"):
        loaded = EAForecaster.load(tmp_path / "model", dtype=other)
        assert loaded.states_["y"].states[0].expected.dtype == getattr(torch, other)
        same(loaded.update([1.0]).predict(), expected, 1e-4)


def test_saved_model_is_replaced_only_by_force(one, tmp_path):
    path = tmp_path / "model"
    one.save(path)
    with pytest.raises(ValueError, match="force"):
        one.save(path)
    one.update([1.0]).save(path, force=True)
    same(EAForecaster.load(path).predict(), one.predict(), 0)
    config = json.loads((path / "config.json").read_text())
    config["config"]["tracks"][0]["count"] = 7
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json is corrupt"):
        EAForecaster.load(path)
