"""Move sums from shift to shift while `ops.eager` walks over chunks of tokens, [T, B, C, D].

The sums at token t are relative to its shift. `Shifts` has no decay: the shift is the smallest |k|
so far. `Decays` has one: m_t^2 = min(m_(t-1)^2 - g_t, k_t^2). There the shift grows as fast as the
sums decay, and they keep their numbers until a key with a smaller k^2 comes.
"""

from typing import Protocol

import torch
from torch import Tensor

from eattn.ops.features import LOG2E, Chain, Features, decay, empty_shift


class Walk(Protocol):
    """Factors of the sums along a walk, forward or in reverse order, [B, C, D] each."""

    def step(self, t: int) -> Tensor:
        """Return the factor from the token before t, in the order of the walk, to t."""

    def since(self, t: int) -> Tensor:
        """Return the factor from the sums before the chunk to token t."""

    def whole(self) -> Tensor:
        """Return the factor over a whole chunk."""


class Moves(Protocol):
    """Shifts of all tokens of a call."""

    last: Tensor  # shift of the final state, [B, 1, D]

    def key(self, t: int) -> Chain:
        """Return the chain of the keys of step t, relative to their shift."""

    def walk(self, steps: range) -> Walk:
        """Return the factors of a walk in the order of `steps`."""

    def to_first(self) -> Tensor:
        """Return the factor between the initial shift and that of the first token, [B, 1, D]."""

    def to_last(self) -> Tensor | float:
        """Return the factor from the sums after the last token to `last`, [B, 1, D]."""


class Shifts:
    """Moves without decay; if not causal, all keys have the final shift."""

    def __init__(
        self, kernel: Features, k: Tensor, masked: Tensor | None, shift: Tensor, *, causal: bool
    ) -> None:
        self.kernel, self.k, self.start, self.causal = kernel, k, shift, causal
        T, *shape = k.shape
        m = shift.new_empty(T if causal else 1, *shape)
        old = shift
        for t in range(T):
            magnitude = kernel.magnitude(k[t].to(shift.dtype))
            if masked is not None:
                magnitude.masked_fill_(masked[t], empty_shift(shift.dtype))
            old = torch.minimum(magnitude, old, out=m[t if causal else 0])
        ends = torch.cat([shift, m[-1]], 1).cummin(1).values
        self.m = torch.minimum(m, ends[:, :-1], out=m) if causal else ends[None, :, -1:]
        self.last = self.m[-1][:, -1:]

    def key(self, t: int) -> Chain:
        return self.kernel.key(self.k[t].to(self.m.dtype), self.m[t if self.causal else 0])

    def walk(self, steps: range) -> Walk:
        return _ShiftWalk(self.m, steps, self.start if steps.step > 0 else self.last)

    def to_first(self) -> Tensor:
        return decay(self.m[0][:, :1], self.start)

    def to_last(self) -> float:
        return 1.0


class _ShiftWalk:
    def __init__(self, m: Tensor, steps: range, start: Tensor) -> None:
        self.m, self.steps, self.ends = m, steps, m[steps[-1]]
        inner = self.ends[:, :-1] if steps.step > 0 else self.ends[:, 1:]
        self.before = torch.cat([start, inner] if steps.step > 0 else [inner, start], 1)

    def step(self, t: int) -> Tensor:
        old = self.before if t == self.steps[0] else self.m[t - self.steps.step]
        return decay(old, self.m[t])

    def since(self, t: int) -> Tensor:
        return decay(self.before, self.m[t])

    def whole(self) -> Tensor:
        return decay(self.before, self.ends)


class Decays:
    """Moves with a log decay [T, B, C, D], which is 0 for masked tokens.

    A shift is a pair: m^2 + c, where m is the |k| of a key and c is what it lost since. `rise` is
    m_(t-1)^2 - g_t - k_t^2. It is positive if key t replaces the pair: earlier sums then lose
    e^(-rise). If it is negative, e^(rise) is the weight of the key.
    """

    def __init__(
        self,
        kernel: Features,
        k: Tensor,
        masked: Tensor | None,
        shift: Tensor,
        log_decay: Tensor,
    ) -> None:
        self.kernel, self.k, self.shift = kernel, k, shift
        self.masked, self.lost = masked, -log_decay
        empty = torch.full_like(self.lost[0], empty_shift(shift.dtype))
        ends = self._shifts(empty, torch.zeros_like(empty))[:2]
        before = self._before_chunks(*ends)
        *end, self.rise = self._shifts(*before)
        m, c = (x[:, -1:] for x in end)
        self.last = torch.where(c > 0, (m.square() + c).sqrt(), m)
        self.rest = torch.exp((self.last - m) * (self.last + m) - c)

    def _shifts(self, m: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Walk from the shift m^2 + c before each chunk; return that after it, and `rise`."""
        rise = torch.empty_like(self.lost)
        for t, lost in enumerate(self.lost):
            magnitude = self.kernel.magnitude(self.k[t].to(m.dtype))
            torch.add((m - magnitude) * (m + magnitude), c + lost, out=rise[t])
            if self.masked is not None:
                rise[t].masked_fill_(self.masked[t], 0)
            replaced = rise[t] > 0
            m = torch.where(replaced, magnitude, m)
            c = torch.where(replaced, 0, c + lost)
        return m, c, rise

    def _before_chunks(self, ends_m: Tensor, ends_c: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift before each chunk from those of chunks that start without keys."""
        m, c = self.shift[:, 0], torch.zeros_like(self.shift[:, 0])
        before = []
        for end_m, end_c, lost in zip(
            ends_m.unbind(1), ends_c.unbind(1), self.lost.sum(0).unbind(1), strict=True
        ):
            before.append((m, c))
            replaced = (m - end_m) * (m + end_m) + (c - end_c) + lost > 0
            m, c = torch.where(replaced, end_m, m), torch.where(replaced, end_c, c + lost)
        m_before, c_before = (torch.stack(x, 1) for x in zip(*before, strict=True))
        return m_before, c_before

    def key(self, t: int) -> Chain:
        k = self.k[t].to(self.rise.dtype)
        point, first = self.kernel.key(k, self.kernel.magnitude(k))
        return point, first * _exp(self.rise[t].clamp(max=0))

    def walk(self, steps: range) -> Walk:
        loss = self.rise.clamp(min=0)
        if steps.step > 0:
            return _LossWalk(loss, loss.cumsum(0))
        # In reverse, the factor at t is that between t and t + 1, which may be in the next chunk.
        first = torch.cat([loss[:1, :, 1:], torch.zeros_like(loss[:1, :, :1])], 2)
        loss = torch.cat([loss[1:], first])
        return _LossWalk(loss, loss.flip(0).cumsum(0).flip(0))

    def to_first(self) -> Tensor:
        return _exp(-self.rise[0][:, :1].clamp(min=0))

    def to_last(self) -> Tensor:
        return self.rest


class _LossWalk:
    def __init__(self, loss: Tensor, total: Tensor) -> None:
        self.loss, self.total = loss, total

    def step(self, t: int) -> Tensor:
        return _exp(-self.loss[t])

    def since(self, t: int) -> Tensor:
        return _exp(-self.total[t])

    def whole(self) -> Tensor:
        return _exp(-torch.maximum(self.total[0], self.total[-1]))


def _exp(x: Tensor) -> Tensor:
    return (x * LOG2E).exp2_()
