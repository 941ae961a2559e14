"""Linear attention (Eq. 18), also with a Taylor polynomial as its kernel (Eq. 20)."""

from typing import Any

from torch import Tensor

from eattn.nn.base import Mixer, check_heads, projection
from eattn.nn.decoding_state import LinearState, check_held
from eattn.nn.softmax import join_heads, split_heads
from eattn.ops import baselines


class LinearAttention(Mixer):
    """y = out(phi(q) S / phi(q) Z) with S and Z summed over the keys, in O(LFd) per head (Eq. 18).

    Parameters
    ----------
    dim : int
        Number of channels D.
    heads : int, default 8
        Number of heads; each has d = dim / heads channels.
    causal : bool, default False
        Attend only to earlier tokens and the token itself.
    taylor : bool, default False
        Use the weights 1 + o + o^2 / 2 with o = q k^T / sqrt(d), the exponential of softmax
        attention to order 2, which has about d^2 / 2 features (Eq. 20). Otherwise
        phi(x) = elu(x) + 1 with F = d features.
    """

    def __init__(
        self, dim: int, *, heads: int = 8, causal: bool = False, taylor: bool = False
    ) -> None:
        super().__init__(dim, causal=causal)
        self.heads = check_heads(dim, heads)
        self.taylor = taylor
        self.in_proj = projection(dim, 3 * dim, parts=3)
        self.out_proj = projection(dim, dim)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        q, k, v = (split_heads(part, self.heads) for part in self.in_proj(x).chunk(3, -1))
        if self.taylor:
            q = q * q.shape[-1] ** -0.5
        kernel = baselines.TAYLOR if self.taylor else baselines.ELU
        if state is not None:
            want = (*q.shape[:2], kernel.phi(q[:, :, :0]).shape[-1], q.shape[-1] + 1)
            state = check_held(state, LinearState, "s", want, "[B, H, F, d + 1]")
        y, s = baselines.linear_attention(
            kernel,
            q,
            k,
            v,
            causal=self.causal,
            key_mask=key_mask,
            state=state,
        )
        return self.out_proj(join_heads(y)), LinearState(s)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}, taylor={self.taylor}"
