"""A loss or gradient that is not finite stops the run, with the step and what to try."""

import math
import pickle

import pytest
import torch
from torch import nn
from train.problem_helpers import loss, net, points, same, weights

from eattn.train import Task, TensorDataset, TrainConfig, TrainingError, train

CONFIG = TrainConfig(epochs=4, batch_size=10, lr=0.25)


def spoiled(step: int, factor: float = math.nan) -> Task:
    """The loss is multiplied by a factor in one step, counted from 1."""
    calls = iter(range(1, 1000))

    def spoil(model, batch):
        return loss(model, batch) * (factor if next(calls) == step else 1.0)

    return Task(TensorDataset(*points()), spoil)


def test_it_says_where_and_what_to_try():
    with pytest.raises(TrainingError) as caught:
        train(net(), spoiled(7), CONFIG)
    error = caught.value
    assert str(error) == (
        "loss is nan at epoch 2, step 7 (lr 0.25): the batch is finite; try a lower lr, a warmup"
    )
    assert (error.epoch, error.step) == (2, 7)
    assert math.isnan(error.loss)
    assert isinstance(error, ValueError)  # so that the command line prints it in one line


def test_what_is_not_set_yet_is_offered():
    config = TrainConfig(epochs=1, batch_size=10, clip=None, precision="bfloat16")
    with pytest.raises(TrainingError, match=r"loss is inf .* clip=1.0, precision='float32'$"):
        train(net(), spoiled(2, math.inf), config)


def test_a_loss_that_explodes_is_caught():
    model = nn.Linear(4, 1)
    task = Task(TensorDataset(points()[0]), lambda model, batch: -model(batch[0]).exp().mean())
    with pytest.raises(TrainingError, match=r"is -?inf at epoch \d+, step \d+ \(lr 10\)"):
        train(model, task, TrainConfig(epochs=100, lr=10.0, clip=None))
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_gradient_may_be_to_blame_while_the_loss_is_finite():
    task = Task(TensorDataset(torch.zeros(4, 4)), lambda model, b: (model(b[0]) * 0).sqrt().sum())
    with pytest.raises(TrainingError, match="gradient norm is nan at epoch 1, step 1"):
        train(net(), task, CONFIG)


def test_bad_data_is_pointed_at():
    x, y = points()
    x[17, 2] = math.nan
    with pytest.raises(
        TrainingError, match=r"loss is nan .* the batch holds NaN or inf: look at the data"
    ):
        train(net(), Task(TensorDataset(x, y), loss), CONFIG)


def test_bad_weights_are_pointed_at():
    model = net()
    with torch.no_grad():
        model[4].bias[1] = math.inf
    with pytest.raises(TrainingError, match=r"the parameter 4\.bias held NaN or inf before"):
        train(model, spoiled(0), CONFIG)


def test_the_weights_are_those_before_the_step():
    failed, cut = net(), net()
    with pytest.raises(TrainingError):
        train(failed, spoiled(7), CONFIG)
    train(cut, spoiled(0), TrainConfig(epochs=None, max_steps=6, batch_size=10, lr=0.25))
    assert same(weights(failed), weights(cut))
    assert not failed.training


def test_or_the_best_ones_of_an_evaluation():
    seen = []

    def evaluate(model):
        seen.append(weights(model))
        return {"score": -len(seen)}

    bad = spoiled(11)
    model = net()
    with pytest.raises(TrainingError, match="epoch 3, step 11"):
        train(model, Task(bad.cases, bad.loss, evaluate, metric="score", better="higher"), CONFIG)
    assert len(seen) == 2
    assert same(weights(model), seen[0])


def test_the_error_survives_the_way_from_another_process():
    error = TrainingError("loss is nan", epoch=1, step=2, loss=3.0, norm=4.0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))
