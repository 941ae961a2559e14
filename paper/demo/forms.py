"""One operator, many forms: what they give is the same."""

from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from eattn.ops import State, ea, ea_series, ea_series_step
from paper.bench import show
from paper.bench.candidates import inputs


def table() -> Table:
    """Every way to compute causal EA-6 beside the parallel one; then the limit of high order."""
    q, k, v = inputs((2, 512, 64))
    parallel = ea_series(q, k, v, order=6, causal=True)
    small_q, small_k = q / 4, k / 4  # where a series of order 16 has converged
    pairs: dict[str, tuple[Any, Any]] = {
        "in chunks, carrying the state": (chunked(q, k, v), parallel),
        "token by token, a recurrence": (stepped(q, k, v), parallel),
        "order 16 against exact attention": (
            ea_series(small_q, small_k, v, order=16, causal=True),
            ea(small_q, small_k, v, causal=True),
        ),
    }
    out = show.table("one operator, many forms (EA-6, causal, 2×512×64)", "largest difference")
    for name, (found, expected) in pairs.items():
        out.add_row(name, f"{float((found - expected).abs().max()):.1e}")
    return out


def chunked(q: Tensor, k: Tensor, v: Tensor, *, order: int = 6, size: int = 100) -> Tensor:
    """The causal series in pieces: each continues from the state of the one before."""
    state, pieces = None, []
    for piece in zip(q.split(size, 1), k.split(size, 1), v.split(size, 1), strict=True):
        y, state = ea_series(*piece, order=order, causal=True, state=state, return_state=True)
        pieces.append(y)
    return torch.cat(pieces, dim=1)


def stepped(q: Tensor, k: Tensor, v: Tensor, *, order: int = 6) -> Tensor:
    """The causal series as a recurrence, Eq. 12 to Eq. 16, one token at a time."""
    state = State.zeros(q.shape[0], q.shape[2], order=order)
    tokens = []
    for q_t, k_t, v_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), strict=True):
        y, state = ea_series_step(q_t, k_t, v_t, state)
        tokens.append(y)
    return torch.stack(tokens, dim=1)
