"""The decoding state: all that element-wise attention remembers of the tokens it has seen.

Relative to `shift` m, the smallest |k| seen, so that no key is too large to weigh anything:
s_n = sum_j e^(m^2 - k_j^2) k_j^n v_j (Eq. 12) and z_n, the same without v (Eq. 13).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion, chosen


def decay(old: Tensor, new: Tensor) -> Tensor:
    """e^-|old^2 - new^2|: what a sum at shift `old` is multiplied by to stand at `new`.

    Written as a product: a difference of rounded squares loses 1e-2 at |k| = 1e3.
    """
    moved = torch.exp(-(old - new).abs() * (old + new))
    return torch.where(old == new, torch.ones_like(moved), moved)  # inf - inf is no number


class State(NamedTuple):
    """s, z: [B, D, N] and shift: [B, D], float32 or wider, for any length seen (Eq. 8, Eq. 9).

    >>> state = State.zeros(2, 8, order=6)
    >>> state.order, state.nbytes
    (6, 960)
    """

    s: Tensor
    z: Tensor
    shift: Tensor

    @staticmethod
    def zeros(
        batch: int,
        dim: int,
        *,
        order: int = 6,
        expansion: Expansion | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "State":
        """The state before the first token: nothing summed, shift = +inf."""
        terms = chosen(order, expansion).terms
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be float32 or float64, got {dtype}")
        s, z = (
            empty_sums(batch, dim, terms, dtype, device),
            empty_sums(batch, dim, terms, dtype, device),
        )
        shift = torch.full((batch, dim), torch.inf, dtype=dtype, device=device)
        return State(s.zero_(), z.zero_(), shift)

    @property
    def order(self) -> int:
        """The highest power of a Taylor expansion, one less than the number of terms."""
        return self.s.shape[-1] - 1

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self)

    @staticmethod
    def merge(a: "State", b: "State") -> "State":
        """The state after a's tokens and then b's, in O(BDN). An empty state changes nothing."""
        for name, x in (("a", a), ("b", b)):
            if not isinstance(x, State):
                raise TypeError(f"{name} must be an eattn.State, got {type(x).__name__}")
        if a.s.shape != b.s.shape:
            raise ValueError(
                f"b must have a's shape {tuple(a.s.shape)}, got {tuple(b.s.shape)}"
                " (batch, channels, terms)"
            )
        shift = torch.minimum(a.shift, b.shift).detach()
        at, bt = decay(a.shift.detach(), shift), decay(b.shift.detach(), shift)
        a_empty, b_empty = a.shift.isposinf().unsqueeze(-1), b.shift.isposinf().unsqueeze(-1)

        def join(x: Tensor, y: Tensor) -> Tensor:
            both = x * at.unsqueeze(-1) + y * bt.unsqueeze(-1)
            return torch.where(b_empty, x, torch.where(a_empty, y, both))

        return State(join(a.s, b.s), join(a.z, b.z), shift)

    def select(self, index: Tensor) -> "State":
        """Rows `index` of the batch, repeated or reordered as beam search needs."""
        return State(*(x.index_select(0, index) for x in self))

    def to(self, *args: object, **kwargs: object) -> "State":
        """As `Tensor.to`; a dtype must be float32 or float64."""
        moved = State(*(x.to(*args, **kwargs) for x in self))  # type: ignore[call-overload]
        if moved.s.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"a state is float32 or float64, got {moved.s.dtype}")
        return moved


def empty_sums(
    rows: int, dim: int, terms: int, dtype: torch.dtype, device: torch.device | str | None
) -> Tensor:
    """[rows, D, N], with channels adjacent in memory: the kernels are vectors over channels."""
    return torch.empty(rows, terms, dim, dtype=dtype, device=device).transpose(1, 2)


def laid_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A state tensor [R, D, N] as the kernels want it: memory order [R, N, D]."""
    _, D, N = x.shape
    if x.dtype == dtype and x.stride() == (N * D, 1, D):  # as they left it: no time to lose here
        return x
    return x.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)


def dense(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype and x.is_contiguous() else x.to(dtype).contiguous()


torch.serialization.add_safe_globals([State])  # torch.load(weights_only=True) takes it back
