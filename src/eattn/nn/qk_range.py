"""Keep q and k in the range where an expansion approximates e^-(q-k)^2 well.

A Taylor expansion is accurate near 0, a quadrature on its grid, and training may move q and k out
of that range. Exact EA depends only on q - k, so subtracting the same center from both loses
nothing.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from eattn._checks import check_bool
from eattn.nn.padding import mean_valid, zero_masked
from eattn.ops.checks import check_cu_seqlens

Center = Literal["mean", "learned"]
CENTERS = ("mean", "learned")
# Initial standard deviation of q and k for inputs of unit variance, at which EA-6 is within 2 % of
# exact EA.
SPREAD = 0.5
MOMENTUM = 0.05  # weight of a new batch in the learned center


class QKRange(nn.Module):
    """Map q and k to b q - c and b k - c, optionally after normalisation.

    Parameters
    ----------
    dim : int
        Number of channels D.
    qk_norm : bool
        Normalise each q and k to a root mean square of 1 over its channels first. The scale b is
        0.5 then, and 1 otherwise.
    bandwidth : bool
        Learn b for each channel, which makes the kernel e^(-b^2 (q - k)^2).
    center : {"mean", "learned"} or None
        "mean" sets c to the mean of the valid keys of the sequence. "learned" sets c to a running
        mean of the keys, updated in training and fixed in evaluation; it gets no gradient, since
        exact EA does not depend on it. None sets c to 0.
    causal : bool
        Whether the layer is causal; "mean" raises then, as it would depend on later keys.
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
        """Return the mapped q [B, L, D] and k [B, Lk, D].

        Parameters
        ----------
        q : Tensor, shape (B, L, D)
            Queries.
        k : Tensor, shape (B, Lk, D)
            Keys.
        key_mask : bool Tensor of shape (B, Lk), or None
            True for valid keys.
        cu_seqlens : int32 Tensor of shape (n + 1,), or None
            Offsets of packed sequences; each has its own mean.

        Returns
        -------
        q, k : Tensor
        """
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
            if cu_seqlens is not None:
                check_cu_seqlens(cu_seqlens, k, k)
                return _packed_means(k, key_mask, cu_seqlens)
            if not k.shape[1]:
                return k.new_zeros(k.shape[0], 1, k.shape[2])
            return mean_valid(k, key_mask).unsqueeze(1)
        if self.training and torch.is_grad_enabled():
            self._update_in_backward(k, key_mask)
        return self.running.to(k.dtype).clone()  # the backward updates `running` in place

    def _update_in_backward(self, k: Tensor, key_mask: Tensor | None) -> None:
        """Update the running mean when the gradient of k is computed.

        Gradient checkpointing runs the forward twice, and both runs must use the same center.
        """
        keys = k.detach()
        rows = keys.flatten(0, -2) if key_mask is None else keys[key_mask]
        if not len(rows):
            return
        mean = rows.mean(0).to(self.running.dtype)
        if k.requires_grad:
            k.register_hook(lambda _: self._update(mean))
        else:
            self._update(mean)

    @torch.no_grad()
    def _update(self, mean: Tensor) -> None:
        weight = torch.where(self.seen, MOMENTUM, 1.0)  # the first mean replaces the initial 0
        self.running += weight * (mean - self.running)
        self.seen.fill_(True)

    def extra_repr(self) -> str:
        learned = self.bandwidth is not None
        return f"qk_norm={self.qk_norm}, bandwidth={learned}, center={self.center!r}"


def _check_center(center: Center | None, causal: bool) -> Center | None:
    if center is not None and center not in CENTERS:
        raise ValueError(f"center must be None or one of {', '.join(CENTERS)}, got {center!r}")
    if center == "mean" and causal:
        raise ValueError(
            "center='mean' needs causal=False, as it depends on later keys: use center='learned'"
        )
    return center


def _packed_means(k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """Return the mean of the valid keys in each token's own sequence, [1, L, D]."""
    lengths = cu_seqlens.diff()
    sequence = torch.arange(len(lengths), device=k.device)
    sequence = sequence.repeat_interleave(lengths, output_size=k.shape[1])
    valid = k.new_ones(k.shape[1]) if key_mask is None else key_mask[0].to(k.dtype)
    rows = k[0] if key_mask is None else zero_masked(k, key_mask)[0]
    totals = k.new_zeros(len(lengths), k.shape[2]).index_add(0, sequence, rows)
    counts = k.new_zeros(len(lengths)).index_add(0, sequence, valid).clamp(min=1)
    return (totals / counts.unsqueeze(1))[sequence].unsqueeze(0)
