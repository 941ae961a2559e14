"""Recurrent mixers: PyTorch's GRU, and a gated linear recurrence that trains in parallel.

Non-causal recurrences run in both directions, each with half of the hidden vector. Masked tokens
leave the hidden vector unchanged.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn.nn.base import Mixer
from eattn.nn.decoding_state import Hidden, check_held
from eattn.ops import baselines


class Recurrence(Mixer):
    """Base class of recurrences, whose state is a hidden vector."""

    def __init__(self, dim: int, *, causal: bool) -> None:
        super().__init__(dim, causal=causal)
        self.width = dim if causal else (dim + 1) // 2  # channels per direction
        self.hidden = self.width if causal else 2 * self.width

    def _before(self, x: Tensor, state: Any) -> Tensor:
        """Return the hidden vector [B, hidden] of `state`, or the initial 0."""
        if state is None:
            return x.new_zeros(x.shape[0], self.hidden)
        return check_held(state, Hidden, "h", (x.shape[0], self.hidden), "[B, D]")


class GRU(Recurrence):
    """PyTorch's GRU with an output projection, in O(LDD) and sequential over the tokens."""

    def __init__(self, dim: int, *, causal: bool = False) -> None:
        super().__init__(dim, causal=causal)
        self.gru = nn.GRU(dim, self.width, batch_first=True, bidirectional=not causal)
        self.out_proj = nn.Linear(self.hidden, dim)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        before = self._before(x, state)
        h = before.unflatten(1, (-1, self.width)).transpose(0, 1).contiguous()
        if not x.numel():  # nn.GRU raises on empty input
            y = x.new_zeros(*x.shape[:2], self.hidden)
        elif key_mask is None:
            y, h = self.gru(x, h)
        else:
            y, h = self._skipping(x, key_mask, h)
        return self.out_proj(y), Hidden(h.transpose(0, 1).flatten(1))

    def _skipping(self, x: Tensor, key_mask: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Move valid tokens to the front, run the GRU on packed rows, and move outputs back."""
        order = (~key_mask).long().argsort(dim=1, stable=True).unsqueeze(-1)
        lengths = key_mask.sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            x.take_along_dim(order, 1),
            lengths.clamp(min=1).cpu(),  # every row of a packed sequence needs a token
            batch_first=True,
            enforce_sorted=False,
        )
        y, after = self.gru(packed, h)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        y = torch.zeros_like(y).scatter(1, order.expand_as(y), y)
        return torch.where(key_mask.unsqueeze(-1), y, 0.0), torch.where(
            (lengths > 0)[:, None], after, h
        )


class LinearRNN(Recurrence):
    """h_t = a_t h_(t-1) + (1 - a_t) u_t, y = out(h silu(g)), in O(LDD) and parallel over time.

    The gate a (after a sigmoid), u and g are projections of x that do not depend on h, so the
    recurrence is linear, with one gate per channel.
    """

    def __init__(self, dim: int, *, causal: bool = False) -> None:
        super().__init__(dim, causal=causal)
        self.in_proj = nn.Linear(dim, 3 * self.hidden)
        self.out_proj = nn.Linear(self.hidden, dim)
        with torch.no_grad():  # initial memory of the channels: from 2 to 512 tokens
            memory = torch.logspace(1, 9, self.width, base=2.0)
            bias = (memory - 1).log().repeat(self.hidden // self.width)
            self.in_proj.bias.zero_()[: self.hidden] = bias

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        a, u, g = self.in_proj(x).chunk(3, -1)
        wide = torch.promote_types(a.dtype, torch.float32)
        a, b = a.to(wide).sigmoid(), (-a.to(wide)).sigmoid() * u
        if key_mask is not None:
            valid = key_mask.unsqueeze(-1)
            a, b = torch.where(valid, a, 1.0), torch.where(valid, b, 0.0)
        before = self._before(x, state).to(wide)
        if self.causal:
            h = baselines.linear_rnn(a, b, before)
        else:
            (a1, a2), (b1, b2), (h1, h2) = (z.chunk(2, -1) for z in (a, b, before))
            forward = baselines.linear_rnn(a1, b1, h1)
            backward = baselines.linear_rnn(a2.flip(1), b2.flip(1), h2).flip(1)
            h = torch.cat([forward, backward], -1)
        after = Hidden(h[:, -1].clone()) if h.shape[1] else Hidden(before)
        return self.out_proj(h.to(g.dtype) * F.silu(g)), after
