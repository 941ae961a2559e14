"""Configurations of the autotuner, and the split of sequences into chunks.

Results depend on the chunk length, which is a function of the shapes, but on no configuration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion


@dataclass(frozen=True)
class Config:
    warps: int  # per program
    tile: int  # tokens loaded at once
    channels: int | None = None  # per program; None for one per lane


# Keys are the largest number of terms. More terms leave fewer registers for tokens, but also hide
# more of the latency of a load.
CHOICES = {
    9: (Config(1, 4), Config(4, 4)),
    13: (Config(1, 4), Config(4, 2)),
    33: (Config(1, 1), Config(4, 1)),
}
# With decay, the factor of every token takes more registers.
DECAY_CHOICES = {
    9: (Config(1, 2), Config(4, 2)),
    33: (Config(1, 1), Config(4, 1)),
}
# Wide grids have one configuration, because it determines the order of a sum over nodes. Eight
# channels of 65 nodes, which are padded to 128, do not spill.
WIDE = Config(4, 1, channels=8)
MAX_TERMS = 65  # larger grids run on another backend


def choices(terms: int, wide: bool, decays: bool) -> tuple[Config, ...]:
    """Return the configurations that the autotuner chooses from."""
    table = DECAY_CHOICES if decays else CHOICES
    return (WIDE,) if wide else next(some for most, some in table.items() if terms <= most)


MERGE = Config(1, 8)  # for the walk over chunks, which is too short to be worth tuning
STEP = Config(1, 1)  # for one token; decoding must not be interrupted by tuning

SHORTEST, LONGEST = 64, 256  # tokens in a chunk
WARPS = 1024  # warps that fill a GPU: 8 for each of 128 multiprocessors
LANES = 32  # channels per warp
FUSED_TERMS = 17  # with more terms, the sums of a chunk and its prefix do not fit in registers


def chunk_length(rows: int, L: int, D: int) -> int:
    """Return the largest chunk length that still gives every multiprocessor enough work."""
    warps = rows * -(-D // LANES)
    chunk = LONGEST
    while chunk > SHORTEST and warps * L < WARPS * chunk:
        chunk //= 2
    return chunk


def is_fused(rows: int, Lq: int, L: int, D: int, expansion: Expansion) -> bool:
    """Return whether one pass is enough: channels fill the GPU, or there is only one chunk.

    Wide grids are always split into chunks.
    """
    few = expansion.terms <= FUSED_TERMS and not expansion.wide
    short = Lq <= SHORTEST and L <= SHORTEST
    return few and (short or rows * -(-D // LANES) >= WARPS)


def slots(x: Tensor, cu_seqlens: Tensor | None, chunk: int) -> int:
    """Return the number of chunks; an upper bound for packed sequences."""
    B, L, _ = x.shape
    if cu_seqlens is None:
        return B * -(-L // chunk)
    return L // chunk + cu_seqlens.shape[0] - 1


def saved_shape(q: Tensor, cu_seqlens: Tensor | None, expansion: Expansion) -> tuple[int, ...]:
    """Return the shape [slots, 2 N + 1, D] of the prefix sums that a causal forward saves."""
    B, L, D = q.shape
    return slots(q, cu_seqlens, chunk_length(B, L, D)), 2 * expansion.terms + 1, D


def row_of_slot(cu_seqlens: Tensor, chunk: int, count: int) -> Tensor:
    """Return the sequence that each chunk belongs to, without a device sync.

    Offsets on a GPU are not checked. If they are wrong, a chunk is still assigned to a sequence
    that does not begin after it, or to the first one, so that no address lies before the tensor.
    """
    starts = cu_seqlens[:-1].long().clamp(min=0) // chunk
    starts += torch.arange(len(starts), device=starts.device)
    each = torch.arange(count, device=starts.device)
    rows = torch.searchsorted(starts.cummax(0).values, each, right=True).sub_(1)
    return rows.clamp_(min=0).int()
