"""The loop learns, judges, stops and keeps what it should."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from train.problem_helpers import loss, net, plain, points, same, scored, timeless, weights

from eattn.models import Forecaster, SequenceClassifier
from eattn.train import ListDataset, Task, TensorDataset, TrainConfig, isolated, train


def test_a_problem_is_learnt():
    model = net()
    history = train(model, scored(), TrainConfig(epochs=30, batch_size=8, lr=0.01))
    losses = [row.loss for row in history.rows]
    assert losses[-1] < 0.3 * losses[0]
    assert history.best.metrics["accuracy"] == 1.0
    x, y = points()
    assert torch.equal(model(x).argmax(1), y)


def test_a_classifier_of_padded_series_is_trained_by_items():
    """Which half of a series of unequal length is louder, from a mask and a dictionary batch."""
    rng = torch.Generator().manual_seed(0)
    items = []
    for i in range(48):
        x = torch.randn(6 + i % 5, 2, generator=rng)
        side = slice(None, len(x) // 2) if i % 2 else slice(len(x) // 2, None)
        x[side] *= 4
        items.append((x, i % 2))

    def collate(rows):
        xs, ys = zip(*rows, strict=True)
        lengths = torch.tensor([len(x) for x in xs])
        x = nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=math.nan)
        mask = torch.arange(x.shape[1]) < lengths[:, None]
        return {"x": x, "key_mask": mask, "y": torch.tensor(ys)}

    def cross_entropy(model, batch):
        return F.cross_entropy(model(batch["x"], key_mask=batch["key_mask"]), batch["y"])

    with isolated(0):
        model = SequenceClassifier(2, classes=2, dim=16, depth=1, mixer="ea-6")
    task = Task(ListDataset(items, collate), cross_entropy)
    history = train(model, task, TrainConfig(epochs=15, batch_size=16, lr=5e-3))
    assert history.rows[-1].loss < 0.5 * history.rows[0].loss


def test_a_forecaster_is_trained_by_its_own_loss():
    x = torch.sin(torch.arange(240) * 0.4).reshape(20, 12, 1)
    with isolated(0):
        model = Forecaster(1, dim=16, depth=1, mixer="ea-2")
    task = Task(TensorDataset(x), lambda model, batch: model.loss(*batch))
    history = train(model, task, TrainConfig(epochs=15, batch_size=10, lr=5e-3))
    assert history.rows[-1].loss < 0.2 * history.rows[0].loss


def test_rows_say_what_happened():
    config = TrainConfig(epochs=3, batch_size=16, lr=0.1, schedule="linear")
    history = train(net(), scored(), config)
    assert [row.epoch for row in history.rows] == [1, 2, 3]
    assert [row.step for row in history.rows] == [3, 6, 9]
    assert [row.lr for row in history.rows] == pytest.approx([0.1 * (1 - i / 9) for i in (2, 5, 8)])
    assert all(set(row.metrics) == {"accuracy"} for row in history.rows)
    seconds = [row.seconds for row in history.rows]
    assert 0 < seconds[0] < seconds[1] < seconds[2] <= history.seconds
    assert history.stopped == "epochs"


def test_a_run_of_steps_ends_in_the_middle_of_an_epoch_with_a_row():
    history = train(net(), plain(), TrainConfig(epochs=None, max_steps=7, batch_size=8))
    assert [(row.epoch, row.step) for row in history.rows] == [(1, 5), (2, 7)]
    assert history.stopped == "max_steps"
    every = TrainConfig(epochs=2, batch_size=8, evaluate_every=4)
    assert [row.step for row in train(net(), plain(), every).rows] == [4, 8, 10]


@pytest.mark.parametrize(("weighted", "expected"), [(False, 1 / 4), (True, 20 / 30)])
def test_the_loss_of_a_row_is_the_mean_over_what_batches_count_for(weighted, expected):
    """A loss of 0 for three cases, then 1 for the fourth: 3 to 1, or as the task weighs them."""
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
def test_clipping_bounds_the_norm_of_what_the_optimiser_sees(clip):
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


class Judge:
    """An `evaluate` that gives scripted values and remembers the weights it saw."""

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
def test_patience_stops_at_the_right_epoch_and_the_best_weights_stay(sign):
    judge = Judge(*(sign * value for value in (1, 3, 2, 3, 4, 3, 4, 2, 9, 9)))
    model = net()
    task = judge.task("higher" if sign == 1 else "lower")
    history = train(model, task, TrainConfig(epochs=10, batch_size=16, patience=3))
    assert [row.metrics["score"] * sign for row in history.rows] == [1, 3, 2, 3, 4, 3, 4, 2]
    assert history.stopped == "patience"
    assert history.best.epoch == 5  # the first 4: an equal value is no better
    assert same(weights(model), judge.seen[4])


def test_the_last_weights_stay_where_that_is_asked():
    judge = Judge(3, 2, 1)
    model = net()
    history = train(model, judge.task("higher"), TrainConfig(epochs=3, keep="last"))
    assert history.best.epoch == 1
    assert same(weights(model), judge.seen[2])


def test_a_metric_that_is_nan_is_never_the_best():
    judge = Judge(math.nan, 2, math.nan, math.nan)
    model = net()
    history = train(model, judge.task("lower"), TrainConfig(epochs=4, patience=2))
    assert (history.best.epoch, history.stopped, len(history.rows)) == (2, "patience", 4)
    assert same(weights(model), judge.seen[1])


def test_the_loss_in_training_may_decide():
    x = torch.zeros(4, 1)
    task = Task(
        TensorDataset(x),
        lambda model, batch: model(batch[0]).mean() * 0 + next(losses),
        metric="train_loss",
        better="lower",
    )
    losses = iter([3.0, 1.0, 2.0, 2.0, 0.0])
    history = train(nn.Linear(1, 1), task, TrainConfig(epochs=5, patience=2))
    assert (history.best.epoch, history.stopped) == (2, "patience")


def test_judging_a_model_does_not_change_what_it_learns():
    def noisy(model):
        return {"noise": torch.rand(3).sum()}

    quiet, watched = net(), net()
    config = TrainConfig(epochs=3, batch_size=8)
    train(quiet, plain(), config)
    train(watched, Task(TensorDataset(*points()), loss, noisy), config)
    assert same(weights(quiet), weights(watched))


def test_a_trained_model_is_ready_to_be_used():
    model = net()
    train(model, plain(), TrainConfig(epochs=1))
    assert not any(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_frozen_parameters_stay():
    model = net()
    model[0].requires_grad_(False)
    before = weights(model)
    train(model, plain(), TrainConfig(epochs=2))
    changed = {name for name, x in weights(model).items() if not torch.equal(x, before[name])}
    assert changed == {"1.weight", "1.bias", "4.weight", "4.bias"}


def test_a_compiled_model_learns_what_it_learns_without():
    model, compiled = net(), net()
    config = TrainConfig(epochs=2, batch_size=8)
    history = train(model, scored(), config)
    graph = torch.compile(compiled, backend="eager")
    assert timeless(train(graph, scored(), config)) == timeless(history)
    assert same(weights(compiled), weights(model))


def test_a_task_that_cannot_be_learnt_says_why():
    cases = TensorDataset(*points())
    with pytest.raises(TypeError, match=r"loss must return a tensor without dimensions, got shape"):
        train(net(), Task(cases, lambda model, batch: model(batch[0])))
    with pytest.raises(TypeError, match="without dimensions, got float"):
        train(net(), Task(cases, lambda model, batch: 0.5))
    with pytest.raises(ValueError, match="loss must depend on the model's parameters"):
        train(net(), Task(cases, lambda model, batch: batch[0].mean()))
    with pytest.raises(TypeError, match="config must be a TrainConfig, got dict"):
        train(net(), plain(), {"lr": 0.1})


def test_what_decides_must_be_there():
    cases = TensorDataset(*points())
    with pytest.raises(ValueError, match="patience needs a task with a metric"):
        train(net(), plain(), TrainConfig(patience=3))
    with pytest.raises(ValueError, match="better must be 'higher' or 'lower' for metric 'f1'"):
        Task(cases, loss, lambda model: {}, metric="f1")
    with pytest.raises(ValueError, match="metric must be 'train_loss' where there is no evaluate"):
        Task(cases, loss, metric="f1", better="higher")
    task = Task(cases, loss, lambda model: {"a": 1, "b": 2}, metric="f1", better="higher")
    with pytest.raises(ValueError, match=r"metric must be one that evaluate gives \(a, b\)"):
        train(net(), task)
    with pytest.raises(ValueError, match="must not name a metric 'train_loss'"):
        train(net(), Task(cases, loss, lambda model: {"train_loss": 1.0}))
