"""What the models are given: checked, and brought to what `eattn.nn` takes."""

from typing import Any

import torch
from torch import Tensor

from eattn.distributed import current_shard
from eattn.hf.cache import EACache
from eattn.nn.base import tokens_before

COLLATOR = "cu_seq_lens_q"  # what transformers' own collator for packed sequences calls offsets


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Tokens [B, L] of the vocabulary; their values are looked at where that costs no sync."""
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must be [B, L], got shape {tuple(input_ids.shape)}")
    if not input_ids.shape[1] and current_shard() is None:
        raise ValueError("input_ids must have at least one token a row, got none: an empty prompt?")
    if torch.compiler.is_compiling() or input_ids.device.type != "cpu" or not input_ids.numel():
        return
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"input_ids must be from 0 to {vocab_size - 1}, as vocab_size = {vocab_size},"
            f" got {low if low < 0 else high}: is the tokenizer that of this model?"
        )


def key_mask_of(attention_mask: Tensor | None, x: Tensor, seen: int) -> Tensor | None:
    """The columns of x [B, L, D] as a bool mask, None if all are tokens.

    The mask may be that of x or of everything so far, as `generate` has it.
    """
    if attention_mask is None:
        return None
    B, L = x.shape[:2]
    shape = tuple(attention_mask.shape)
    if shape not in ((B, L), (B, seen + L)):
        so_far = f" or [B, {seen + L}] with the tokens in the cache" if seen else ""
        raise ValueError(
            f"attention_mask must be [B, L] = [{B}, {L}]{so_far}, 1 for tokens and 0 for padding,"
            f" got shape {shape}"
        )
    mask = attention_mask[:, attention_mask.shape[1] - L :].to(x.device) != 0
    looking_is_free = not torch.compiler.is_compiling() and mask.device.type == "cpu"
    return None if looking_is_free and bool(mask.all()) else mask


def check_cache(cache: Any, layers: int, rows: int) -> EACache:
    if not isinstance(cache, EACache):
        raise TypeError(
            f"past_key_values must be an eattn.hf.EACache, got {type(cache).__name__};"
            " leave it out and the model makes one"
        )
    if len(cache.layers) != layers:
        raise ValueError(
            f"past_key_values must have a layer for each of {layers}, got {len(cache.layers)}"
        )
    if cache.lengths is not None and cache.lengths.shape[0] != rows:
        raise ValueError(
            f"past_key_values holds {len(cache.lengths)} rows, and these inputs have {rows};"
            " batch_repeat_interleave or batch_select_indices makes them fit"
        )
    return cache


def offsets_of(cu_seqlens: Tensor | None, position_ids: Tensor | None, B: int) -> Tensor | None:
    """Offsets of packed sequences in rows laid end to end, from their positions if not given.

    Wherever a position does not follow the one before, a sequence begins. None: one per row.
    """
    if cu_seqlens is not None:
        if B != 1:
            raise ValueError(f"cu_seqlens needs all sequences in one row, got {B} rows")
        return cu_seqlens
    if position_ids is None or position_ids.shape[1] < 2:
        return None
    starts = position_ids.diff(dim=1) != 1
    if not bool(starts.any()):
        return None
    first = starts.new_ones(len(starts), 1)
    starts = torch.cat([first, starts], 1).expand(B, -1)
    at = starts.flatten().nonzero().flatten()
    return torch.cat([at, at.new_tensor([starts.numel()])]).to(torch.int32)


def positions_of(
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    cache: EACache | None,
    x: Tensor,
    begun: int = 0,
) -> Tensor:
    """Where each token stands among the real tokens of its own sequence, [B, L].

    The first sequence, or every row if they are not packed, has `begun` so many tokens before.
    """
    L = x.shape[1]
    if cu_seqlens is not None:
        return tokens_before(L, cu_seqlens, begun).unsqueeze(0)
    if key_mask is None:
        position = begun + torch.arange(L, device=x.device).unsqueeze(0)
    else:
        position = (key_mask.cumsum(1) - 1).clamp(min=0)
    if cache is None or cache.lengths is None:
        return position
    return position + cache.lengths.unsqueeze(1)
