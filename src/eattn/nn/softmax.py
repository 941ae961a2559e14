"""Softmax attention over heads (Eq. 17), by SDPA or with its weights in memory."""

from typing import Any

from torch import Tensor

from eattn._checks import check_size
from eattn.nn.base import Mixer, check_heads, projection
from eattn.nn.decoding_state import KVCache, check_cache
from eattn.ops import baselines


class SoftmaxAttention(Mixer):
    """y = out(softmax(q k^T / sqrt(d)) v), d = dim / heads, in O(LLD) (Eq. 17).

    `materialise` keeps the weights [B, H, L, L], as the paper counts memory; else SDPA streams
    them. Decoding keeps all keys and values; `max_len` tokens have room from the start.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        max_len: int | None = None,
        materialise: bool = False,
    ) -> None:
        super().__init__(dim, causal=causal)
        self.heads = check_heads(dim, heads)
        self.max_len = None if max_len is None else check_size("max_len", max_len)
        self.materialise = materialise
        self.in_proj = projection(dim, 3)
        self.out_proj = projection(dim, 1)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        q, k, v = (split_heads(part, self.heads) for part in self.in_proj(x).chunk(3, -1))
        if keep or state is not None:
            state = KVCache.empty(k, v, max_len=self.max_len) if state is None else state
            state = check_cache(state, k).append(k, v, key_mask)
            # Tokens read under autocast are kept in its dtype.
            k, v, key_mask = state.k.to(q.dtype), state.v.to(q.dtype), state.mask
        attend = baselines.sa_math if self.materialise else baselines.sa
        y = attend(q, k, v, causal=self.causal, key_mask=key_mask)
        return self.out_proj(join_heads(y)), state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}, materialise={self.materialise}"


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, D] -> [B, H, L, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, L, d] -> [B, L, D]."""
    return x.transpose(1, 2).flatten(-2)
