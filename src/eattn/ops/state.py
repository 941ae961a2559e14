"""The decoding state: sums over all earlier tokens, of constant size.

Sums are relative to the shift m, the smallest |k| seen so far, so that large keys do not underflow:
s_n = sum_j e^(m^2 - k_j^2) k_j^n v_j (Eq. 12), and z_n is the same sum without v (Eq. 13). With
decay a key j loses weight, and m^2 is the smallest k_j^2 - g_(j+1) - ... - g_i.
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
    log_decay : Tensor, shape (B, D), optional
        Sum of the log decays of all tokens. None if there was no decay.

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
    log_decay: Tensor | None = None

    @staticmethod
    def zeros(
        batch: int,
        dim: int,
        *,
        order: int = DEFAULT_ORDER,
        expansion: Expansion | None = None,
        decay: bool = False,
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
        decay : bool, default False
            Include `log_decay`, so that the state keeps its structure when tokens with a decay are
            added.
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
        return State(s, z, shift, expansion, torch.zeros_like(shift) if decay else None)

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
        named = {name: getattr(self, name) for name in _TENSORS}
        return {name: x for name, x in named.items() if x is not None}

    @staticmethod
    def merge(a: "State", b: "State") -> "State":
        """Merge two states, in O(BDN). Merging with an empty state changes no bit.

        Parameters
        ----------
        a, b : State
            States of two parts of a sequence, with the same shape and expansion. With decay, b
            follows a: the sums of a decay by `b.log_decay`.

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
        old = a.shift.detach()
        if b.log_decay is not None and a.order is not None:
            old = (old.square() - b.log_decay.detach()).sqrt()
        shift = torch.minimum(old, b.shift.detach())
        kept_a = shift_decay(a.shift.detach(), shift, b.log_decay).unsqueeze(-1)
        kept_b = shift_decay(b.shift.detach(), shift).unsqueeze(-1)
        a_empty, b_empty = a.shift.isposinf().unsqueeze(-1), b.shift.isposinf().unsqueeze(-1)

        def join(x: Tensor, y: Tensor) -> Tensor:
            both = x * kept_a + y * kept_b
            return torch.where(b_empty, x, torch.where(a_empty, y, both))

        log_decay = add_decays(a.log_decay, b.log_decay)
        return State(join(a.s, b.s), join(a.z, b.z), shift, a.expansion, log_decay)

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
        leaves, context = _flatten(self)
        return _unflatten(map(function, leaves), context)


_TENSORS = tuple(field.name for field in fields(State) if field.name != "expansion")


def shift_decay(old: Tensor, new: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """Return the factor that moves a sum from shift `old` to `new`; both may be infinite.

    With a log decay, the sum also decays.
    """
    limit = empty_shift(old.dtype)
    old, new = old.clamp(max=limit), new.clamp(max=limit)
    if log_decay is None:
        return decay(old, new)
    return torch.exp((new - old) * (new + old) + log_decay)


def add_decays(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the log decay of two consecutive segments; None stands for 0."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def total_decay(
    log_decay: Tensor, k: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor:
    """Return the log decay over all valid tokens of every sequence, [rows, D]."""
    each = log_decay.expand(k.shape)
    if key_mask is not None:
        each = each.masked_fill(~key_mask.unsqueeze(-1), 0)
    if cu_seqlens is None:
        if log_decay.dim() == 1 and key_mask is None and k.shape[1] > 0:  # -inf * 0 is NaN
            return (log_decay * k.shape[1]).expand(k.shape[0], -1)
        return each.sum(1)
    # The row of a token is the number of sequences that end before it.
    ends = torch.zeros(k.shape[1] + 1, dtype=torch.int64, device=k.device)
    ends = ends.index_add(0, cu_seqlens[1:], torch.ones_like(cu_seqlens[1:], dtype=torch.int64))
    row = ends[:-1].cumsum(0)
    return each.new_zeros(len(cu_seqlens) - 1, k.shape[2]).index_add(0, row, each[0])


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


Context = tuple[Expansion, bool]  # the expansion, and whether there is a decay


def _flatten(state: State) -> tuple[list[Tensor], Context]:
    return list(state.tensors().values()), (state.expansion, state.log_decay is not None)


def _unflatten(leaves: Iterable[Any], context: Context) -> State:
    expansion, decays = context
    names = _TENSORS if decays else _TENSORS[:-1]
    return State(**dict(zip(names, leaves, strict=True)), expansion=expansion)


def _flatten_with_keys(state: State) -> tuple[list[tuple[Any, Tensor]], Context]:
    # Not GetAttrKey: torch.export's guards confuse `.s` with `.shift`, as they share a prefix.
    return [(pytree.MappingKey(n), x) for n, x in state.tensors().items()], _flatten(state)[1]


pytree.register_pytree_node(
    State,
    _flatten,
    _unflatten,
    serialized_type_name="eattn.State",
    to_dumpable_context=lambda context: [context[0].terms, context[0].radius, context[1]],
    from_dumpable_context=lambda numbers: (expansion_from_terms(*numbers[:2]), numbers[2]),
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([State, Taylor, Quadrature])
