"""Optimizers are torch's; weight decay, device and precision are chosen as documented."""

import warnings
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from train.problem_helpers import COUNT, loss, net, plain, points, same, weights

from eattn.models import SequenceClassifier
from eattn.nn import ElementwiseAttention
from eattn.train import (
    Schedule,
    Task,
    TensorDataset,
    TrainConfig,
    isolated,
    make_optimizer,
    optim,
    train,
)
from eattn.train.optim import choose_device, choose_dtype


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_a_run_matches_a_loop_written_by_hand(name):
    config = TrainConfig(
        epochs=3,
        batch_size=16,
        optimizer=name,
        lr=0.02,
        betas=(0.8, 0.95),
        weight_decay=0.3,
        schedule="cosine",
        warmup=2,
        clip=0.1,
    )
    x, y = points()
    dataset = TensorDataset(x.double(), y)
    model, by_hand = net(dropout=0.0).double(), net(dropout=0.0).double()
    train(model, Task(dataset, loss), config)

    matrices = [p for p in by_hand.parameters() if p.dim() == 2]
    vectors = [p for p in by_hand.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.RAdam
    decoupled = {} if name == "adamw" else {"decoupled_weight_decay": True}
    optimizer = kind(groups, betas=(0.8, 0.95), **decoupled)
    schedule = Schedule(len(x), config)
    for step, rows in enumerate(schedule.batches(0)):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        optimizer.zero_grad()
        loss(by_hand, dataset.collate(rows)).backward()
        nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
        optimizer.step()
    assert step == 8
    assert_close(weights(model), weights(by_hand), rtol=1e-12, atol=1e-13)


class Tied(nn.Module):
    """Everything that should not decay, and two maps that should."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.map = nn.Linear(4, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.table.weight


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_only_matrices_decay(name):
    model = Tied()
    before = weights(model)
    optimizer = make_optimizer(model, TrainConfig(optimizer=name, lr=0.1, weight_decay=0.5))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for key, x in weights(model).items():
        factor = 0.95 if key in ("map.weight", "conv.weight") else 1.0
        assert_close(x, before[key] * factor, msg=key)


def test_rates_of_forgetting_do_not_decay():
    layer = ElementwiseAttention(8, causal=True, decay="gated")
    matrices, others = make_optimizer(layer, TrainConfig(weight_decay=0.5)).param_groups
    assert any(p is layer.decay.bias for p in others["params"]) and others["weight_decay"] == 0
    assert all(p.dim() == 2 for p in matrices["params"])


def test_a_frozen_model_raises():
    model = net().requires_grad_(False)
    with pytest.raises(ValueError, match="model must have parameters that require gradients"):
        make_optimizer(model, TrainConfig())


def classify(precision: str) -> tuple[nn.Module, list[float], list[torch.dtype]]:
    """Train for two epochs; return the model, its losses and the dtypes of its logits."""
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


def test_mixed_precision_is_close_to_float32():
    _, exact, dtypes = classify("auto")  # on a CPU
    assert choose_dtype("auto", torch.device("cpu")) is None
    assert set(dtypes) == {torch.float32}
    for precision in ("bfloat16", "float16"):
        model, close, dtypes = classify(precision)
        assert set(dtypes) == {getattr(torch, precision)}
        assert all(p.dtype == torch.float32 for p in model.parameters())
        assert close == pytest.approx(exact, rel=0.02)
        assert close != exact


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_types_without_cpu_instructions_warn(name, monkeypatch):
    monkeypatch.setattr(optim, "cpu_supports", lambda name: False)
    with pytest.warns(UserWarning, match=f"no instructions for {name}: precision='float32'"):
        choose_dtype(name, torch.device("cpu"))
    monkeypatch.setattr(optim, "cpu_supports", lambda name: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_dtype(name, torch.device("cpu")) == getattr(torch, name)


def test_float16_skips_steps_whose_gradients_overflow():
    """The scale starts at 2**16: a loss in the hundreds overflows until it has fallen."""
    model, changes = net(), []

    def big(model, batch):
        changes.append(weights(model))
        return loss(model, batch) * 1000

    train(model, plain(big), TrainConfig(epochs=3, batch_size=10, precision="float16"))
    moved = [not same(a, b) for a, b in pairwise(changes)]
    assert not moved[0]
    assert moved[-1]


def test_device_auto_prefers_cuda_to_cpu():
    expected = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device(net(), "auto") == expected
    assert choose_device(net(), "cpu") == torch.device("cpu")
    assert choose_device(net().to("meta"), "auto") == torch.device("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")
def test_a_missing_device_raises():
    with pytest.raises(ValueError, match="device='cuda:1' requested, but CUDA is not available"):
        choose_device(net(), "cuda:1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")
@pytest.mark.parametrize("precision", ["auto", "float32", "float16"])
def test_a_gpu_learns_the_same_problem(precision, tmp_path):
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
