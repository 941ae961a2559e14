"""Gated linear attention: linear attention whose state forgets at a rate that depends on x."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from eattn.nn.base import Mixer, check_causal_only, check_heads, projection
from eattn.nn.decoding_state import LinearState, check_held
from eattn.nn.softmax import join_heads, split_heads
from eattn.ops import baselines

RANK = 16  # of the projection from x to the gates
GATE_POWER = 1 / 16  # gates are sigmoid(.)^(1/16), so that new layers remember about 16 tokens


class GatedLinearAttention(Mixer):
    """y_t = out(norm(q_t S_t) silu(r_t)) with S_t = diag(a_t) S_(t-1) + k_t^T v_t per head.

    The gates a_t = sigmoid(W_2 W_1 x_t + b)^(1/16), one per head and key channel, come from x
    through a projection of rank 16. As in Yang et al. (2023, arXiv:2312.06635), q and k have no
    feature map, r gates the output, and each head is divided by its root mean square instead of a
    sum of weights. That sum needs positive features of q and k, and a denominator that decays with
    the gates may come close to 0. Key channels are as many as value channels, twice the published
    number, so that the state is as large as that of `LinearAttention`. The layer has
    D (D + 34) + d parameters more than `LinearAttention`. Training takes O(L (C + d) D) with chunks
    of C = 64 tokens.

    Parameters
    ----------
    dim : int
        Number of channels D.
    heads : int, default 8
        Number of heads; each has d = dim / heads channels and a state [d, d].
    causal : bool
        Must be True: the order of the tokens matters.
    """

    def __init__(self, dim: int, *, heads: int = 8, causal: bool) -> None:
        super().__init__(dim, causal=causal)
        check_causal_only("la+gate", causal, instead="la")
        self.heads = check_heads(dim, heads)
        self.in_proj = projection(dim, 4 * dim, parts=4)
        self.gate_down = projection(dim, RANK, bias=False)
        self.gate_up = projection(RANK, dim)
        self.norm = nn.RMSNorm(dim // heads, eps=1e-5)
        self.out_proj = projection(dim, dim)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        *parts, r = self.in_proj(x).chunk(4, -1)
        log_decay = F.logsigmoid(self.gate_up(self.gate_down(x))) * GATE_POWER
        q, k, v, g = (split_heads(part, self.heads) for part in (*parts, log_decay))
        if state is not None:
            want = (*q.shape[:2], q.shape[-1], q.shape[-1])
            state = check_held(state, LinearState, "s", want, "[B, H, d, d]")
        y, s = baselines.gated_linear_attention(
            q * q.shape[-1] ** -0.5, k, v, g, key_mask=key_mask, state=state
        )
        y = self.norm(y.to(self.norm.weight.dtype))  # autocast leaves the weight in float32
        return self.out_proj(join_heads(y) * F.silu(r)), LinearState(s)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"
