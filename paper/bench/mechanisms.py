"""Every mechanism of Table 1 as something to time: training it alone, and decoding its layer.

Training leaves out the projections around a mechanism: all have them, the table does not count
them, and with their O(LDD) they would hide most of what it counts. One head, for the same reason.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from eattn.nn import Mixer, check_mixer, make_mixer
from eattn.ops import baselines, ea, ea_series
from paper.bench.candidates import Work, inputs

CHUNK = 1024  # tokens of a prompt that are read at once

Op = Callable[..., Tensor]


def training(name: str, *, length: int, dim: int) -> Work:
    """One causal forward and backward of the mechanism `name`, given all it computes with."""
    warm, *_ = _step(name, min(length, 16), dim)
    warm()  # thread pools and libraries are not part of the cost
    return _step(name, length, dim)[0]


def _step(name: str, length: int, dim: int) -> tuple[Work, Op, list[Tensor]]:
    op, given = _mechanism(name, length, dim)
    leaves = [x.requires_grad_() for x in given]
    (gy,) = inputs((1, length, dim), 1)

    def work() -> tuple[Tensor, ...]:
        y = op(*leaves)
        return y.detach(), *torch.autograd.grad(y.reshape(gy.shape), leaves, gy)

    return work, op, leaves


def _mechanism(name: str, length: int, dim: int) -> tuple[Op, list[Tensor]]:
    """The operator, and the tensors it takes that training needs gradients of."""
    q, k, v = inputs((1, length, dim))
    heads = [x.unsqueeze(1) for x in (q * dim**-0.5, k, v)]  # one head: [B, 1, L, D]
    expansion = check_mixer(name)
    match name:
        case "ea":
            return partial(ea, causal=True), [q, k, v]
        case "sa":
            return partial(baselines.sa, causal=True), heads
        case "sa-math":
            return partial(baselines.sa_math, causal=True), heads
        case "la" | "taylor":
            kernel = baselines.ELU if name == "la" else baselines.TAYLOR
            return lambda *qkv: baselines.linear_attention(kernel, *qkv, causal=True)[0], heads
        case "aft":
            w = 0.02 * inputs((1, length, length), 1)[0][0]
            return partial(baselines.aft, causal=True), [k, v, w]
        case "gru":
            gru = nn.GRU(dim, dim, batch_first=True)
            return lambda x, *weights: gru(x)[0], [q, *gru.parameters()]
        case "linear-rnn":
            return partial(baselines.linear_rnn, h=torch.zeros(1, dim)), [q.sigmoid(), k]
    return partial(ea_series, expansion=expansion, causal=True), [q, k, v]


class Decoding:
    """A layer that has read `position` tokens and decodes `steps` more, again and again."""

    def __init__(self, mixer: Mixer, position: int, *, steps: int) -> None:
        self.mixer, self.steps = mixer, steps
        self.x_t = inputs((1, 1, mixer.dim), 1)[0][:, 0]
        self.first = self.state = _read(mixer, position)
        self.state_bytes: int = self.first.nbytes

    @torch.inference_mode()
    def rewind(self) -> None:
        """Back to the position, and a step on: a cache that is full grows now, not while timed."""
        self.state = self.first.select(torch.zeros(1, dtype=torch.int64))
        _, self.state = self.mixer.step(self.x_t, self.state)

    @torch.inference_mode()
    def run(self) -> None:
        for _ in range(self.steps):
            _, self.state = self.mixer.step(self.x_t, self.state)


def decoder(name: str, dim: int, max_len: int) -> Mixer:
    """The layer to decode with, projections included: they cost the same at every position."""
    torch.manual_seed(0)
    return make_mixer(name, dim, heads=1, causal=True, max_len=max_len).eval()


@torch.inference_mode()
def _read(mixer: Mixer, position: int) -> Any:
    """The state after a prompt; read in chunks, so that no weights [L, L] are ever needed."""
    (prompt,) = inputs((1, position, mixer.dim), 1)
    state = None
    for chunk in prompt.split(CHUNK, 1):
        _, state = mixer(chunk, state=state, return_state=True)
    return state
