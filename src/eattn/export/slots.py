"""A cache of keys and values as a graph can have one: room for `max_len` tokens from the start.

Softmax attention does not know places, so the real tokens of each row come first, and how many they
are is all there is to know of the rest.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eattn.nn.base import front_positions
from eattn.nn.decoding_state import ConvState, KVCache


@dataclass(frozen=True, eq=False)
class Slots(KVCache):
    """Keys and values [B, H, max_len, d] of the `seen` [B] tokens of each row, 0 behind them.

    A token beyond `max_len` is not kept.
    """

    seen: Tensor

    def append(self, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> "Slots":
        """With one more token of each row, [B, H, 1, d]."""
        place, seen = torch.arange(self.length, device=k.device), self.seen.unsqueeze(1)
        here = (place == seen)[:, None, :, None]
        keys, values = torch.where(here, k, self.keys), torch.where(here, v, self.values)
        return replace(self, keys=keys, values=values, mask=place <= seen, seen=self.seen + 1)


def slotted(state: Any) -> Any:
    """The state with a cache that has room as `Slots`; any other as it is."""
    if isinstance(state, ConvState):
        return ConvState(state.conv, slotted(state.after))
    if not isinstance(state, KVCache) or isinstance(state, Slots) or state.max_len is None:
        return state
    mask = state.mask
    assert mask is not None, "graphs say which tokens are real"
    place, count = front_positions(mask)
    real, room = mask[:, None, :, None], state.max_len

    def moved(x: Tensor) -> Tensor:
        kept = torch.where(real, x, 0.0)
        front = torch.zeros_like(x).scatter(2, place[:, None, :, None].expand_as(x), kept)
        return F.pad(front, (0, 0, 0, room - x.shape[2]))

    return Slots(moved(state.k), moved(state.v), room, None, room, [room], count.squeeze(1))


def at(state: Any, seen: Tensor) -> Any:
    """A state made of tensors, after so many tokens [B]; it matters to `Slots` alone."""
    if isinstance(state, ConvState):
        return ConvState(state.conv, at(state.after, seen))
    return replace(state, seen=seen) if isinstance(state, Slots) else state
