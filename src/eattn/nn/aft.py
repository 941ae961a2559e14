"""Attention-free transformer with a learned bias for each pair of positions (Eq. 19)."""

from typing import Any

import torch
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.nn.base import Mixer, projection
from eattn.nn.decoding_state import extend_cache
from eattn.ops import baselines


class AFT(Mixer):
    """y_i = out(sigmoid(q_i) sum_j e^(k_j + w_ij) v_j / sum_j e^(k_j + w_ij)) in O(LLD) (Eq. 19).

    The gate sigmoid(q) follows the AFT paper; Eq. 19 omits it. Decoding keeps all keys and values.

    Parameters
    ----------
    dim : int
        Number of channels D.
    max_len : int
        Number of positions that have a bias w. Longer sequences raise. Padding takes up positions.
    causal : bool, default False
        Attend only to earlier tokens and the token itself.
    """

    def __init__(self, dim: int, *, max_len: int, causal: bool = False) -> None:
        super().__init__(dim, causal=causal)
        self.max_len = check_size("max_len", max_len)
        self.in_proj = projection(dim, 3 * dim, parts=3)
        self.out_proj = projection(dim, dim)
        self.w = nn.Parameter(torch.empty(max_len, max_len).normal_(std=0.02))

    def _mix(
        self, x: Tensor, key_mask: Tensor | None, state: Any, *, keep: bool
    ) -> tuple[Tensor, Any]:
        q, k, v = self.in_proj(x).chunk(3, -1)
        k, v = k.unsqueeze(1), v.unsqueeze(1)  # one head
        if keep or state is not None:
            state = extend_cache(state, k, v, key_mask)
            k, v, key_mask = state.k, state.v, state.mask
        length = k.shape[2]
        if length > self.max_len:
            raise ValueError(
                f"aft has learned biases for max_len = {self.max_len} positions, got {length}"
                " tokens; build it with a larger max_len"
            )
        w = self.w[length - x.shape[1] : length, :length]
        k, v = k.squeeze(1), v.squeeze(1)
        y = baselines.aft(k, v, w, causal=self.causal, key_mask=key_mask)
        return self.out_proj(q.sigmoid() * y), state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_len={self.max_len}"
