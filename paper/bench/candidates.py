"""What is timed: each function here prepares its inputs and returns the work as a closure."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eattn.ops import Expansion, Quadrature, State, Taylor, ea_series, ea_series_step, reference

Shape = tuple[int, int, int]
Work = Callable[[], object]
HEAD = 64  # channels per head of softmax attention, as in BERT-base
CALLS = ("ea_series", "ea_series with state", "ea_series_step")


def inputs(shape: Shape, count: int = 3) -> list[Tensor]:
    """The same standard normal tensors every time."""
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=rng) for _ in range(count)]


def streaming(shape: Shape) -> Work:
    """Three reads and one write into fresh memory: no operator of q, k, v can be faster."""
    q, k, v = inputs(shape)
    return lambda: torch.addcmul(q, k, v)


def expansion(terms: int, who: str = "ours") -> Expansion:
    """The series of so many terms, or with "quadrature" the grid of so many nodes."""
    return Quadrature(terms) if who == "quadrature" else Taylor(terms - 1)


def forward(shape: Shape, *, order: int, who: str = "ours", causal: bool = True) -> Work:
    """The operator alone, as in inference."""
    q, k, v = inputs(shape)
    made = expansion(order + 1, who)
    return torch.no_grad()(lambda: ea_series(q, k, v, expansion=made, causal=causal))


def training(who: str, shape: Shape, *, order: int, causal: bool = True) -> Work:
    """Forward and backward of `ours` or our `quadrature`, of the `paper`'s code, or of `sdpa`."""
    ops: dict[str, Callable[..., Any]] = {"paper": reference.ea_series, "sdpa": sdpa}
    if who in ops:
        op = partial(ops[who], order=order)
    else:
        op = partial(ea_series, expansion=expansion(order + 1, who))
    step = partial(value_and_gradients, op, causal=causal)
    step(*inputs((1, 8, shape[2]), 4))  # thread pools and libraries are not part of the cost
    return partial(step, *inputs(shape, 4))


def value_and_gradients(
    op: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, gy: Tensor, **options: Any
) -> tuple[Tensor, ...]:
    """y, dq, dk, dv of y = op(q, k, v) when gy is the gradient of y."""
    qkv = [x.requires_grad_() for x in (q, k, v)]
    y = op(*qkv, **options)
    return y.detach(), *torch.autograd.grad(y, qkv, gy)


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, order: int, causal: bool) -> Tensor:
    """Softmax attention as PyTorch users run it today: [B, L, D] in heads of 64; no order."""
    head = min(HEAD, q.shape[-1])
    q, k, v = (x.unflatten(-1, (-1, head)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)


def one_token(name: str, batch: int, dim: int, *, order: int, calls: int) -> Work:
    """`calls` inference calls on [batch, 1, dim], by one of the names in CALLS."""
    q, k, v = inputs((batch, 1, dim))
    state = State.zeros(batch, dim, order=order)
    q1, k1, v1 = (x[:, 0] for x in (q, k, v))
    series = partial(ea_series, q, k, v, order=order, causal=True)
    works: dict[str, Work] = {
        "ea_series": series,
        "ea_series with state": partial(series, state=state, return_state=True),
        "ea_series_step": partial(ea_series_step, q1, k1, v1, state),
    }
    call = works[name]

    @torch.inference_mode()
    def repeat() -> None:
        for _ in range(calls):
            call()

    return repeat
