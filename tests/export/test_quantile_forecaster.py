"""Graph of an `EAForecaster`: rows in, the calibrated quantiles of the library out."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')

from export_helpers import Exported, state_of

from eattn import export
from eattn.timeseries import EAForecaster
from eattn.timeseries.calendar import calendar_columns
from eattn.timeseries.inputs import TimeSeries

HORIZON, ROWS, AHEAD = 5, 250, 8
SEASONS, LOWER = (3, 8), -21.0
NAMES = ["a", "b", "late"]


def frame(length=ROWS + AHEAD):
    """Return a small series, one far from zero, and one that starts late."""
    rng, parts, t = np.random.default_rng(0), [], np.arange(length)
    for number, name in enumerate(NAMES):
        price, sale = rng.normal(size=length), t % 5 == 0
        y = np.sin(t * 2 * np.pi / 8 + number) + 0.2 * rng.normal(size=length) + price + sale
        columns = {
            "unique_id": name,
            "ds": pd.date_range("2024-02-26", periods=length, freq="h"),
            "y": (0.5, 1e6, -20)[number] + (2, 0.1, 1)[number] * y,
            "price": price,
            "day": np.where(sale, "sale", "usual"),
            "load": 10 * rng.normal(size=length),
            "region": ("north", "south", "south")[number],
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def fitted():
    model = EAForecaster(
        HORIZON,
        season_length=SEASONS,
        futr_exog_list=["price", "day"],
        hist_exog_list=["load"],
        stat_exog_list=["region"],
        quantiles=(0.02, 0.95),
        **dict(pretrained=None, dim=8, depth=1, epochs=1),
    )
    model.fit(frame())
    assert len(model.candidates_) == 4  # the model, seasonal naive, naive and drift
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.model_.parameters():  # some are 0 before training
            weight += 0.2 * torch.randn_like(weight)
    model.predictor_ = replace(model.predictor_)  # it remembers the weights
    model.lower = LOWER
    return model


@pytest.fixture(scope="module")
def step(fitted, tmp_path_factory):
    return Exported(export.step(fitted), tmp_path_factory.mktemp("step"))


def awkward():
    """Return the series with missing values, an outlier and a level shift."""
    df = frame()
    y = df["y"].to_numpy(copy=True).reshape(len(NAMES), -1)
    y[2, :7] = np.nan
    y[:, [11, 30, 31, 32, 80]] = np.nan
    y[:, 60] = 1e12
    y[:, 150:] += 3000  # the first of these values is held back
    return df.assign(y=y.ravel())


def inputs(fitted, df):
    """Return y [B, n], the rows [B, n, K + G] and what is known in advance [B, n, K]."""
    covariates, rows, ahead = fitted.predictor_.covariates, [], []
    for name, own in df.groupby("unique_id", sort=False):
        times = calendar_columns(pd.DatetimeIndex(own["ds"]), fitted.predictor_.fields)
        exog = {column: own[column].to_numpy() for column in own.columns[2:]}
        series = TimeSeries(name, pd.DatetimeIndex(own["ds"]), own["y"].to_numpy(), exog=exog)
        futr, hist = covariates.encode_rows(series)
        static = np.tile(fitted.states_[name].stat, (len(own), 1))
        ahead.append(np.concatenate([times, futr, static], 1))
        rows.append(np.concatenate([ahead[-1], hist], 1))
    y = df["y"].to_numpy().reshape(len(rows), -1)
    return torch.tensor(y), torch.tensor(np.stack(rows)), torch.tensor(np.stack(ahead))


def run(form, graph, given, choice, length):
    """Yield the outputs after each of the first rows."""
    y, rows, ahead = given
    state, lower = graph.empty(len(y)), torch.full((len(y),), LOWER, dtype=torch.float64)
    for t in range(length):
        future = ahead[:, t + 1 : t + 1 + HORIZON].clone()
        out = form(y[:, t].clone(), state, lower, choice.clone(), rows[:, t].clone(), future)
        state = state_of(out)
        yield out


def library(fitted, df, length):
    """Return the quantiles after `length` rows, and the last value and scale of each series."""
    past = df.groupby("unique_id", sort=False).head(length)
    past = past[past["unique_id"].isin(past.dropna(subset=["y"])["unique_id"])]
    model = fitted.with_history(past)
    states = list(model.states_.values())
    future = df[df["unique_id"].isin(model.states_)]
    times = model.predictor_.next_times(states, HORIZON)
    wanted = {s.unique_id: each for s, each in zip(states, times, strict=True)}
    futr = model.predictor_.covariates.encode_future(future, wanted)
    last = np.stack([state.track.rows[-1] for state in states])
    return model.predictor_.forecast(states, times, list(futr.values())), last[:, 0], last[:, 3]


def assert_forecasts(found, want, value, scale):
    """Compare differences from the last value, in scales."""
    assert found.dtype == torch.float64
    x, y = ((q - value[:, None, None]) / scale[:, None, None] for q in (found.numpy(), want))
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("choice", [0, 1, 3])
def test_stream_matches_the_library(fitted, step, choice):
    df, model = awkward(), copy.copy(fitted)
    model.chosen_ = dict.fromkeys(NAMES, choice)
    lengths = (1, 2, 7, 8, 9, 17, 31, 61, 62, 100, 151, 153, ROWS) if choice == 0 else (9, ROWS)
    index = torch.full((len(NAMES),), choice)
    outs = list(run(step.onnx, step.graph, inputs(fitted, df), index, ROWS))
    for length in lengths:
        found, (want, value, scale) = outs[length - 1]["quantiles"], library(model, df, length)
        assert_forecasts(found[: len(want)], want, value, scale)
        assert found[len(want) :].isnan().all()  # a series without values yet
    assert outs[-1]["next.seen"].tolist() == [ROWS, ROWS, ROWS - 7]
    assert outs[-1]["next.track.spikes"].tolist() == [2, 2, 2]
    assert any((out["quantiles"] == LOWER).any() for out in outs)


def test_torch_program_matches_onnx(fitted, step):
    given, choice = inputs(fitted, awkward()), torch.tensor([0, 1, 2])
    pairs = (run(form, step.graph, given, choice, 40) for form in step.forms)
    for one, other in zip(*pairs, strict=True):
        for name, x in one.items():
            torch.testing.assert_close(other[name], x, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_values_are_enough_without_covariates_and_times():
    model = EAForecaster(3, mixer="gru", pretrained=None, dim=8, depth=1, epochs=1).fit(
        np.sin(np.arange(60) / 3)
    )
    graph = export.step(model)
    assert [port.name for port in graph.inputs] == ["y", "lower", "choice"]
    assert graph.state[-1].name == "seen"
    program, state = graph.torch().module(), graph.empty(1)
    constants = torch.full((1,), -torch.inf, dtype=torch.float64), torch.tensor([0])
    y = np.cos(np.arange(30) / 3)
    with torch.no_grad():
        for value in y:
            quantiles, state = program(torch.tensor([value]), state, *constants)
    model.chosen_ = dict.fromkeys(model.chosen_, 0)
    want = model.with_history(y).predict()["EAForecaster"]
    np.testing.assert_allclose(quantiles[0, :, 4], want, rtol=1e-4, atol=1e-4)


def test_sequence_of_a_fitted_forecaster_raises(fitted):
    with pytest.raises(ValueError, match="no graph for whole sequences; export its step"):
        export.sequence(fitted)


def test_model_without_its_estimator_raises(fitted):
    with pytest.raises(TypeError, match="got QuantileForecaster"):
        export.step(fitted.model_)


def test_growing_state_raises():
    model = EAForecaster(3, mixer="sa", pretrained=None, dim=8, depth=1, epochs=1).fit(
        np.sin(np.arange(60) / 3)
    )
    with pytest.raises(ValueError, match="a step of mixer 'sa' cannot be exported"):
        export.step(model)
