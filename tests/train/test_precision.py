"""Mixed precision comes close to float32, and float16 survives gradients that overflow."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from train.problem_helpers import COUNT, loss, net, points, same, weights

from eattn.models import SequenceClassifier
from eattn.train import Task, TensorDataset, TrainConfig, TrainingError, isolated, train
from eattn.train.optim import choose_device, choose_dtype


def classify(precision: str) -> tuple[nn.Module, list[float], list[torch.dtype]]:
    """A classifier of series trained for two epochs, its losses and the dtypes of its logits."""
    x = torch.randn(COUNT, 9, 4, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2)) > 0).long()
    dtypes = []

    def cross_entropy(model, batch):
        logits = model(batch[0])
        dtypes.append(logits.dtype)
        return F.cross_entropy(logits.float(), batch[1])

    with isolated(0):
        model = SequenceClassifier(4, 2, dim=16, depth=1, mixer="ea-6")
    config = TrainConfig(epochs=2, batch_size=8, precision=precision)
    history = train(model, Task(TensorDataset(x, y), cross_entropy), config)
    return model, [row.loss for row in history.rows], dtypes


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_is_close_to_float32(precision):
    _, exact, _ = classify("float32")
    model, close, dtypes = classify(precision)
    assert set(dtypes) == {getattr(torch, precision)}
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert close == pytest.approx(exact, rel=0.02)
    assert close != exact


def test_on_a_cpu_auto_is_float32():
    assert choose_dtype("auto", torch.device("cpu")) is None
    assert set(classify("auto")[2]) == {torch.float32}


def test_gradients_that_overflow_in_float16_cost_a_step_and_no_more():
    """The scale starts at 2**16: a loss in the hundreds overflows until it has fallen."""
    model, changes = net(), []

    def big(model, batch):
        changes.append(weights(model))
        return loss(model, batch) * 1000

    config = TrainConfig(epochs=3, batch_size=10, precision="float16")
    train(model, Task(TensorDataset(*points()), big), config)
    moved = [not same(a, b) for a, b in pairwise(changes)]
    assert not moved[0]
    assert moved[-1]


def test_gradients_that_are_never_finite_stop_a_float16_run_too():
    task = Task(TensorDataset(torch.zeros(4, 4)), lambda model, b: (model(b[0]) * 0).sqrt().sum())
    with pytest.raises(TrainingError, match="gradient norm is nan"):
        train(net(), task, TrainConfig(epochs=100, precision="float16"))


def test_a_model_stays_where_it_is_unless_there_is_something_faster():
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device(net(), "auto") == here
    assert choose_device(net(), "cpu") == torch.device("cpu")
    assert choose_device(net().to("meta"), "auto") == torch.device("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device must be there, got 'cuda:1'"):
        choose_device(net(), "cuda:1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("precision", ["auto", "float32", "float16"])
def test_a_card_learns_the_same_problem(precision, tmp_path):
    def accuracy(model):
        x, y = (t.cuda() for t in points())
        return {"accuracy": (model(x).argmax(1) == y).float().mean()}

    task = Task(TensorDataset(*points()), loss, accuracy, metric="accuracy", better="higher")
    config = TrainConfig(epochs=30, batch_size=8, lr=0.01, precision=precision, checkpoint=tmp_path)
    model, again = net(), net(seed=1)
    assert train(model, task, config).best.metrics["accuracy"] == 1.0
    train(again, task, config)
    assert next(again.parameters()).is_cuda
    assert same(weights(model), weights(again))
