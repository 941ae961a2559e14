"""An invalid option raises with its name and what is allowed."""

from dataclasses import replace

import numpy as np
import pytest

from eattn.train import TrainConfig


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("epochs", 0, ValueError, "epochs must be at least 1, got 0"),
        ("epochs", 2.0, TypeError, "epochs must be an int, got float"),
        ("max_steps", -1, ValueError, "max_steps must be at least 1"),
        ("batch_size", None, TypeError, "batch_size must be an int, got NoneType"),
        ("evaluate_every", 0, ValueError, "evaluate_every must be at least 1"),
        ("patience", 0, ValueError, "patience must be at least 1"),
        ("drop_last", 1, TypeError, "drop_last must be a bool, got int"),
        ("optimizer", "sgd", ValueError, "optimizer must be one of 'adamw', 'radam', got 'sgd'"),
        ("schedule", "step", ValueError, "schedule must be one of 'constant', 'cosine', 'linear'"),
        ("keep", "first", ValueError, "keep must be one of 'best', 'last', got 'first'"),
        ("precision", "fp8", ValueError, "precision must be one of 'auto', 'float32', 'bfloat16'"),
        ("lr", 0.0, ValueError, "lr must be above 0, and finite, got 0.0"),
        ("lr", float("nan"), ValueError, "lr must be above 0, and finite, got nan"),
        ("lr", float("inf"), ValueError, "lr must be above 0, and finite, got inf"),
        ("lr", "0.1", TypeError, "lr must be a number, got str"),
        ("weight_decay", -0.1, ValueError, "weight_decay must be at least 0"),
        ("betas", (0.9, 1.0), ValueError, "betas must be at least 0 and below 1, and finite"),
        ("betas", 0.9, ValueError, r"betas must be two numbers, as \(0.9, 0.999\), got 0.9"),
        ("warmup", 1.5, ValueError, "warmup must be at least 0 and below 1, and finite, got 1.5"),
        ("warmup", -1, ValueError, "warmup must be at least 0, got -1"),
        ("warmup", "10", TypeError, "warmup must be an int, got str"),
        ("clip", 0, ValueError, "clip must be above 0"),
        ("seed", -1, ValueError, "seed must be at least 0, got -1"),
        ("seed", 2**32, ValueError, r"seed must be below 2\*\*32"),
        ("seed", None, TypeError, "seed must be an int, got NoneType"),
        ("device", "abacus", ValueError, "device must be 'auto' or a device of torch"),
        ("checkpoint", 3, TypeError, "checkpoint must be a folder or None, got int"),
        ("tensorboard", True, TypeError, "tensorboard must be a folder or None, got bool"),
        ("checkpoint_every", 5, ValueError, "checkpoint_every needs checkpoint"),
        ("checkpoint_seconds", 5.0, ValueError, "checkpoint_seconds needs checkpoint"),
        ("checkpoint_seconds", 0, ValueError, "checkpoint_seconds must be above 0"),
    ],
)
def test_an_invalid_option_raises(field, value, error, message):
    with pytest.raises(error, match=message):
        TrainConfig(**{field: value})


def test_a_run_needs_a_limit():
    with pytest.raises(ValueError, match="epochs and max_steps must not both be None"):
        TrainConfig(epochs=None)
    assert TrainConfig(epochs=None, max_steps=5).max_steps == 5


def test_paths_and_device_are_no_numeric_options(tmp_path):
    config = TrainConfig(lr=np.float64(0.5))
    moved = replace(
        config, device="cpu", checkpoint=tmp_path, checkpoint_every=3, tensorboard=tmp_path
    )
    assert moved.numerics() == config.numerics()
    assert type(config.numerics()["lr"]) is float
    assert replace(config, seed=1).numerics() != config.numerics()
