"""Multi-head softmax attention (Eq. 17), by SDPA or with its weights in memory."""

from typing import Any

from torch import Tensor

from eattn._checks import check_bool, check_size
from eattn.nn.base import Mixer, check_heads, projection
from eattn.nn.decoding_state import extend_cache, next_positions
from eattn.ops import baselines


class SoftmaxAttention(Mixer):
    """y = out(softmax(q k^T / sqrt(d)) v), d = dim / heads, in O(LLD) (Eq. 17).

    Decoding keeps all keys and values.

    Parameters
    ----------
    dim : int
        Number of channels D.
    heads : int, default 8
        Number of heads.
    causal : bool, default False
        Attend only to earlier tokens and the token itself.
    max_len : int, optional
        Fixed capacity of the cache, in tokens. The cache grows by default.
    materialise : bool, default False
        Store the weights [B, H, L, L], as in the paper's memory count, instead of calling SDPA.
    rope : bool, default False
        Rotate q and k by their positions (Su et al., 2021), so that weights depend on the distance
        of two tokens. Only valid tokens count; needs an even d.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        max_len: int | None = None,
        materialise: bool = False,
        rope: bool = False,
    ) -> None:
        super().__init__(dim, causal=causal)
        self.heads = check_heads(dim, heads)
        self.max_len = None if max_len is None else check_size("max_len", max_len)
        self.materialise = materialise
        self.rope = check_bool("rope", rope)
        if rope and dim // heads % 2:
            raise ValueError(
                "rotary positions need an even number of channels per head, got dim / heads ="
                f" {dim} / {heads} = {dim // heads}; choose another number of heads"
            )
        self.in_proj = projection(dim, 3 * dim, parts=3)
        self.out_proj = projection(dim, dim)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        q, k, v = (split_heads(part, self.heads) for part in self.in_proj(x).chunk(3, -1))
        if self.rope:
            position = next_positions(state, k, key_mask)
            q, k = baselines.rope(q, position), baselines.rope(k, position)
        if keep or state is not None:
            state = extend_cache(state, k, v, key_mask, max_len=self.max_len)
            # The cache has the dtype of autocast if earlier tokens were read under it.
            k, v, key_mask = state.k.to(q.dtype), state.v.to(q.dtype), state.mask
        attend = baselines.sa_math if self.materialise else baselines.sa
        y = attend(q, k, v, causal=self.causal, key_mask=key_mask)
        return self.out_proj(join_heads(y)), state

    def extra_repr(self) -> str:
        options = f"heads={self.heads}, materialise={self.materialise}, rope={self.rope}"
        return f"{super().extra_repr()}, {options}"


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [B, L, D] to [B, H, L, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Reshape [B, H, L, d] to [B, L, D]."""
    return x.transpose(1, 2).flatten(-2)
