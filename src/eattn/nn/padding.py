"""Operations on padded and packed batches, shared by mixers and models.

Axes: B batch, L tokens, D channels. `key_mask` [B, L] is True for valid tokens.
"""

import torch
from torch import Tensor


def zero_masked(x: Tensor, key_mask: Tensor) -> Tensor:
    """Set masked tokens of x [B, L, D] to 0, so that a NaN there cannot reach a gradient."""
    return x.masked_fill(~key_mask.unsqueeze(-1), 0.0)


def mean_valid(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the mean over the valid tokens of x [B, L, D] as [B, D]; 0 in rows without any."""
    if key_mask is None:
        return x.mean(1)
    return zero_masked(x, key_mask).sum(1) / key_mask.sum(1, keepdim=True).clamp(min=1)


def max_valid(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the maximum over the valid tokens of x [B, L, D] as [B, D]; 0 in rows without any."""
    if key_mask is None:
        return x.amax(1)
    masked = ~key_mask.unsqueeze(-1)
    return x.masked_fill(masked, -torch.inf).amax(1).masked_fill(masked.all(1), 0.0)


def last_valid(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the last valid token of each row of x [B, L, D] as [B, D]; 0 in rows without any."""
    if key_mask is None:
        return x[:, -1]
    position = torch.arange(key_mask.shape[1], device=key_mask.device)
    last = torch.where(key_mask, position, 0).amax(1).view(-1, 1, 1)
    # torch.export would fix the sizes that take_along_dim sees, but not those of gather.
    x = x.gather(1, last.expand(-1, 1, x.shape[2])).squeeze(1)
    return torch.where(key_mask.any(1, keepdim=True), x, 0.0)


def front_positions(key_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each token goes if valid tokens move to the front of their row.

    Returns
    -------
    position : int Tensor, shape (B, L)
        New position of each token; masked tokens follow the valid ones.
    count : int Tensor, shape (B, 1)
        Number of valid tokens.
    """
    valid, masked = key_mask.cumsum(1), (~key_mask).cumsum(1)
    count = key_mask.sum(1, keepdim=True)
    return torch.where(key_mask, valid, count + masked) - 1, count


def packed_positions(L: int, cu_seqlens: Tensor, before: int = 0) -> Tensor:
    """Return the position of each packed token in its own sequence, shape (L,).

    `before` tokens of the first sequence precede this batch, on earlier ranks.
    """
    position = torch.arange(L, device=cu_seqlens.device)
    number = torch.searchsorted(cu_seqlens, position, right=True) - 1
    return position - (cu_seqlens[number] - before * (number == 0))
