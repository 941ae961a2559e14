"""DeltaNet: linear attention that overwrites the value of a key instead of adding to it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn.nn.base import Mixer, check_causal_only, check_heads, projection
from eattn.nn.decoding_state import DeltaState, check_held
from eattn.nn.softmax import join_heads, split_heads
from eattn.ops import baselines


class DeltaNet(Mixer):
    """y_t = out(norm(S_t q_t)) with S_t = S_(t-1) + beta_t (v_t - S_(t-1) k_t) k_t^T per head.

    S maps keys to values. Each token moves the value that S has for its key towards its own value,
    by a share beta between 0 and 1. As in Yang et al. (2024, arXiv:2406.06484), q, k and v pass
    through SiLU, q and k have length 1, and the output of each head has a root mean square of 1
    before learned weights. The published layer also has a short convolution: `short_conv` of
    `make_mixer`. Training takes O(L (C + d) D) with chunks of C = 64 tokens.

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
        check_causal_only("deltanet", causal, instead="la")
        self.heads = check_heads(dim, heads)
        self.in_proj = projection(dim, 3 * dim, parts=3)
        self.beta_proj = projection(dim, heads)
        self.norm = nn.RMSNorm(dim // heads, eps=1e-5)
        self.out_proj = projection(dim, dim)

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        q, k, v = (split_heads(part, self.heads) for part in F.silu(self.in_proj(x)).chunk(3, -1))
        beta = self.beta_proj(x).mT.sigmoid()  # [B, H, L]
        if state is not None:
            want = (*q.shape[:2], q.shape[-1], q.shape[-1])
            state = check_held(state, DeltaState, "s", want, "[B, H, d, d]")
        y, s = baselines.delta_rule(_unit(q), _unit(k), v, beta, key_mask=key_mask, state=state)
        y = self.norm(y.to(self.norm.weight.dtype))  # autocast leaves the weight in float32
        return self.out_proj(join_heads(y)), DeltaState(s)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"


def _unit(x: Tensor) -> Tensor:
    """Scale the vectors along the last axis to length 1; a vector of 0 keeps a finite gradient."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
