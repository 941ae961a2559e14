"""Interface between the operator and its backends: inputs, results and memory layout."""

from typing import NamedTuple

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion

Sums = tuple[Tensor, Tensor, Tensor]  # s, z, shift
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]  # y, s, z, shift, saved
# Of q, k, v, s, z and log_decay, which has the shape of its input.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


class Inputs(NamedTuple):
    """Tensors of one call, already validated by the public operator."""

    q: Tensor  # [B, Lq, D]
    k: Tensor  # [B, Lk, D]
    v: Tensor  # [B, Lk, D]
    key_mask: Tensor | None  # [B, Lk], True for valid keys
    cu_seqlens: Tensor | None  # [rows + 1], offsets of packed sequences
    s: Tensor | None  # initial state: [rows, D, N]
    z: Tensor | None  # [rows, D, N]
    shift: Tensor | None  # [rows, D]
    log_decay: Tensor | None = None  # [B, Lk, D] or [D], in the sums' dtype; only if causal

    @property
    def rows(self) -> int:
        """Number of sequences: the batch size, or the number of packed sequences."""
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def sum_dtype(self) -> torch.dtype:
        """Dtype of the sums: float64 if q or the state is float64, else float32."""
        wide = self.q.dtype == torch.float64 or (
            self.s is not None and self.s.dtype == torch.float64
        )
        return torch.float64 if wide else torch.float32


def kernel_sums(x: Tensor | None, expansion: Expansion, dtype: torch.dtype) -> Tensor | None:
    """Return s or z [R, D, N] in `dtype` and in the memory order of `state.empty_sums`."""
    if x is None or expansion.wide:
        return dense(x, dtype)
    _, D, N = x.shape
    if x.dtype == dtype and x.stride() == (N * D, 1, D):  # the usual case in decoding: no copy
        return x
    return x.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)


def dense(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return x contiguous and in `dtype`."""
    if x is None or (x.dtype == dtype and x.is_contiguous()):
        return x
    return x.to(dtype).contiguous()
