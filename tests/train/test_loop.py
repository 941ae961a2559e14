"""The loop trains, evaluates, stops and keeps the weights it should."""

import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from train.problem_helpers import loss, net, plain, points, same, scored, weights

from eattn.train import Task, TensorDataset, TrainConfig, TrainingError, train


def test_a_problem_is_learned():
    model = net()
    history = train(model, scored(), TrainConfig(epochs=30, batch_size=8, lr=0.01))
    losses = [row.loss for row in history.rows]
    assert losses[-1] < 0.3 * losses[0]
    assert history.best.metrics["accuracy"] == 1.0
    x, y = points()
    assert torch.equal(model(x).argmax(1), y)
    assert not any(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_rows_record_every_epoch():
    config = TrainConfig(epochs=3, batch_size=16, lr=0.1, schedule="linear")
    history = train(net(), scored(), config)
    assert [row.epoch for row in history.rows] == [1, 2, 3]
    assert [row.step for row in history.rows] == [3, 6, 9]
    assert [row.lr for row in history.rows] == pytest.approx([0.1 * (1 - i / 9) for i in (2, 5, 8)])
    assert all(set(row.metrics) == {"accuracy"} for row in history.rows)
    seconds = [row.seconds for row in history.rows]
    assert 0 < seconds[0] < seconds[1] < seconds[2] <= history.seconds
    assert history.stopped == "epochs"


def test_max_steps_ends_within_an_epoch_with_a_row():
    history = train(net(), plain(), TrainConfig(epochs=None, max_steps=7, batch_size=8))
    assert [(row.epoch, row.step) for row in history.rows] == [(1, 5), (2, 7)]
    assert history.stopped == "max_steps"


@pytest.mark.parametrize(("weighted", "expected"), [(False, 1 / 4), (True, 20 / 30)])
def test_the_loss_of_a_row_is_a_weighted_mean(weighted, expected):
    """Loss 0 for three samples, then 1 for the fourth: 3 to 1, or as the task weights them."""
    sizes = []

    def count(model, batch):
        sizes.append(len(batch[0]))
        value = model(batch[0]).mean() * 0 + (len(sizes) - 1)
        return (value, 10.0 * len(sizes)) if weighted else value

    task = Task(TensorDataset(torch.zeros(4, 1)), count)
    history = train(nn.Linear(1, 1), task, TrainConfig(epochs=1, batch_size=3))
    assert sizes == [3, 1]
    assert history.rows[0].loss == pytest.approx(expected)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_clipping_bounds_the_gradient_norm(clip):
    norms = []

    def record(optimizer, *_):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())

    handle = register_optimizer_step_pre_hook(record)
    try:
        train(net(), plain(), TrainConfig(epochs=2, batch_size=8, clip=clip))
    finally:
        handle.remove()
    assert len(norms) == 10
    if clip is None:
        assert min(norms) > 0.05
    else:
        assert norms == pytest.approx([0.05] * 10, rel=1e-3)


class Scores:
    """An `evaluate` that returns scripted values and records the weights it saw."""

    def __init__(self, *values: float) -> None:
        self.values, self.seen = values, []

    def __call__(self, model: nn.Module) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        self.seen.append(weights(model))
        return {"score": self.values[len(self.seen) - 1]}

    def task(self, better: str) -> Task:
        return Task(TensorDataset(*points()), loss, self, metric="score", better=better)


@pytest.mark.parametrize("sign", [1, -1], ids=["higher", "lower"])
def test_patience_stops_and_keeps_the_best_weights(sign):
    scores = Scores(*(sign * value for value in (1, 3, 2, 3, 4, 3, 4, 2, 9, 9)))
    model = net()
    task = scores.task("higher" if sign == 1 else "lower")
    history = train(model, task, TrainConfig(epochs=10, batch_size=16, patience=3))
    assert [row.metrics["score"] * sign for row in history.rows] == [1, 3, 2, 3, 4, 3, 4, 2]
    assert history.stopped == "patience"
    assert history.best.epoch == 5  # the first 4: an equal value is no better
    assert same(weights(model), scores.seen[4])


def test_keep_last_keeps_the_last_weights():
    scores = Scores(3, 2, 1)
    model = net()
    history = train(model, scores.task("higher"), TrainConfig(epochs=3, keep="last"))
    assert history.best.epoch == 1
    assert same(weights(model), scores.seen[2])


def test_a_nan_metric_is_never_the_best():
    scores = Scores(math.nan, 2, math.nan, math.nan)
    model = net()
    history = train(model, scores.task("lower"), TrainConfig(epochs=4, patience=2))
    assert (history.best.epoch, history.stopped, len(history.rows)) == (2, "patience", 4)
    assert same(weights(model), scores.seen[1])


def test_train_loss_can_be_the_metric():
    losses = iter([3.0, 1.0, 2.0, 2.0, 0.0])
    task = Task(
        TensorDataset(torch.zeros(4, 1)),
        lambda model, batch: model(batch[0]).mean() * 0 + next(losses),
        metric="train_loss",
        better="lower",
    )
    history = train(nn.Linear(1, 1), task, TrainConfig(epochs=5, patience=2))
    assert (history.best.epoch, history.stopped) == (2, "patience")


def test_an_evaluation_does_not_change_the_training():
    quiet, watched = net(), net()
    config = TrainConfig(epochs=3, batch_size=8)
    train(quiet, plain(), config)
    noisy = Task(TensorDataset(*points()), loss, lambda model: {"noise": torch.rand(3).sum()})
    train(watched, noisy, config)
    assert same(weights(quiet), weights(watched))


def test_frozen_parameters_stay():
    model = net()
    model[0].requires_grad_(False)
    before = weights(model)
    train(model, plain(), TrainConfig(epochs=2))
    changed = {name for name, x in weights(model).items() if not torch.equal(x, before[name])}
    assert changed == {"1.weight", "1.bias", "4.weight", "4.bias"}


@pytest.mark.parametrize(
    ("of", "error", "message"),
    [
        (lambda model, batch: model(batch[0]), TypeError, "without dimensions, got shape"),
        (lambda model, batch: 0.5, TypeError, "without dimensions, got float"),
        (lambda model, batch: batch[0].mean(), ValueError, "depend on the model's parameters"),
    ],
)
def test_an_invalid_loss_raises(of, error, message):
    with pytest.raises(error, match=message):
        train(net(), plain(of))


def test_invalid_options_raise():
    dataset = TensorDataset(*points())
    with pytest.raises(TypeError, match="config must be a TrainConfig, got dict"):
        train(net(), plain(), {"lr": 0.1})
    with pytest.raises(ValueError, match="patience needs a task with a metric"):
        train(net(), plain(), TrainConfig(patience=3))
    task = Task(dataset, loss, lambda model: {"a": 1, "b": 2}, metric="f1", better="higher")
    with pytest.raises(ValueError, match=r"metric must be one that evaluate returns \(a, b\)"):
        train(net(), task)
    with pytest.raises(ValueError, match="must not return 'train_loss'"):
        train(net(), Task(dataset, loss, lambda model: {"train_loss": 1.0}))


CONFIG = TrainConfig(epochs=4, batch_size=10, lr=0.25)


def spoiled(step: int, factor: float = math.nan) -> Task:
    """A task whose loss is multiplied by a factor in one step, counted from 1."""
    calls = iter(range(1, 1000))
    return plain(lambda *args: loss(*args) * (factor if next(calls) == step else 1.0))


def test_a_nan_loss_raises_with_step_and_advice():
    failed, stopped = net(), net()
    with pytest.raises(TrainingError) as caught:
        train(failed, spoiled(7), CONFIG)
    error = caught.value
    assert str(error) == (
        "loss is nan at epoch 2, step 7 (lr 0.25): the batch is finite; try a lower lr, a warmup"
    )
    assert (error.epoch, error.step) == (2, 7)
    assert math.isnan(error.loss)
    assert isinstance(error, ValueError)  # so that the command line prints one line
    train(stopped, spoiled(0), TrainConfig(epochs=None, max_steps=6, batch_size=10, lr=0.25))
    assert same(weights(failed), weights(stopped))  # those before the step
    assert not failed.training


def test_advice_lists_options_that_are_not_set():
    config = TrainConfig(epochs=1, batch_size=10, clip=None, precision="bfloat16")
    with pytest.raises(TrainingError, match=r"loss is inf .* clip=1.0, precision='float32'$"):
        train(net(), spoiled(2, math.inf), config)


def test_an_exploding_loss_leaves_finite_weights():
    model = nn.Linear(4, 1)
    task = Task(TensorDataset(points()[0]), lambda model, batch: -model(batch[0]).exp().mean())
    with pytest.raises(TrainingError, match=r"is -?inf at epoch \d+, step \d+ \(lr 10\)"):
        train(model, task, TrainConfig(epochs=100, lr=10.0, clip=None))
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_nan_gradient_of_a_finite_loss_raises(precision):
    task = Task(TensorDataset(torch.zeros(4, 4)), lambda model, b: (model(b[0]) * 0).sqrt().sum())
    with pytest.raises(TrainingError, match="gradient norm is nan at epoch"):
        train(net(), task, TrainConfig(epochs=100, precision=precision))


def test_nan_in_data_or_weights_is_named():
    x, y = points()
    x[17, 2] = math.nan
    message = r"loss is nan .* the batch holds NaN or inf: look at the data"
    with pytest.raises(TrainingError, match=message):
        train(net(), Task(TensorDataset(x, y), loss), CONFIG)
    model = net()
    with torch.no_grad():
        model[4].bias[1] = math.inf
    with pytest.raises(TrainingError, match=r"the parameter 4\.bias held NaN or inf before"):
        train(model, plain(), CONFIG)


def test_a_failed_run_keeps_the_best_weights():
    scores, model = Scores(2, 1), net()
    task = Task(TensorDataset(*points()), spoiled(11).loss, scores, "score", "higher")
    with pytest.raises(TrainingError, match="epoch 3, step 11"):
        train(model, task, CONFIG)
    assert same(weights(model), scores.seen[0])


def test_a_training_error_can_be_pickled():
    error = TrainingError("loss is nan", epoch=1, step=2, loss=3.0, norm=4.0)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))
