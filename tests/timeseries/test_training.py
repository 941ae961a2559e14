"""Training of a forecaster: its loss, its length, and what it keeps."""

import numpy as np
import pytest
import torch
from forecaster_helpers import TINY, random_predictor, read, wave
from torch.testing import assert_close

from eattn.models import QuantileForecaster
from eattn.timeseries import EAForecaster, training
from eattn.timeseries.covariates import Covariates
from eattn.timeseries.fitting import make_table
from eattn.timeseries.windows import TrainingWindows, validation_sizes, validation_windows

PARAMS = EAForecaster(**TINY).get_params()


@pytest.fixture(scope="module")
def parts():
    """Return training and validation windows, and a model with random weights."""
    y = wave(150)
    y[140] = np.nan
    series = read(y)
    table = make_table(series, (), Covariates(), seasons=(4,), horizon=3)
    sizes = validation_sizes(np.array([150]), 3, 0.2)
    windows = TrainingWindows(table, 150 - sizes, 0)
    model = random_predictor(series, horizon=3, dtype=torch.float32).model
    return windows, validation_windows(table, sizes, 100), model


def pinball(q: np.ndarray, y: np.ndarray, levels) -> np.ndarray:
    """Return the mean pinball loss over levels, by its definition."""
    total = 0.0
    for i, level in enumerate(levels):
        error = y - q[..., i]
        total = total + np.where(error > 0, level * error, (level - 1) * error)
    return total / len(levels)


def test_loss_is_the_mean_pinball_loss_of_known_values(parts):
    windows, _, model = parts
    batch = windows.collate([0, 3, 5])
    batch["counts"][0] = False
    with torch.no_grad():
        loss, weight = training.window_loss(model, batch)
        q = model(*(batch[name] for name in ("tokens", "origins", "rules", "features")))
    expected = pinball(q.numpy(), batch["y"].numpy(), model.levels)[batch["counts"].numpy()]
    assert weight == expected.size < batch["y"].numel()
    assert_close(loss.item(), float(expected.mean()), rtol=1e-5, atol=1e-6)
    batch["y"][0] = 1e9
    assert training.window_loss(model, batch)[0].item() == loss.item()


def test_losses_of_windows_leave_out_missing_values(parts):
    _, validation, model = parts
    found = training.window_losses(model, validation)
    assert len(found) == len(validation) == 28
    assert np.isfinite(found).all()
    [batch] = validation
    known = batch["counts"][batch["given"]].numpy()
    touched = (~known).any(-1)
    assert np.flatnonzero(touched).tolist() == [18, 19, 20]  # forecasts of value 140
    with torch.no_grad():
        q = model(*(batch[name] for name in ("tokens", "origins", "rules", "features")))
    losses = pinball(q.numpy(), batch["y"].numpy(), model.levels)[batch["given"]]
    np.testing.assert_allclose(found, (losses * known).sum(1) / known.sum(1), rtol=1e-4)


def test_number_of_steps_follows_the_data():
    automatic = PARAMS | {"epochs": None, "batch_size": 10}
    steps = [training.forecaster_config(automatic, n, 0).max_steps for n in (1, 300, 10**6)]
    assert steps == [training.STEPS[0], 30 * training.EPOCHS, training.STEPS[1]]
    given = training.forecaster_config(PARAMS, 1, 0)
    assert given.max_steps == TINY["epochs"]  # one step per epoch


def design_of(model: QuantileForecaster) -> dict:
    return dict(
        tokens=model.embed.in_features,
        rules=model.rules,
        features=model.from_step.in_features - model.rules,
        plain=model.plain,
        levels=model.levels,
        **dict(dim=8, depth=1, mixer="ea-6+decay", norm="pre", short_conv=4),
    )


def new_model(design: dict) -> QuantileForecaster:
    torch.manual_seed(0)
    return QuantileForecaster(**design)


@pytest.mark.parametrize("lr", [0.01, 1.0])
def test_training_never_ends_worse_than_it_began(parts, lr):
    windows, validation, model = parts
    design = design_of(model)
    untrained = training.window_losses(QuantileForecaster(**design).eval(), validation).mean()
    config = training.forecaster_config(PARAMS | {"lr": lr}, len(windows), 0)
    trained = new_model(design)
    training.train_forecaster(trained, windows, validation, config, progress=False)
    loss = training.window_losses(trained.eval(), validation).mean()
    assert loss < untrained * (0.9 if lr < 1 else 1)


def test_trained_weights_shrink_if_validation_differs(parts, monkeypatch):
    """A trend that ends where validation begins makes everything learned about it wrong."""
    rng = np.random.default_rng(0)
    y = np.minimum(np.arange(150.0), 120) + 0.1 * rng.normal(size=150)
    table = make_table(read(y), (), Covariates(), seasons=(4,), horizon=3)
    sizes = validation_sizes(np.array([150]), 3, 0.2)
    windows, validation = (
        TrainingWindows(table, 150 - sizes, 0),
        validation_windows(table, sizes, 9),
    )
    config = training.forecaster_config(PARAMS, len(windows), 0)
    design = design_of(parts[2])
    model, full = new_model(design), new_model(design)
    training.train_forecaster(model, windows, validation, config, progress=False)
    untrained = training.window_losses(QuantileForecaster(**design).eval(), validation).mean()
    assert training.window_losses(model.eval(), validation).mean() <= untrained
    monkeypatch.setattr(training, "SHARES", (1.0,))
    training.train_forecaster(full, windows, validation, config, progress=False)
    assert model.direct.weight.abs().sum() < full.direct.weight.abs().sum()


def test_direct_path_learns_the_best_rule(parts):
    y = np.random.default_rng(0).normal(size=400).cumsum()  # a random walk has no season
    table = make_table(read(y), (), Covariates(), seasons=(4,), horizon=3)
    windows = TrainingWindows(table, np.array([400]), 0)
    model = random_predictor(read(y), horizon=3, dtype=torch.float32).model
    for layer in (model.head, model.direct):
        layer.weight.data.zero_()
    training.train_direct(model, windows, training.forecaster_config(PARAMS, 1, 0))
    batch = windows.collate([1, 2, 3])
    with torch.no_grad():
        q = model.quantiles(None, batch["rules"], batch["features"])
    error = (q[..., 4] - batch["y"])[batch["counts"]].abs().mean()
    naive = (batch["rules"][..., 0] - batch["y"])[batch["counts"]].abs().mean()
    assert error < 0.9 * naive
    assert not model.head.weight.any()
