"""What can go wrong in a run and cannot be helped by going on."""

import re
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from eattn.train.config import TrainConfig
from eattn.train.dataset import Batch
from eattn.train.sharding import local

# What torch says when the other end of a connection is gone.
LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed out|socket|remote process"
    r"|nccl.*(timeout|remote)",  # its other errors, two processes on one card, are of this one
    re.I,
)


class TrainingError(ValueError):
    """A loss or a gradient that is not finite. `epoch` and `step` count from 1."""

    def __init__(self, message: str, *, epoch: int, step: int, loss: float, norm: float) -> None:
        super().__init__(message)
        self.epoch, self.step, self.loss, self.norm = epoch, step, loss, norm

    def __reduce__(self) -> tuple[object, ...]:  # Exception's forgets what is given by name
        return partial(type(self), **vars(self)), self.args


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or of another run."""


def lost(error: BaseException) -> bool:
    """Whether it says that another process is gone."""
    return isinstance(error, RuntimeError) and LOST.search(str(error)) is not None


def advice(model: nn.Module, batch: Batch, config: TrainConfig, *, autocast: bool) -> str:
    """What to try, given what can be seen from the weights, the batch and the config."""
    for name, p in model.named_parameters():
        if not _finite(p):
            return f"the parameter {name} held NaN or inf before this step"
    options = ["a lower lr", "a warmup"]
    if config.clip is None:
        options.append("clip=1.0")
    if autocast:
        options.append("precision='float32'")
    tip = f"try {', '.join(options)}"
    if all(map(_finite, pytree.tree_leaves(batch))):
        return f"the batch is finite; {tip}"
    return f"the batch holds NaN or inf: look at the data; if they are masked, {tip}"


def _finite(x: object) -> bool:
    return not isinstance(x, Tensor) or bool(torch.isfinite(local(x)).all())
