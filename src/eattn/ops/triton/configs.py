"""How the kernels split their work: all configurations of the autotuner, and the chunks.

Only CHUNK changes bits, and it depends on shapes alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Config:
    warps: int  # a program is so many; a lane of a warp is a channel
    tile: int  # tokens asked of memory at once


# By the most terms they are for. The more terms, the fewer tokens fit beside them, and the more
# there is to compute while one is waited for.
CHOICES = {
    9: (Config(1, 4), Config(4, 4)),
    13: (Config(1, 4), Config(4, 2)),
    33: (Config(1, 1), Config(4, 1)),
}


def choices(terms: int) -> tuple[Config, ...]:
    """All that the autotuner may choose from."""
    return next(some for most, some in CHOICES.items() if terms <= most)


MERGE = Config(1, 8)  # of the walk over the chunks: short, and not worth tuning
STEP = Config(1, 1)  # of one token: nothing to tune, and nothing may be timed while decoding

SHORTEST, LONGEST = 64, 256  # tokens in a chunk
WARPS = 1024  # that fill a GPU: 8 for each of 128 multiprocessors
LANES = 32  # channels counted as a warp
FUSED_TERMS = 17  # up to which the sums of a chunk and those before it fit into registers


def chunk_length(rows: int, L: int, D: int) -> int:
    """The longest chunks that still give every multiprocessor enough to do."""
    warps = rows * -(-D // LANES)
    chunk = LONGEST
    while chunk > SHORTEST and warps * L < WARPS * chunk:
        chunk //= 2
    return chunk


def is_fused(rows: int, Lq: int, L: int, D: int, terms: int) -> bool:
    """Whether one pass is enough: sequences and channels fill the GPU, or there is one chunk."""
    short = Lq <= SHORTEST and L <= SHORTEST
    return terms <= FUSED_TERMS and (short or rows * -(-D // LANES) >= WARPS)


def slots(x: Tensor, cu_seqlens: Tensor | None, chunk: int) -> int:
    """How many chunks there are at most: packed sequences leave some out."""
    B, L, _ = x.shape
    if cu_seqlens is None:
        return B * -(-L // chunk)
    return L // chunk + cu_seqlens.shape[0] - 1


def saved_shape(q: Tensor, cu_seqlens: Tensor | None, terms: int) -> tuple[int, ...]:
    """Return the shape [slots, 2 N + 1, D] of the prefix sums that a causal forward saves."""
    B, L, D = q.shape
    return slots(q, cu_seqlens, chunk_length(B, L, D)), 2 * terms + 1, D


def row_of_slot(cu_seqlens: Tensor, chunk: int, count: int) -> Tensor:
    """Which sequence each chunk belongs to, without asking the device how long they are.

    Offsets on a GPU are not checked. Even with wrong ones a chunk gets a sequence that begins no
    later, or the first, so that it never lies before the first token.
    """
    starts = cu_seqlens[:-1].long().clamp(min=0) // chunk
    starts += torch.arange(len(starts), device=starts.device)
    each = torch.arange(count, device=starts.device)
    rows = torch.searchsorted(starts.cummax(0).values, each, right=True).sub_(1)
    return rows.clamp_(min=0).int()
