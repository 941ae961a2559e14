"""Windows of many series: targets, validation part, and independence of later values."""

import numpy as np
import pandas as pd
import pytest
import torch
from forecaster_helpers import read
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor, nn

from eattn.models import QuantileForecaster
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.features import rule_names
from eattn.timeseries.fitting import make_table
from eattn.timeseries.tracking import SCALE, VALUE
from eattn.timeseries.windows import (
    MAX_HORIZONS,
    MIN_PAST,
    ORIGINS,
    PAST,
    STEPS,
    ForecastWindows,
    SeriesTable,
    TrainingWindows,
    validation_sizes,
    validation_windows,
)


def table_of(*values, horizon: int = 3, seasons: tuple[int, ...] = (4,)) -> SeriesTable:
    """Return the table of series without times."""
    parts = [
        pd.DataFrame({"unique_id": number, "ds": range(len(y)), "y": y})
        for number, y in enumerate(values)
    ]
    series = read(pd.concat(parts))
    return make_table(series, (), Covariates(), seasons=seasons, horizon=horizon)


def noise(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=length).cumsum() + 100 * seed


def unscaled(table: SeriesTable, at: np.ndarray, scaled) -> np.ndarray:
    """Return scaled values in the unit of the series, from the rows of the forecast times."""
    row = table.rows[at]
    return row[..., VALUE, None] + row[..., SCALE, None] * np.asarray(scaled, np.float64)


def test_targets_are_the_values_after_each_origin():
    y, other = noise(30), noise(20, seed=1)
    table = table_of(y, other)
    origins = np.array([[3, 20], [5, 18]])
    steps = np.array([1, 2, 3])
    batch = table.batch(np.array([0, 1]), origins, np.array([0, 2]), 22, steps, np.array([30, 20]))
    assert_array_equal(batch["origins"], [[3, 20], [3, 16]])
    assert_array_equal(batch["counts"][1, 1], [True, False, False])  # the series ends
    found = unscaled(table, np.array([0, 30])[:, None] + origins, batch["y"])
    assert_allclose(found[0], [y[4:7], y[21:24]], rtol=1e-4)
    assert_allclose(found[1, 0], other[6:9], rtol=1e-4)
    assert_allclose(found[1, 1, 0], other[19], rtol=1e-4)
    naive = unscaled(table, np.array([0, 30])[:, None] + origins, batch["rules"][..., 0])
    assert_allclose(naive[0, 1], y[[17, 18, 19]], rtol=1e-4)  # a season before
    assert_array_equal(batch["tokens"][0], table.tokens[:22])
    assert_array_equal(batch["tokens"][1, :18], table.tokens[32:50])


def test_calendar_of_each_step_is_known():
    times = pd.date_range("2024-01-01", periods=60, freq="h")
    frame = pd.DataFrame({"unique_id": ["a"] * 60 + ["b"] * 50, "y": noise(110)})
    frame["ds"] = times.append(times[5:55])
    table = make_table(read(frame), ("hour",), Covariates(), seasons=(), horizon=3)
    numbers, origins, steps = np.array([0, 1]), np.array([[40, 59], [40, 49]]), np.array([1, 3])
    batch = table.batch(numbers, origins, np.array([0, 0]), 60, steps, np.array([60, 50]))
    hour = (origins[..., None] + steps + np.array([0, 5])[:, None, None]) % 24
    expected = np.sin(2 * np.pi * hour / 24)
    assert_allclose(batch["features"][..., 4], expected, atol=1e-6)
    assert not batch["counts"][:, 1].any()  # after the end


@pytest.mark.parametrize("seed", range(3))
def test_training_uses_no_value_after_the_end(seed):
    y, other = noise(700), noise(40, seed=1)
    ends = np.array([650, 31])
    changed = [
        np.where(np.arange(len(x)) < end, x, 1e6) for x, end in zip((y, other), ends, strict=True)
    ]
    made = [TrainingWindows(table_of(*x), ends, seed) for x in ((y, other), changed)]
    indices = [0, 5, len(made[0]) - 1]
    batch, expected = (windows.collate(indices) for windows in made)
    for name in ("origins", "rules", "features", "y", "counts"):
        assert torch.equal(batch[name], expected[name])
    for row, last in enumerate(batch["origins"].max(1).values.tolist()):
        assert torch.equal(batch["tokens"][row, : last + 1], expected["tokens"][row, : last + 1])
    assert batch["counts"].any(-1).all()  # each origin has at least one target


def test_windows_are_drawn_within_their_series():
    ends = np.array([600, 30])
    windows = TrainingWindows(table_of(noise(600), noise(30, seed=1)), ends, 0)
    assert windows.past == PAST
    batch = windows.collate([*range(len(windows))])
    assert batch["origins"].shape == (len(windows), ORIGINS)
    lengths = np.where(windows.samples == 0, PAST, 30)
    assert (batch["origins"] >= MIN_PAST - 1).all()
    assert (batch["origins"].numpy() < lengths[:, None]).all()
    tokens = windows.table.tokens
    short = batch["tokens"][windows.samples == 1]
    assert_array_equal(short[0, :30], tokens[600:])
    assert_array_equal(short[0, 30:], np.broadcast_to(tokens[-1], (PAST - 30, tokens.shape[1])))


def test_batches_are_drawn_from_their_indices():
    windows = TrainingWindows(table_of(noise(300)), np.array([300]), 3)
    batch, again, other = (windows.collate(i) for i in ([3, 9], [3, 9], [3, 8]))
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    assert not torch.equal(batch["origins"], other["origins"])
    share = windows.collate_share([9], [3, 9])
    assert all(torch.equal(share[name], batch[name][1:]) for name in batch)


def test_number_of_windows_follows_the_data():
    def count(*lengths):
        table = table_of(*(noise(n) for n in lengths))
        return np.bincount(TrainingWindows(table, np.array(lengths), 0).samples, minlength=2)

    assert count(20).tolist() == [32, 0]
    assert count(20, 4).tolist() == [32, 0]  # too short to train on
    assert count(*[20] * 40).tolist() == [1] * 40
    assert count(10 * PAST, 20).tolist() == [72, 1]
    assert len(TrainingWindows(table_of(noise(4)), np.array([4]), 0)) == 0


def test_some_steps_are_drawn_from_a_long_horizon():
    windows = TrainingWindows(table_of(noise(300), horizon=100), np.array([300]), 0)
    batch = windows.collate([0, 1])
    assert batch["y"].shape == (2, ORIGINS, STEPS)
    step = (1 / batch["features"][0, 0, :, 2]).round()
    assert (step.diff() > 0).all() and step[0] >= 1 and step[-1] <= 100


def test_missing_values_and_errors_are_not_targets():
    y = noise(60)
    y[20], y[30] = np.nan, 1e12
    table = table_of(y)
    assert_array_equal(np.flatnonzero(np.isnan(table.values)), [20, 30])
    at, steps = np.array([[18, 28]]), np.array([1, 2, 3])
    batch = table.batch(np.array([0]), at, np.array([0]), 60, steps, np.array([60]))
    assert_array_equal(batch["counts"][0], [[True, False, True]] * 2)
    assert batch["y"].abs().max() < 100


@pytest.mark.parametrize("lengths", [[50], [200, 30], [11]], ids=str)
def test_validation_forecasts_lie_in_the_validation_part(lengths):
    table = table_of(*(noise(n, seed) for seed, n in enumerate(lengths)))
    sizes = validation_sizes(np.array(lengths), 3, 0.2)
    windows = validation_windows(table, sizes, 1000)
    for number, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
        own = windows.origins[windows.numbers == number]
        assert own.min() + 1 == length - size and own.max() + 3 == length - 1
        assert_array_equal(np.diff(own), 1)
    assert all(batch["counts"].all() for batch in windows)
    few = validation_windows(table, sizes, 2)
    assert np.bincount(few.numbers).max() == min(2, sizes.max() - 2)


def test_validation_part_is_bounded():
    lengths = np.array([10_000, 100, 20, 15, 6, 4])
    assert validation_sizes(lengths, 2, 0.2).tolist() == [2 * MAX_HORIZONS, 20, 4, 3, 0, 0]
    assert validation_sizes(lengths, 2, 0.0).tolist() == [0] * 6
    assert validation_sizes(np.array([24, 23]), 12, 0.2).tolist() == [12, 0]
    empty = validation_windows(table_of(noise(20)), np.array([0]), 10)
    assert len(empty) == len(list(empty)) == 0


@pytest.mark.parametrize(("times", "count"), [(1, 6), (64, 3), (10_000, 1)])
def test_forecast_windows_keep_their_order(monkeypatch, times, count):
    monkeypatch.setattr("eattn.timeseries.windows.BATCH_TIMES", times)
    table = table_of(noise(200), noise(100, seed=1))
    windows = ForecastWindows(table, np.repeat([0, 1], 70), np.tile(np.arange(20, 90), 2))
    batches = list(windows)
    assert len(batches) == count  # windows of 32, 32, 6, 32, 32 and 6 times
    y = np.concatenate([batch["y"][batch["given"]][:, 0] for batch in batches])
    at = table.starts[windows.numbers] + windows.origins
    expected = (table.values[at + 1] - table.rows[at, VALUE]) / table.rows[at, SCALE]
    assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert windows.some(5).origins.tolist() == [20, 55, 20, 54, 89]
    assert windows.some(1000) is windows


def test_times_that_share_a_window_are_forecast_as_if_alone():
    torch.manual_seed(0)
    table = table_of(noise(900), noise(100, seed=1))
    numbers, origins = np.array([0, 0, 0, 1, 1]), np.array([50, 400, 880, 20, 60])
    model = QuantileForecaster(
        table.tokens.shape[1], len(rule_names(table.seasons)), 4, 4, [0.1, 0.5, 0.9], dim=8, depth=1
    ).eval()
    nn.init.normal_(model.head.weight)

    def forecasts(windows: ForecastWindows) -> list[Tensor]:
        names = ("tokens", "origins", "rules", "features")
        return [model(*(batch[n] for n in names))[batch["given"]] for batch in windows]

    [together] = forecasts(ForecastWindows(table, numbers, origins))
    for number, origin, found in zip(numbers, origins, together, strict=True):
        alone = ForecastWindows(table, np.array([number]), np.array([origin]))
        torch.testing.assert_close(found, forecasts(alone)[0][0])


def test_past_of_a_window_is_limited():
    [batch] = ForecastWindows(table_of(noise(2000)), np.array([0]), np.array([1990]))
    assert batch["tokens"].shape[1] == PAST
    assert batch["origins"].item() == PAST - 1
