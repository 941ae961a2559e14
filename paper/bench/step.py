"""A training step of one Transformer block, with any mechanism in it, as something to time."""

from typing import Any

import torch
from torch import Tensor, nn

from eattn.nn import ElementwiseAttention
from eattn.nn.block import TransformerBlock, TransformerConfig
from eattn.ops import Taylor, reference
from paper.bench.candidates import Work, inputs
from paper.bench.measure import Row

SUM = "q+k+v"  # the block without attention: nothing that mixes tokens can be cheaper


class Sum(ElementwiseAttention):
    """y = out(q + k + v): the projections of EA, and no attention between them."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None, **unused: Any) -> Tensor:
        q, k, v = self._project(x, None)
        y: Tensor = self.out_proj(q + k + v)
        return y


def parameters(name: str, length: int, dim: int) -> int:
    """How many a block has."""
    with torch.device("meta"):
        return sum(x.numel() for x in make_block(name, length, dim=dim).parameters())


def make_block(name: str, length: int, *, dim: int = 768, causal: bool = False) -> TransformerBlock:
    """A block of BERT-base, or of its proportions with a smaller `dim`; without dropout."""
    torch.manual_seed(0)
    config = TransformerConfig.bert_base(
        dim=dim, ffn=4 * dim, mixer="ea-6" if name == SUM else name, causal=causal
    )
    block = TransformerBlock(config, dropout=0.0, max_len=length)
    if name == SUM:
        block.mixer = Sum(dim)
    return block


def step(name: str, *, length: int, dim: int, causal: bool) -> Work:
    """A training step on one sequence, warmed up on a short one."""
    block = make_block(name, length, dim=dim, causal=causal)
    _train(block, *inputs((1, min(length, 64), dim), 2))
    x, gy = inputs((1, length, dim), 2)
    return lambda: _train(block, x, gy)


def _train(block: nn.Module, x: Tensor, gy: Tensor) -> Tensor:
    block.zero_grad()
    x = x.detach().requires_grad_()  # as within a stack of blocks
    y: Tensor = block(x)
    y.backward(gy)
    return y.detach()


@torch.no_grad()
def check() -> Row:
    """EA-6's layer beside the literal formula in float64; raises when they disagree."""
    (x,) = inputs((2, 33, 48), 1)
    layer = ElementwiseAttention(48)
    y = layer(x)
    layer = layer.double()
    q, k, v = layer.in_proj(x.double()).chunk(3, -1)
    expected = layer.out_proj(reference.ea_series(q, k, v, order=6))
    error = float((y - expected).abs().max() / expected.abs().max())
    if not error < reference.condition(Taylor(6)) * torch.finfo(torch.float32).eps:
        raise RuntimeError(f"the layer is wrong by {error:.1e} here, so nothing was timed")
    return {"error": error}
