"""A run is resumed only if config, model and task are the same."""

from dataclasses import replace

import pytest
from torch import nn
from train.problem_helpers import net, plain, points, scored

from eattn.train import CheckpointError, Task, TensorDataset, TrainConfig, train


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> TrainConfig:
    """Config of a run that has ended."""
    config = TrainConfig(epochs=1, checkpoint=tmp_path_factory.mktemp("ended"))
    train(nn.Linear(4, 2), plain(), config)
    return config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lr=0.5, seed=3), "another config: lr was 0.001 and is 0.5, seed was 0 and is 3;"),
        (dict(betas=(0.5, 0.9)), r"betas was \[0.9, 0.999\] and is \[0.5, 0.9\]"),
    ],
)
def test_differences_of_the_config_are_listed(config, change, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        train(nn.Linear(4, 2), plain(), replace(config, **change))
    assert str(config.checkpoint / "last.pt") in str(caught.value)
    assert "choose another folder" in str(caught.value)


def test_differences_of_the_model_are_listed(config):
    message = r"another model: weight was float32\[2, 4\] trained and is float32\[3, 4\] trained"
    with pytest.raises(CheckpointError, match=message):
        train(nn.Linear(4, 3), plain(), config)
    with pytest.raises(CheckpointError, match=r"weight was .* and is absent, .*, and 5 more;"):
        train(net(), plain(), config)
    frozen = nn.Linear(4, 2)
    frozen.bias.requires_grad_(False)
    with pytest.raises(CheckpointError, match=r"bias was float32\[2\] trained and is float32\[2\]"):
        train(frozen, plain(), config)


def test_differences_of_the_task_are_listed(config):
    fewer = Task(TensorDataset(*points(12)), plain().loss)
    for task, message in (
        (fewer, "samples was 40 and is 12;"),
        (scored(), "metric was None and is accuracy"),
        (replace(plain(), data="abc"), "data was None and is abc;"),
    ):
        with pytest.raises(CheckpointError, match=f"another task: {message}"):
            train(nn.Linear(4, 2), task, config)
