"""Where q and k lie: a series resembles e^-(q-k)^2 only near 0, a quadrature only on its grid.

Exact EA depends on q - k alone, so nothing is lost by moving both; how far they spread is a choice
of scale. Training moves them out of the range in which an expansion is good; this keeps them there.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from eattn.nn.base import check_bool

Center = Literal["mean", "learnt"]
CENTERS = ("mean", "learnt")
# Standard deviation of q and k at the start, for inputs of unit variance: EA-6 is then within a
# per cent of exact EA, which it is not at 1.
SPREAD = 0.5
MOMENTUM = 0.05


class Placement(nn.Module):
    """q, k [B, L, D] -> b q - c, b k - c, where both first get unit mean square over D if asked to.

    `bandwidth` learns b, one for each channel: K = e^(-b^2 (q - k)^2). `center` says what c is:
    "mean" is that of the real keys of the sequence, for which all keys must be known; "learnt" is a
    running mean of the keys in training (a forward and its backward), which stays as it is
    afterwards. It comes from the data and not from a gradient: exact EA does not depend on it.
    """

    running: Tensor
    seen: Tensor

    def __init__(
        self, dim: int, *, qk_norm: bool, bandwidth: bool, center: Center | None, causal: bool
    ) -> None:
        super().__init__()
        self.qk_norm = check_bool("qk_norm", qk_norm)
        self.scale = SPREAD if qk_norm else 1.0
        check_bool("bandwidth", bandwidth)
        self.bandwidth = nn.Parameter(torch.full((dim,), self.scale)) if bandwidth else None
        self.center = _check_center(center, causal)
        if center == "learnt":
            self.register_buffer("running", torch.zeros(dim))
            self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def forward(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.qk_norm:
            q, k = (nn.functional.rms_norm(x, x.shape[-1:]) for x in (q, k))
        b = self.scale if self.bandwidth is None else self.bandwidth
        q, k = q * b, k * b
        if self.center is None:
            return q, k
        c = self._center(k, key_mask, cu_seqlens)
        return q - c, k - c

    def _center(self, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
        if self.center == "mean":
            return _mean(k, key_mask) if cu_seqlens is None else _means(k, key_mask, cu_seqlens)
        if self.training and torch.is_grad_enabled():
            self._watch(k, key_mask)
        return self.running.to(k.dtype).clone()  # as it is now: it moves before the backward ends

    def _watch(self, k: Tensor, key_mask: Tensor | None) -> None:
        """Learn from k when its gradient comes.

        Not at once: gradient checkpointing runs a forward twice, and the second must find the
        centre of the first.
        """
        keys = k.detach()
        rows = keys.flatten(0, -2) if key_mask is None else keys[key_mask]
        if not len(rows):
            return
        mean = rows.mean(0).to(self.running.dtype)
        if k.requires_grad:
            k.register_hook(lambda _: self._learn(mean))
        else:
            self._learn(mean)

    @torch.no_grad()
    def _learn(self, mean: Tensor) -> None:
        share = torch.where(self.seen, MOMENTUM, 1.0)  # the first mean as it is
        self.running += share * (mean - self.running)
        self.seen.fill_(True)

    def extra_repr(self) -> str:
        learnt = self.bandwidth is not None
        return f"qk_norm={self.qk_norm}, bandwidth={learnt}, center={self.center!r}"


def _check_center(center: Center | None, causal: bool) -> Center | None:
    if center is not None and center not in CENTERS:
        raise ValueError(f"center must be None or one of {', '.join(CENTERS)}, got {center!r}")
    if center == "mean" and causal:
        raise ValueError(
            "center='mean' needs causal=False, as later keys would move it: center='learnt' will do"
        )
    return center


def _mean(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Of the real keys, [B, 1, D]; 0 where there is none."""
    if key_mask is None:
        return k.mean(1, keepdim=True) if k.shape[1] else k.new_zeros(k.shape[0], 1, k.shape[2])
    real = key_mask.unsqueeze(-1)
    count = real.sum(1, keepdim=True).clamp(min=1)
    return torch.where(real, k, 0.0).sum(1, keepdim=True) / count


def _means(k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """The mean of each token's own sequence, [1, L, D]."""
    lengths = cu_seqlens.diff()
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=k.device), lengths)
    real = k.new_ones(k.shape[1]) if key_mask is None else key_mask[0].to(k.dtype)
    rows = k[0] if key_mask is None else torch.where(key_mask[0].unsqueeze(-1), k[0], 0.0)
    totals = k.new_zeros(len(lengths), k.shape[2]).index_add(0, sequence, rows)
    counts = k.new_zeros(len(lengths)).index_add(0, sequence, real).clamp(min=1)
    return (totals / counts.unsqueeze(1))[sequence].unsqueeze(0)
