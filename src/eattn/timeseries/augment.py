"""Random changes of training series that keep their class: warped, sliced, scaled and noisy."""

import math

import torch
from torch import Tensor

from eattn.nn.padding import zero_masked

SHARE = 0.8  # of the series that are warped and sliced
WARP = 0.1  # largest share of a series that a slice omits, and strength of the warp
SCALE = 0.1  # standard deviation of the factor of a channel
JITTER = 0.05  # largest standard deviation of the noise
WAVES = 3  # most half waves of a warp


def augment(x: Tensor, key_mask: Tensor | None, values: int) -> Tensor:
    """Change series at random with torch's global generator.

    Parameters
    ----------
    x : Tensor, shape (B, L, C)
        Standardised series.
    key_mask : bool Tensor, shape (B, L), optional
        True for valid samples, which come first.
    values : int
        Number of channels with values; those after them mark missing values.

    Returns
    -------
    x : Tensor, shape (B, L, C)
        Series of the same length; 0 for masked samples.
    """
    B, L, C = x.shape
    lengths = torch.full((B, 1), L) if key_mask is None else key_mask.sum(1, keepdim=True)
    low, high, share = _positions(lengths - 1, L)
    if values < C:  # values around missing ones must not be mixed with their 0
        low, high = (torch.where(share < 0.5, low, high),) * 2
    low, high = (each.unsqueeze(-1).expand(-1, -1, C) for each in (low, high))
    x = torch.lerp(x.gather(1, low), x.gather(1, high), share.unsqueeze(-1))
    known = x[..., :values]
    if values < C:
        seen = x[..., values:]
        known = known * (1 + SCALE * torch.randn(B, 1, values)) + _noise(known) * seen
        x = torch.cat([known, seen], -1)
    else:
        x = known * (1 + SCALE * torch.randn(B, 1, values)) + _noise(known)
    return x if key_mask is None else zero_masked(x, key_mask)


def _noise(x: Tensor) -> Tensor:
    return JITTER * torch.rand(len(x), 1, 1) * torch.randn_like(x)


def _positions(last: Tensor, L: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw where each sample is read: two neighbours [B, L] and the share of the second one.

    `last` [B, 1] is the position of the last sample of each series.
    """
    B = len(last)
    time = (torch.arange(L) / last.clamp(min=1)).clamp(max=1)
    width = 1 - WARP * torch.rand(B, 1)
    start = (1 - width) * torch.rand(B, 1)
    waves = math.pi * torch.randint(1, WAVES + 1, (B, 1))
    strength = WARP * (2 * torch.rand(B, 1) - 1)
    warped = start + width * (time + strength * torch.sin(waves * time) / waves)
    used = torch.where(torch.rand(B, 1) < SHARE, warped, time).clamp(0, 1) * last.clamp(min=0)
    low = used.floor().long()
    return low, torch.minimum(low + 1, last.clamp(min=0)), used - low
