"""The optimisers are torch's, and weight decay goes where it belongs."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from train.problem_helpers import loss, net, points, weights

from eattn.train import Schedule, Task, TensorDataset, TrainConfig, make_optimizer, train


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_a_run_is_what_one_writes_by_hand(name):
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
    cases = TensorDataset(x.double(), y)
    model, by_hand = net(dropout=0.0).double(), net(dropout=0.0).double()
    train(model, Task(cases, loss), config)

    matrices = [p for p in by_hand.parameters() if p.dim() == 2]
    vectors = [p for p in by_hand.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.RAdam
    decoupled = {} if name == "adamw" else {"decoupled_weight_decay": True}
    optimizer = kind(groups, betas=(0.8, 0.95), **decoupled)
    plan = Schedule(len(x), config)
    for step, rows in enumerate(plan.batches(0)):
        for group in optimizer.param_groups:
            group["lr"] = plan.lr(step)
        optimizer.zero_grad()
        loss(by_hand, cases.collate(rows)).backward()
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


def test_a_model_without_anything_to_train_is_refused():
    model = net().requires_grad_(False)
    with pytest.raises(ValueError, match="model must have parameters that require gradients"):
        make_optimizer(model, TrainConfig())
