"""Training windows, rollouts and their loss, and conformal quantiles."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from eattn.models import Forecaster
from eattn.timeseries.conformal import error_quantiles, extend
from eattn.timeseries.inputs import read_series, regularize
from eattn.timeseries.predictor import read, roll_out
from eattn.timeseries.training import forecast_errors, forecast_windows, rollout_loss
from eattn.timeseries.windows import WindowDataset

OPTIONS = dict(window=None, context=8, horizon=2, validation_fraction=0.25)
COUNT = np.arange(20.0)


def dataset(data, **changes) -> WindowDataset:
    return WindowDataset(regularize(read_series(data)), **OPTIONS | changes)


def forecast_starts(windows: WindowDataset) -> list[float]:
    """Return the first value that each window forecasts, unscaled."""
    [scaler] = windows.scalers
    first = windows.columns["x"][windows.starts + windows.window, 0].double().numpy()
    return scaler.inverse_transform(first).round(4).tolist()


def model_of(channels: int, **options) -> Forecaster:
    torch.manual_seed(0)
    model = Forecaster(channels, dim=8, depth=2, heads=2, residual=True, **options).double()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_one_lag_equals_the_rollout_of_the_model():
    model, x = model_of(2, calendar=("hour",)), draw(3, 9, 2)
    hours = torch.arange(13).reshape(1, -1, 1).expand(3, -1, -1)
    state = read(model, x, calendar=hours[:, :9])
    y = roll_out(model, state, 4, channels=2, calendar=hours[:, 9:])
    assert_close(y, model.rollout(x, 4, calendar=hours))


def test_padding_in_front_changes_nothing():
    model, x = model_of(3), draw(2, 6, 1)
    padded = torch.cat([x[:, :1].expand(-1, 4, -1), x], 1)
    state = read(model, padded, key_mask=torch.arange(10).expand(2, -1) >= 4)
    assert_close(roll_out(model, state, 5), roll_out(model, read(model, x), 5))


def test_loss_is_the_mean_error_over_known_values():
    model, x = model_of(3), draw(2, 9, 1)
    known = torch.ones(2, 9, dtype=torch.bool)
    known[0, 7:] = False
    loss, weight = rollout_loss(model, {"x": x, "known": known}, 3)
    error = roll_out(model, read(model, x[:, :6]), 3) - x[:, 6:]
    assert_close(loss, error[known[:, 6:]].abs().mean())
    assert weight == 4
    changed = x.clone()
    changed[0, 7:] = 1e6
    assert_close(rollout_loss(model, {"x": changed, "known": known}, 3)[0], loss)
    [gradient] = torch.autograd.grad(loss, model.embed.values.project.weight)
    assert gradient.abs().max() > 0


def test_window_holds_past_values_and_the_horizon():
    times = pd.date_range("2024-01-01", periods=60, freq="h")
    made = dataset(pd.Series(np.arange(60.0), times), window=4)
    batch = made.train(0).collate([2, 0])
    values = made.scalers[0].inverse_transform(batch["x"][:, :, 0].double().numpy())
    np.testing.assert_allclose(values, [[*range(2, 8)], [*range(6)]], atol=1e-5)
    assert_close(batch["calendar"][:, :, 0], torch.from_numpy(values).round().long())
    assert "valid" not in batch and batch["known"].all()


def test_past_length_varies_only_between_batches():
    windows = dataset(np.arange(300.0), context=100).train(0)
    lengths = [windows.collate([i, i + 1])["x"].shape[1] - 2 for i in range(89)]
    assert lengths == [windows.collate([i, i + 1])["x"].shape[1] - 2 for i in range(89)]
    assert min(lengths) == 1 and 80 < max(lengths) <= 100
    assert 5 < np.median(lengths) < 20  # log-uniform: the median is near the square root
    assert windows.collate_share([3], [3, 9])["x"].shape == windows.collate([3, 9])["x"][:1].shape


def test_validation_uses_the_last_part_of_a_series():
    made = dataset(COUNT)
    assert forecast_starts(made.train(0)) == [*range(1, 14)]  # the last one forecasts 13 and 14
    assert forecast_starts(made.validation(100)) == [15, 16, 17, 18]
    assert made.scalers[0].mean == pytest.approx(np.mean(range(15)))
    fixed = dataset(COUNT, window=6)
    assert forecast_starts(fixed.train(0)) == [*range(6, 14)]


def test_windows_do_not_reach_into_the_previous_series():
    data = pd.DataFrame({"unique_id": ["a"] * 20 + ["b"] * 9, "ds": [*range(20), *range(9)]})
    windows = dataset(data.assign(y=np.arange(29.0))).train(0)
    windows.vary = None  # full length
    batch = windows.collate([len(range(1, 14))])
    assert batch["valid"][0].tolist() == [False] * 7 + [True] * 3


def test_windows_without_known_target_values_are_dropped():
    data = COUNT.copy()
    data[5:9] = np.nan
    made = dataset(data)
    assert len(made.train(0)) == len(range(1, 14)) - 3
    known, x = made.columns["known"], made.columns["x"]
    assert known[8:].logical_not().nonzero().flatten().tolist() == [5, 6, 7, 8]
    assert_close(x[8 + 5 : 8 + 9], x[8 + 4].expand(4, 1))


def test_validation_part_is_bounded():
    assert dataset(np.arange(10_000.0)).validation_sizes == [50 * 2]
    assert dataset(np.arange(8.0)).validation_sizes == [2]
    assert dataset(np.arange(4.0)).validation_sizes == [0]
    assert dataset(np.arange(100.0), validation_fraction=0).validation_sizes == [0]
    assert len(dataset(np.arange(300.0)).validation(10)) == 10


def test_forecast_errors_follow_the_order_of_windows():
    data = np.random.default_rng(0).normal(size=400)
    data[395] = np.nan
    model, windows = model_of(2).float(), dataset(data, window=6).validation(100)
    found = forecast_errors(model, windows)
    assert found.shape == (len(windows), 2) and len(windows) > 64  # more than one batch
    assert np.argwhere(np.isnan(found)).tolist() == [[94, 1], [95, 0]]  # forecasts from 394, 395
    batch = windows.collate([70])
    expected = batch["x"][0, 6:, 0] - forecast_windows(model, batch, 2)[0, :, 0].detach()
    np.testing.assert_allclose(found[70], expected, rtol=1e-4, atol=1e-5)


def test_offsets_cover_new_errors_at_their_level():
    """A new error is below the offset of n others with at least the probability of its level."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(4000, 20))
    offsets = [error_quantiles(row[:19, None], [0.1, 0.9]).ravel() for row in drawn]
    low, high = np.array(offsets).T
    assert (drawn[:, 19] <= high).mean() == pytest.approx(0.9, abs=0.02)
    assert (drawn[:, 19] <= low).mean() == pytest.approx(0.1, abs=0.02)


def test_offsets_differ_by_step_and_increase_with_level():
    errors = np.random.default_rng(0).normal(size=(7, 3))
    found = error_quantiles(errors, np.linspace(0.01, 0.99, 50))
    assert found.shape == (50, 3)
    assert (np.diff(found, axis=0) >= 0).all()
    assert error_quantiles(np.array([[1.0, np.nan], [3.0, 5.0]]), [0.5]).tolist() == [[3.0, 5.0]]
    assert extend(np.array([[1.0, 2.0]]), 4).tolist() == [[1.0, 2.0, 2.0, 2.0]]
