"""Where q and k lie: a series resembles e^-(q-k)^2 only near 0, a quadrature only on its grid.

Exact EA depends on q - k alone, so nothing is lost by moving both; how far they spread is a choice
of scale. Training moves them out of the range in which an expansion is good; this keeps them there.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from eattn._checks import check_bool
from eattn.ops.checks import check_cu_seqlens

Center = Literal["mean", "learned"]
CENTERS = ("mean", "learned")
# Standard deviation of q and k at the start, for inputs of unit variance: EA-6 is then within a
# per cent of exact EA, which it is not at 1.
SPREAD = 0.5
MOMENTUM = 0.05


class QKRange(nn.Module):
    """Map q, k [B, L, D] to b q - c, b k - c, with unit mean square over D first if asked to.

    Parameters
    ----------
    dim : int
        Channels D of q and k.
    qk_norm : bool
        Normalise q and k to unit mean square.
    bandwidth : bool
        Learn b, one for each channel: K = e^(-b^2 (q - k)^2).
    center : {"mean", "learned"} or None
        "mean" takes c from the valid keys of the sequence, all of which must be known. "learned" is
        a running mean of the keys in training (a forward and its backward), fixed afterwards. It
        comes from the data and not from a gradient: exact EA does not depend on it.
    causal : bool
        Whether later keys are unknown, which rules out "mean".
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
        if center == "learned":
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
            if cu_seqlens is None:
                return _mean(k, key_mask)
            check_cu_seqlens(cu_seqlens, k, k)
            return _means(k, key_mask, cu_seqlens)
        if self.training and torch.is_grad_enabled():
            self._watch(k, key_mask)
        return self.running.to(k.dtype).clone()  # as it is now: it moves before the backward ends

    def _watch(self, k: Tensor, key_mask: Tensor | None) -> None:
        """Update the running mean when the gradient of k arrives.

        Not at once: gradient checkpointing runs a forward twice, and the second must use the center
        of the first.
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
        learned = self.bandwidth is not None
        return f"qk_norm={self.qk_norm}, bandwidth={learned}, center={self.center!r}"


def _check_center(center: Center | None, causal: bool) -> Center | None:
    if center is not None and center not in CENTERS:
        raise ValueError(f"center must be None or one of {', '.join(CENTERS)}, got {center!r}")
    if center == "mean" and causal:
        raise ValueError(
            "center='mean' needs causal=False, as later keys would move it: use center='learned'"
        )
    return center


def _mean(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the mean of the valid keys, [B, 1, D]; 0 where there is none."""
    if key_mask is None:
        return k.mean(1, keepdim=True) if k.shape[1] else k.new_zeros(k.shape[0], 1, k.shape[2])
    valid = key_mask.unsqueeze(-1)
    count = valid.sum(1, keepdim=True).clamp(min=1)
    return torch.where(valid, k, 0.0).sum(1, keepdim=True) / count


def _means(k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """Return the mean key of each token's own sequence, [1, L, D]."""
    lengths = cu_seqlens.diff()
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=k.device), lengths)
    valid = k.new_ones(k.shape[1]) if key_mask is None else key_mask[0].to(k.dtype)
    rows = k[0] if key_mask is None else torch.where(key_mask[0].unsqueeze(-1), k[0], 0.0)
    totals = k.new_zeros(len(lengths), k.shape[2]).index_add(0, sequence, rows)
    counts = k.new_zeros(len(lengths)).index_add(0, sequence, valid).clamp(min=1)
    return (totals / counts.unsqueeze(1))[sequence].unsqueeze(0)
