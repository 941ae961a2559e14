"""Predictor: forecasts from states, the same in batches, chunks and single rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from forecaster_helpers import LEVELS, long, random_predictor, read, wave
from numpy.testing import assert_allclose, assert_array_equal

from eattn.data.freq import times_after
from eattn.timeseries.features import look_ahead, rule_names
from eattn.timeseries.inputs import Columns
from eattn.timeseries.predictor import Predictor, SeriesState
from eattn.timeseries.tracking import MOVE, SCALE, VALUE

CONSTANT = ["ea-6+decay", "ea-6", "ea-6+gate", "ea-q9", "gru", "la", "linear-rnn"]
MIXERS = [*CONSTANT, "sa"]
HORIZON = 5
HALF = LEVELS.index(0.5)
COLUMNS = Columns(futr=["temp"], hist=["load"], stat=["region"])
mixers = pytest.mark.parametrize("mixer", MIXERS)


def three() -> list:
    return read(long({"a": 60, "b": 45, "c": 60}))


def predict(predictor: Predictor, states: list[SeriesState], horizon: int = HORIZON) -> np.ndarray:
    """Forecast without future covariates."""
    times = predictor.next_times(states, horizon)
    return predictor.forecast(states, times, [np.zeros((horizon, 0), np.float32)] * len(states))


def advance(predictor, state, series):
    [(after, scores)] = predictor.advance([state], [series])
    return after, scores


def assert_states_equal(a: SeriesState, b: SeriesState, tolerance: float = 1e-9) -> None:
    assert (a.ds, a.count, a.track.known) == (b.ds, b.count, b.track.known)
    assert_array_equal(a.track.rows, b.track.rows)
    for name in ("outputs", "factors", "futr", "hist", "stat"):
        assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=tolerance)
    assert_allclose(a.surprise, b.surprise, rtol=0, atol=tolerance)


# ---- states ----


@mixers
def test_batch_equals_single_series(mixer):
    series = three()
    predictor = random_predictor(series, mixer=mixer)
    batch = predictor.start(series)
    single = [predictor.start([s])[0] for s in series]
    for a, b in zip(batch, single, strict=True):
        assert_states_equal(a, b)
    together = predict(predictor, batch)
    assert together.shape == (3, HORIZON, 9)
    assert_allclose(together, np.concatenate([predict(predictor, [s]) for s in single]), atol=1e-9)
    new = [s.take(slice(30, 33)) for s in series]
    new = [replace(s, ds=state.next_times(3)) for s, state in zip(new, batch, strict=True)]
    for (a, scores), state, rows in zip(predictor.advance(batch, new), single, new, strict=True):
        b, expected = advance(predictor, state, rows)
        assert_states_equal(a, b)
        assert_allclose(scores, expected, atol=1e-9)


@mixers
@pytest.mark.parametrize("sizes", [[1], [7, 1, 2]], ids=str)
def test_chunks_equal_single_rows(mixer, sizes):
    y = wave(160)
    y[[105, 110, 111]] = np.nan, 1e12, np.nan
    y[130:] += 50
    [series] = read(pd.Series(y, pd.date_range("2024-01-01", periods=160, freq="h")))
    predictor = random_predictor([series], mixer=mixer)
    [state] = predictor.start([series.take(slice(100))])
    at_once, expected = advance(predictor, state, series.take(slice(100, 160)))
    scores, start, number = [], 100, 0
    while start < 160:
        size = sizes[number % len(sizes)]
        state, found = advance(predictor, state, series.take(slice(start, start + size)))
        if number % 3 == 0:
            predict(predictor, [state])  # remembers its forecasts for the next row
        scores, start, number = scores + found, start + size, number + 1
    assert_states_equal(state, at_once)
    assert_allclose(scores, expected, atol=1e-9)
    assert_allclose(predict(predictor, [state]), predict(predictor, [at_once]), atol=1e-9)
    assert np.abs(at_once.factors).max() > 0.1 and max(scores) > 0.1
    [fresh] = predictor.start([series])
    medians = (predict(predictor, [each])[..., HALF] for each in (fresh, at_once))
    assert_allclose(*medians, atol=1e-9)


@pytest.mark.parametrize("mixer", CONSTANT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_state_does_not_grow(mixer, dtype):
    [series] = read(wave(2100))
    predictor = random_predictor([series], mixer=mixer, dtype=dtype)
    [state] = predictor.start([series.take(slice(50))])
    size = state.nbytes
    state, _ = advance(predictor, state, series.take(slice(50, 2049)))
    assert state.nbytes == size
    for row in range(2049, 2055):
        state, _ = advance(predictor, state, series.take(slice(row, row + 1)))
        assert state.nbytes == size
    assert state.count == 2055


def test_long_history_is_read_in_chunks(monkeypatch):
    [series] = read(wave(100))
    predictor = random_predictor([series])
    [expected] = predictor.start([series])
    monkeypatch.setattr("eattn.timeseries.predictor.CHUNK", 32)
    assert_states_equal(predictor.start([series])[0], expected)


def test_many_series_are_read_in_batches(monkeypatch):
    series = three()
    predictor = random_predictor(series)
    expected = predictor.start(series)
    monkeypatch.setattr("eattn.timeseries.predictor.BATCH", 1)
    monkeypatch.setattr("eattn.timeseries.predictor.SMALL", 0)  # PyTorch instead of NumPy
    for a, b in zip(predictor.start(series), expected, strict=True):
        assert_states_equal(a, b)
    found = predict(predictor, expected)
    monkeypatch.undo()
    assert_allclose(found, predict(predictor, expected), atol=1e-9)


# ---- forecasts ----


def test_untrained_model_forecasts_seasonal_naive():
    [series] = read(wave(60))
    predictor = random_predictor([series], seasons=(12,), horizon=30)
    for layer in (predictor.model.head, predictor.model.direct):
        layer.weight.data.zero_()
    [state] = predictor.start([series])
    expected = np.tile(series.y[-12:], 3)[:30]
    assert_allclose(predict(predictor, [state], 30)[0, :, HALF], expected, atol=1e-12)


def test_forecasts_do_not_depend_on_later_values():
    [series] = read(wave(100))
    other = replace(series, y=np.where(np.arange(100) < 80, series.y, 1e6))
    predictor = random_predictor([series])
    found = []
    for each in (series, other):
        [state] = predictor.start([each.take(slice(60))])
        state, _ = advance(predictor, state, each.take(slice(60, 80)))
        found.append(predict(predictor, [state]))
    assert_array_equal(*found)


def test_value_does_not_influence_its_own_forecast():
    """Scores follow from the forecast before the value, whatever comes with it in a chunk."""
    [series] = read(wave(100))
    predictor = random_predictor([series])
    [state] = predictor.start([series.take(slice(90))])
    q = predict(predictor, [state], 1)[0, 0]
    low, median, high = q[[0, HALF, -1]]
    for y in (0.3, 5.0, -40.0, 1e12):
        changed = replace(series, y=np.where(np.arange(100) == 90, y, series.y))
        _, [score] = advance(predictor, state, changed.take(slice(90, 91)))
        _, expected = state.surprise.score(y, low, median, high)
        assert score == pytest.approx(expected, abs=1e-12)
        _, scores = advance(predictor, state, changed.take(slice(90, 100)))
        assert scores[0] == pytest.approx(expected, abs=1e-12)


def test_quantiles_are_in_order_and_have_a_width():
    series = three()
    predictor = random_predictor(series)
    states = predictor.start(series)
    states[0] = replace(states[0], factors=states[0].factors - 3.0)
    q = predict(predictor, states, 23)
    assert (np.diff(q) >= 0).all() and (q[..., -1] > q[..., 0]).all()


def test_longer_horizons_continue_in_blocks():
    series = three()
    predictor = random_predictor(series)
    states = predictor.start(series)
    long_, short = predict(predictor, states, 4 * HORIZON + 2), predict(predictor, states, 2)
    assert long_.shape[1] == 4 * HORIZON + 2
    assert_allclose(long_[:, :2], short, atol=1e-12)
    assert_allclose(long_[:, :HORIZON], predict(predictor, states), atol=1e-12)
    assert np.isfinite(long_).all()
    width = long_[..., -1] - long_[..., 0]
    assert (width[:, HORIZON:] >= width[:, [HORIZON - 1]] - 1e-9).all()  # uncertainty adds up
    [state] = predictor.start(series[:1])
    block = predict(predictor, [state])[0, :, HALF]
    medians = replace(series[0].take(slice(HORIZON)), y=block, ds=state.next_times(HORIZON))
    after, _ = advance(predictor, state, medians)
    block = predict(predictor, [replace(after, factors=state.factors)])[0]
    assert_allclose(long_[0, HORIZON : 2 * HORIZON, HALF], block[:, HALF], atol=1e-9)
    apart, earlier = (q - q[..., [HALF]] for q in (block, long_[0, HORIZON - 1]))
    width = np.hypot(apart, earlier)
    found = long_[0, HORIZON : 2 * HORIZON]
    assert_allclose(np.abs(found - found[:, [HALF]]), width, atol=1e-9)


def test_forecasts_leave_states_unchanged():
    [series] = read(wave(60))
    predictor = random_predictor([series])
    [state] = predictor.start([series])
    first = predict(predictor, [state], 17)
    again = predictor.start([series])[0]
    assert_states_equal(state, again, 0)
    assert_array_equal(predict(predictor, [state], 17), first)


@pytest.mark.parametrize("rule", ["season 4", "last", "drift"])
def test_simple_forecast_replaces_the_model(rule):
    series = three()
    predictor = random_predictor(series)
    states = predictor.start(series)
    number = rule_names((4,)).index(rule)
    states[1] = replace(states[1], rule=number)
    found = predict(predictor, states)
    rows = states[1].track.rows
    at, first, steps = np.array([len(rows) - 1]), np.array([0]), np.arange(1, HORIZON + 1)
    rules = look_ahead(rows, at, first, steps, (4,))[0, :, number]
    expected = rows[-1, VALUE] + rows[-1, SCALE] * rules
    assert_allclose(found[1, :, HALF], expected, atol=1e-9)
    walk = np.sqrt(np.pi / 2) * rows[-1, MOVE] * np.sqrt(steps)
    deviation = rows[-1, SCALE] if "season" in rule else walk
    assert_allclose(found[1, :, -1] - expected, 1.28155 * deviation, rtol=1e-4)
    assert_allclose(found[[0, 2]], predict(predictor, [states[0], states[2]]), atol=1e-9)


def test_lower_bound_keeps_the_median_inside():
    series = three()
    predictor = random_predictor(series)
    states = [replace(state, lower=1e3) for state in predictor.start(series)]
    q = predict(predictor, states, 12)
    assert q.min() == 1e3 and (q[..., HALF] == 1e3).all()
    assert (q[..., -1] > q[..., 0]).all()


def test_calibration_widens_after_misses():
    [series] = read(wave(200))
    predictor = random_predictor([series])
    [state] = predictor.start([series.take(slice(150))])
    far = replace(series, y=series.y + 30 * (-1.0) ** np.arange(200))
    after, _ = advance(predictor, state, far.take(slice(150, 190)))
    assert after.factors.shape == (4, 9)  # steps 1, 2, 4 and 5
    assert (after.factors[:, [0, -1]] > state.factors[:, [0, -1]]).any(0).all()
    assert (after.factors[:, HALF] == 0).all()
    assert (after.factors != state.factors).any(1).all()  # longer steps in turn


def test_missing_values_have_no_score():
    [series] = read(wave(60))
    predictor = random_predictor([series])
    [state] = predictor.start([series])
    gap = replace(series.take(slice(3)), y=np.array([np.nan, 0.5, np.nan]), ds=state.next_times(3))
    after, scores = advance(predictor, state, gap)
    assert scores[0] == scores[2] == 0 and scores[1] > 0
    assert after.surprise.values == state.surprise.values + 1
    assert (after.count, after.track.known) == (63, 61)


# ---- covariates ----


def with_covariates(**changes) -> pd.DataFrame:
    frame = long({"a": 60, "b": 60})
    t = np.arange(len(frame))
    own = {"temp": np.cos(t / 3), "load": np.sin(t / 5), "region": np.where(t < 60, "n", "s")}
    return frame.assign(**own | changes)


@pytest.fixture(scope="module")
def exog():
    series = read(with_covariates(), COLUMNS)
    return random_predictor(series, columns=COLUMNS), series


def forecast_with(predictor, states, temp, horizon=HORIZON):
    times = predictor.next_times(states, horizon)
    futr = [np.full((horizon, 1), temp, np.float32) for _ in states]
    return predictor.forecast(states, times, futr)


def test_future_covariates_change_their_step(exog):
    predictor, series = exog
    states = predictor.start(series)
    times = predictor.next_times(states, HORIZON)
    futr = np.zeros((HORIZON, 1), np.float32)
    changed = futr.copy()
    changed[2] = 1.0
    found, other = (predictor.forecast(states, times, [x, x]) for x in (futr, changed))
    moved = (found != other).any((0, 2))
    assert moved.tolist() == [False, False, True, False, False]
    long_ = [forecast_with(predictor, states, temp, 8) for temp in (0.0, 1.0)]
    assert (long_[0] != long_[1]).any((0, 2)).all()


@pytest.mark.parametrize(
    "changes",
    [
        dict(temp=np.cos(np.arange(120) / 4)),
        dict(load=np.arange(120) % 3),
        dict(region=np.repeat(["s", "n"], 60)),
    ],
    ids=["future", "past", "static"],
)
def test_covariates_of_the_past_change_forecasts(exog, changes):
    predictor, series = exog
    other = read(with_covariates(**changes), COLUMNS)
    found = [forecast_with(predictor, predictor.start(each), 0.5) for each in (series, other)]
    assert np.abs(found[0] - found[1]).max((1, 2)).min() > 1e-6  # of both series


def test_longer_horizons_repeat_the_last_past_covariates(exog):
    predictor, series = exog
    [state] = predictor.start(series[:1])
    found = forecast_with(predictor, [state], 0.5, 2 * HORIZON)[0, :, HALF]
    rows = series[0].take(slice(HORIZON))
    temp = np.full(HORIZON, 0.5 * predictor.covariates.futr[0].scale)
    temp += predictor.covariates.futr[0].center
    load = np.full(HORIZON, series[0].exog["load"][-1])
    rows = replace(rows, y=found[:HORIZON], ds=state.next_times(HORIZON))
    after, _ = advance(predictor, state, replace(rows, exog={"temp": temp, "load": load}))
    expected = forecast_with(predictor, [after], 0.5)[0, :, HALF]
    assert_allclose(found[HORIZON:], expected, atol=1e-6)  # covariates are float32


def test_chunks_with_covariates_equal_single_rows(exog):
    predictor, series = exog
    states = predictor.start([s.take(slice(40)) for s in series])
    at_once = [
        state for state, _ in predictor.advance(states, [s.take(slice(40, 60)) for s in series])
    ]
    for row in range(40, 60):
        new = [s.take(slice(row, row + 1)) for s in series]
        states = [state for state, _ in predictor.advance(states, new)]
    for a, b, whole in zip(states, at_once, predictor.start(series), strict=True):
        assert_states_equal(a, b)
        assert_allclose(a.outputs, whole.outputs, atol=1e-9)
        assert_array_equal(a.hist, whole.hist)
    assert_allclose(
        forecast_with(predictor, states, 0.5), forecast_with(predictor, at_once, 0.5), atol=1e-9
    )


def test_own_score_uses_the_covariates_of_its_row(exog):
    predictor, series = exog
    [state] = predictor.start([series[0].take(slice(59))])
    row = series[0].take(slice(59, 60))
    scores = []
    for temp in (0.0, 1.0):
        new = replace(row, exog=row.exog | {"temp": np.array([temp])})
        _, [score] = advance(predictor, state, new)
        q = predictor.forecast([state], [row.ds], [predictor.covariates.encode_rows(new)[0]])[0, 0]
        expected = state.surprise.score(row.y[0], q[0], q[HALF], q[-1])[1]
        assert score == pytest.approx(expected, abs=1e-12)
        scores.append(score)
    assert scores[0] != scores[1]


# ---- new rows ----


def test_next_times_follow_the_frequency():
    series = three()
    predictor = random_predictor(series)
    states = predictor.start(series)
    for state, times in zip(states, predictor.next_times(states, 4), strict=True):
        assert times.equals(times_after("h", state.ds, 4))
        assert state.next_times(2).equals(times[:2])


def test_equal_times_keep_their_zones():
    times = pd.date_range("2024-01-01", periods=60, freq="h", tz="UTC")
    for zone in ("UTC", "Asia/Tokyo", "Europe/Berlin"):
        [series] = read(pd.Series(wave(60), times.tz_convert(zone)))
        [state] = random_predictor([series]).start([series])
        assert str(state.next_times(3).tz) == zone


def test_state_holds_recent_values():
    [series] = read(wave(100))
    predictor = random_predictor([series])
    [state] = predictor.start([series])
    times, values = state.recent()
    assert len(values) == 2 * 4 + HORIZON
    assert times.tolist() == list(range(100 - len(values), 100))
    assert_array_equal(values, series.y[-len(values) :])


def test_gap_before_new_rows_is_filled():
    [series] = read(wave(60))
    [state] = random_predictor([series]).start([series])
    new = replace(series.take(slice(2)), ds=pd.Index([62, 64]), y=np.array([1.0, 2.0]))
    filled = state.new_rows(new)
    assert filled.ds.tolist() == [60, 61, 62, 63, 64]
    assert_array_equal(filled.y, [np.nan, np.nan, 1, np.nan, 2])
