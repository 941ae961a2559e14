"""Check the inputs of the models and convert them to masks, offsets and positions."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from eattn.distributed import current_shard
from eattn.hf.cache import EACache
from eattn.nn.padding import packed_positions
from eattn.ops.checks import is_readable

COLLATOR = "cu_seq_lens_q"  # name of the offsets in transformers' DataCollatorWithFlattening


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Check token ids [B, L]; their values are checked only on the CPU, to avoid a sync."""
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must be [B, L], got shape {tuple(input_ids.shape)}")
    if not input_ids.shape[1] and current_shard() is None:
        raise ValueError("input_ids must have at least one token per row, got an empty prompt")
    if not is_readable(input_ids):
        return
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"input_ids must be from 0 to {vocab_size - 1}, as vocab_size = {vocab_size},"
            f" got {low if low < 0 else high}: use the tokenizer of this model"
        )


def key_mask_from(attention_mask: Tensor | None, x: Tensor, seen: int) -> Tensor | None:
    """Return the mask of x [B, L, D] as bool [B, L], or None if all tokens are known to be valid.

    `attention_mask` covers x, or x and the `seen` tokens in the cache, as in `generate`.
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
    return None if is_readable(mask) and bool(mask.all()) else mask


def check_cache(cache: Any, layers: int, rows: int | None = None) -> EACache:
    """Return `cache` after checking that it fits the model and, with `rows`, the batch."""
    if not isinstance(cache, EACache):
        raise TypeError(
            f"past_key_values must be an eattn.hf.EACache, got {type(cache).__name__};"
            " omit it to let the model create one"
        )
    if len(cache.layers) != layers:
        raise ValueError(
            f"past_key_values must have {layers} layers like the model, got {len(cache.layers)}"
        )
    if rows is not None and cache.lengths is not None and cache.lengths.shape[0] != rows:
        raise ValueError(
            f"past_key_values must have {rows} rows like the inputs, got {len(cache.lengths)}:"
            " use batch_repeat_interleave or batch_select_indices"
        )
    return cache


def offsets_from(cu_seqlens: Tensor | None, position_ids: Tensor | None, B: int) -> Tensor | None:
    """Return `cu_seqlens`, or the offsets of packed sequences that `position_ids` imply.

    A sequence begins wherever a position is not the previous one plus 1. The offsets apply to all
    rows concatenated. None means that every row is a single sequence.
    """
    if cu_seqlens is not None:
        if B != 1:
            raise ValueError(f"cu_seqlens needs all sequences packed in one row, got {B} rows")
        return cu_seqlens
    if position_ids is None or position_ids.shape[1] < 2:
        return None
    if not torch.compiler.is_compiling() and (position_ids.is_meta or is_fake(position_ids)):
        return None  # packing changes values, not shapes
    starts = position_ids.diff(dim=1) != 1
    if not bool(starts.any()):
        return None
    first = starts.new_ones(len(starts), 1)
    starts = torch.cat([first, starts], 1).expand(B, -1)
    at = starts.flatten().nonzero().flatten()
    return torch.cat([at, at.new_tensor([starts.numel()])]).to(torch.int32)


def positions_from(
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    cache: EACache | None,
    x: Tensor,
    before: int = 0,
) -> Tensor:
    """Return the position [B, L] of each token among the valid tokens of its sequence.

    The first packed sequence, or every row if nothing is packed, has `before` tokens on earlier
    ranks.
    """
    L = x.shape[1]
    if cu_seqlens is not None:
        return packed_positions(L, cu_seqlens, before).unsqueeze(0)
    if key_mask is None:
        position = before + torch.arange(L, device=x.device).unsqueeze(0)
    else:
        position = (key_mask.cumsum(1) - 1).clamp(min=0)
    if cache is None or cache.lengths is None:
        return position
    return position + cache.lengths.unsqueeze(1)
