"""Layout of tokens and sums in the PyTorch backends, and packed sequences.

L tokens are split into C chunks of T tokens, [T, B, C, D]. Sums are [N, 2, B, C, D]: for each term
the pair (s_n, z_n) of Eq. 12 and Eq. 13.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from eattn.ops.expansion import Expansion
from eattn.ops.features import empty_shift
from eattn.ops.inputs import Gradients, Inputs, Outputs, Sums


def initial_sums(inputs: Inputs, terms: int) -> tuple[Tensor, Tensor]:
    """Return the initial state as sums [N, 2, B, 1, D] and shift [B, 1, D], in the sums' dtype."""
    k, s, z, shift, dtype = inputs.k, inputs.s, inputs.z, inputs.shift, inputs.sum_dtype
    B, _, D = k.shape
    if s is None or z is None or shift is None:
        sums = k.new_zeros(terms, 2, B, 1, D, dtype=dtype)
        return sums, k.new_full((B, 1, D), empty_shift(dtype), dtype=dtype)
    sums = torch.stack([s, z]).to(dtype).permute(3, 0, 1, 2).unsqueeze(3)
    return sums, shift.to(dtype).unsqueeze(1).clamp(max=empty_shift(dtype))


def as_state(sums: Tensor, last: Tensor, *, wide: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Convert sums [N, 2, B, 1, D] to s and z, in the memory order of `empty_sums`, and shift."""
    s, z = (x.squeeze(2).transpose(0, 1) for x in sums.unbind(1))  # [B, N, D]
    shift = last.squeeze(1)
    shift = shift.masked_fill(shift >= empty_shift(shift.dtype), torch.inf)
    dense = torch.contiguous_format
    if wide:
        return s.mT.clone(memory_format=dense), z.mT.clone(memory_format=dense), shift
    return s.clone(memory_format=dense).mT, z.clone(memory_format=dense).mT, shift


def output(like: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate [B, C * T, D] for tokens [T, B, C, D]; return it and a view of it as chunks."""
    T, B, C, D = tokens.shape
    y = like.new_empty(B, C * T, D)
    return y, chunks(y, T)


def chunks(x: Tensor, T: int) -> Tensor:
    """Lay out [B, L, D] as [T, B, C, D]: a view if T divides L, else a copy padded with zeros."""
    B, L, D = x.shape
    C = -(-L // T)
    x = pad(x, (0, 0, 0, C * T - L)) if L % T else x
    return x.reshape(B, C, T, D).permute(2, 0, 1, 3)


def steps(L: int, at_least: int = 1) -> int:
    """Return T, a power of two near sqrt(L), or L itself for short sequences (one chunk)."""
    T = max(1 << L.bit_length() // 2, at_least)
    return T if max(16, T) < L else max(L, 1)


def zero_masked(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Replace masked tokens by 0."""
    return x if key_mask is None else x.masked_fill(~key_mask.unsqueeze(-1), 0)


# ---- packed sequences, one at a time -------------------------------------------------------------


def packed_forward(
    forward: Callable[..., Outputs], inputs: Inputs, *, expansion: Expansion, **options: Any
) -> Outputs:
    """Call `forward` on every packed sequence; what it saves is [..., 1, L, D]."""
    parts = [forward(x, expansion=expansion, **options) for _, x in _sequences(inputs)]
    ys, *sums, shift, saved = zip(*parts, strict=True)
    s, z = (_cat_sums(rows, expansion.wide) for rows in sums)
    kept = None if saved[0] is None else torch.cat(saved, -2)
    return torch.cat(ys, 1), s, z, torch.cat(shift), kept


def packed_backward(
    backward: Callable[..., Gradients],
    gy: Tensor,
    gs: Tensor | None,
    gz: Tensor | None,
    inputs: Inputs,
    final: Sums,
    saved: Tensor,
    *,
    expansion: Expansion,
    **options: Any,
) -> Gradients:
    """Call `backward` on every packed sequence."""
    parts = []
    for i, (tokens, x) in enumerate(_sequences(inputs)):
        ends = tuple(end[i : i + 1] for end in final)
        kept = saved[..., tokens, :] if saved.numel() else saved
        given = gy[:, tokens], _row(gs, i), _row(gz, i), x, ends, kept
        parts.append(backward(*given, expansion=expansion, **options))
    *dqkv, ds, dz, dg = zip(*parts, strict=True)
    dq, dk, dv = (torch.cat(x, 1) for x in dqkv)
    decays = None
    if inputs.log_decay is not None:
        decays = torch.cat(dg, 1) if inputs.log_decay.dim() == 3 else torch.stack(dg).sum(0)
    if inputs.s is None:
        return dq, dk, dv, None, None, decays
    return dq, dk, dv, _cat_sums(ds, expansion.wide), _cat_sums(dz, expansion.wide), decays


def _sequences(inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
    """Yield the tokens and the inputs of each packed sequence."""
    offsets = [] if inputs.cu_seqlens is None else inputs.cu_seqlens.tolist()
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        tokens = slice(begin, end)
        q, k, v = (x[:, tokens] for x in inputs[:3])
        mask = None if inputs.key_mask is None else inputs.key_mask[:, tokens]
        s, z, shift = (_row(x, i) for x in (inputs.s, inputs.z, inputs.shift))
        decay = inputs.log_decay
        if decay is not None and decay.dim() == 3:
            decay = decay[:, tokens]
        yield tokens, Inputs(q, k, v, mask, None, s, z, shift, decay)


def _row(x: Tensor | None, i: int) -> Tensor | None:
    return None if x is None else x[i : i + 1]


def _cat_sums(rows: Sequence[Tensor], wide: bool) -> Tensor:
    """Concatenate rows of s or z, in the memory order of `empty_sums`."""
    return torch.cat([*rows]) if wide else torch.cat([x.mT for x in rows]).mT
