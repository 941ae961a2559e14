"""The decoding state: sums over all earlier tokens, of constant size.

Sums are relative to the shift m, the smallest |k| seen so far, so that large keys do not underflow:
s_n = sum_j e^(m^2 - k_j^2) k_j^n v_j (Eq. 12), and z_n is the same sum without v (Eq. 13).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from eattn.ops.expansion import (
    DEFAULT_ORDER,
    Expansion,
    Quadrature,
    Taylor,
    expansion_from_terms,
    resolve_expansion,
)
from eattn.ops.features import decay, empty_shift


@dataclass(frozen=True, eq=False)
class State:
    """Sums over the tokens seen so far. Their size does not depend on the number of tokens.

    A state is immutable. It is a pytree whose leaves are its tensors; its expansion is static.

    Parameters
    ----------
    s, z : Tensor, shape (B, D, N)
        Sums with and without the values (Eq. 12, Eq. 13), in float32 or float64.
    shift : Tensor, shape (B, D)
        Running minimum of the keys' magnitude; +inf before the first key.
    expansion : Taylor or Quadrature
        Expansion whose features are summed.

    Examples
    --------
    >>> state = State.zeros(2, 8, order=6)
    >>> state.order, state.nbytes
    (6, 960)
    """

    s: Tensor
    z: Tensor
    shift: Tensor
    expansion: Expansion

    @staticmethod
    def zeros(
        batch: int,
        dim: int,
        *,
        order: int = DEFAULT_ORDER,
        expansion: Expansion | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "State":
        """Return the state before the first token (Eq. 8, Eq. 9).

        Parameters
        ----------
        batch, dim : int
            Number of sequences B and of channels D.
        order : int, default 6
            Highest power of the Taylor expansion. Cannot be combined with `expansion`.
        expansion : Taylor or Quadrature, optional
            Expansion of the sums.
        device : torch.device or str, optional
            Device of the tensors.
        dtype : torch.dtype, default float32
            float32 or float64.

        Returns
        -------
        State
        """
        expansion = resolve_expansion(order, expansion)
        if dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype must be float32 or float64, got {dtype}")
        s, z = (empty_sums(batch, dim, expansion, dtype, device).zero_() for _ in range(2))
        shift = torch.full((batch, dim), torch.inf, dtype=dtype, device=device)
        return State(s, z, shift, expansion)

    @property
    def order(self) -> int | None:
        """Highest power of a Taylor expansion; None for a quadrature."""
        return self.expansion.order if isinstance(self.expansion, Taylor) else None

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(x.numel() * x.element_size() for x in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: getattr(self, name) for name in _TENSORS}

    @staticmethod
    def merge(a: "State", b: "State") -> "State":
        """Merge two states, in O(BDN). Merging with an empty state changes no bit.

        Parameters
        ----------
        a, b : State
            States of two parts of a sequence, with the same shape and expansion.

        Returns
        -------
        State
            State of all tokens of both parts.
        """
        for name, x in (("a", a), ("b", b)):
            if not isinstance(x, State):
                raise TypeError(f"{name} must be an eattn.State, got {type(x).__name__}")
        if a.expansion != b.expansion:
            raise ValueError(f"b must have a's expansion {a.expansion!r}, got {b.expansion!r}")
        if a.s.shape != b.s.shape:
            raise ValueError(
                f"b must have a's shape {tuple(a.s.shape)}, got {tuple(b.s.shape)}"
                " (batch, channels, terms)"
            )
        shift = torch.minimum(a.shift, b.shift).detach()
        kept_a = shift_decay(a.shift.detach(), shift).unsqueeze(-1)
        kept_b = shift_decay(b.shift.detach(), shift).unsqueeze(-1)
        a_empty, b_empty = a.shift.isposinf().unsqueeze(-1), b.shift.isposinf().unsqueeze(-1)

        def join(x: Tensor, y: Tensor) -> Tensor:
            both = x * kept_a + y * kept_b
            return torch.where(b_empty, x, torch.where(a_empty, y, both))

        return State(join(a.s, b.s), join(a.z, b.z), shift, a.expansion)

    def select(self, index: Tensor) -> "State":
        """Select rows of the batch; rows may be repeated or reordered, as in beam search.

        Parameters
        ----------
        index : int64 Tensor, shape (n,)
            Rows to select.

        Returns
        -------
        State
            State with a batch size of n.
        """
        return self._map(lambda x: x.index_select(0, index))

    def to(self, *args: Any, **kwargs: Any) -> "State":
        """Move or convert all tensors; takes the arguments of `Tensor.to`.

        Raises
        ------
        TypeError
            If the new dtype is neither float32 nor float64.
        """
        moved = self._map(lambda x: x.to(*args, **kwargs))
        if moved.s.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"dtype of a state must be float32 or float64, got {moved.s.dtype}")
        return moved

    def _map(self, function: Callable[[Tensor], Tensor]) -> "State":
        return _unflatten(map(function, self.tensors().values()), self.expansion)


_TENSORS = tuple(field.name for field in fields(State) if field.name != "expansion")


def shift_decay(old: Tensor, new: Tensor) -> Tensor:
    """Return the factor that moves a sum from shift `old` to `new`; both may be infinite."""
    limit = empty_shift(old.dtype)
    return decay(old.clamp(max=limit), new.clamp(max=limit))


def empty_sums(
    rows: int, dim: int, expansion: Expansion, dtype: torch.dtype, device: torch.device | str | None
) -> Tensor:
    """Allocate s or z [rows, D, N] in the memory order of the kernels.

    Kernels for few terms vectorise over channels, which are adjacent: [rows, N, D] in memory. Those
    for wide grids vectorise over nodes.
    """
    terms = expansion.terms
    if expansion.wide:
        return torch.empty(rows, dim, terms, dtype=dtype, device=device)
    return torch.empty(rows, terms, dim, dtype=dtype, device=device).transpose(1, 2)


# ---- pytree and torch.load(weights_only=True) ----------------------------------------------------


def _flatten(state: State) -> tuple[list[Tensor], Expansion]:
    return list(state.tensors().values()), state.expansion


def _unflatten(leaves: Iterable[Any], expansion: Expansion) -> State:
    return State(**dict(zip(_TENSORS, leaves, strict=True)), expansion=expansion)


def _flatten_with_keys(state: State) -> tuple[list[tuple[Any, Tensor]], Expansion]:
    # Not GetAttrKey: torch.export's guards confuse `.s` with `.shift`, as they share a prefix.
    return [(pytree.MappingKey(n), x) for n, x in state.tensors().items()], state.expansion


pytree.register_pytree_node(
    State,
    _flatten,
    _unflatten,
    serialized_type_name="eattn.State",
    to_dumpable_context=lambda expansion: [expansion.terms, expansion.radius],
    from_dumpable_context=lambda numbers: expansion_from_terms(*numbers),
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([State, Taylor, Quadrature])
