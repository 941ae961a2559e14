"""Decoding states of the mixers: frozen dataclasses and pytrees whose axis 0 is the batch."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

MIN_CAPACITY = 64  # tokens; a growing cache starts with this capacity and doubles it


class DecodingState(Protocol):
    """Interface of all decoding states, including `eattn.State`."""

    @property
    def nbytes(self) -> int:
        """Size of the state in bytes."""

    def select(self, index: Tensor) -> Self:
        """Return the rows `index`, shape (n,), of the batch, which may repeat or reorder them."""


class StateBase:
    """Base class of states: a pytree whose children are the fields, under their names.

    Subclasses are also registered as safe for `torch.load(weights_only=True)`.
    """

    def __init_subclass__(cls) -> None:
        def flatten_with_keys(state: StateBase) -> tuple[list[tuple[Any, Any]], Any]:
            children, static = state._flatten()
            named: list[Any] = [(pytree.MappingKey(n), child) for n, child in children.items()]
            return named, (tuple(children), static)

        def flatten(state: StateBase) -> tuple[list[Any], Any]:
            named, context = flatten_with_keys(state)
            return [child for _, child in named], context

        def unflatten(children: Iterable[Any], context: Any) -> StateBase:
            names, static = context
            return cls._unflatten(dict(zip(names, children, strict=True)), static)

        pytree.register_pytree_node(
            cls,
            flatten,
            unflatten,
            serialized_type_name=f"eattn.{cls.__name__}",
            flatten_with_keys_fn=flatten_with_keys,
        )
        torch.serialization.add_safe_globals([cls])

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in pytree.tree_leaves(self))

    def select(self, index: Tensor) -> Self:
        return pytree.tree_map(lambda x: x.index_select(0, index), self)

    def _flatten(self) -> tuple[dict[str, Any], Any]:
        """Return the children by name, and the static data that `_unflatten` needs."""
        return {field.name: getattr(self, field.name) for field in fields(self)}, None  # type: ignore[arg-type]

    @classmethod
    def _unflatten(cls, children: dict[str, Any], static: Any) -> Self:
        return cls(**children)


@dataclass(frozen=True, eq=False)
class Hidden(StateBase):
    """State of a recurrence: its hidden vector [B, D]."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class LinearState(StateBase):
    """State of linear attention: sums of phi(k)^T (v, 1), [B, H, F, d + 1] (Eq. 18).

    With forget gates, decayed sums of k^T v, [B, H, d, d].
    """

    s: Tensor


@dataclass(frozen=True, eq=False)
class DeltaState(StateBase):
    """State of the delta rule: the matrix that maps keys to values, [B, H, d, d]."""

    s: Tensor


@dataclass(frozen=True, eq=False)
class ConvState(StateBase):
    """State of `Convolved`: the last inputs [B, width - 1, D], and the state of the mixer."""

    conv: Tensor
    after: DecodingState


@dataclass(frozen=True, eq=False)
class KVCache(StateBase):
    """Keys and values of all tokens so far, [B, H, length, d].

    Appending writes after `length` into memory that is shared with earlier caches, which never read
    that far. A cache that was already continued is copied first. Therefore no cache ever changes,
    and decoding does not copy.
    """

    keys: Tensor  # [B, H, capacity, d]
    values: Tensor  # [B, H, capacity, d]
    length: int
    mask: Tensor | None  # [B, length], True for valid tokens; None if all tokens are valid
    max_len: int | None  # fixed capacity; None if the cache grows
    written: list[int]  # number of tokens written to the shared memory

    @classmethod
    def empty(cls, k: Tensor, v: Tensor, *, max_len: int | None) -> "KVCache":
        """Make an empty cache for keys and values of the shape and dtype of k, v [B, H, L, d]."""
        capacity = max(k.shape[2], MIN_CAPACITY) if max_len is None else max_len
        keys, values = (x.new_empty(*x.shape[:2], capacity, x.shape[3]) for x in (k, v))
        return cls(keys, values, 0, None, max_len, [0])

    @property
    def k(self) -> Tensor:
        return self.keys[:, :, : self.length]

    @property
    def v(self) -> Tensor:
        return self.values[:, :, : self.length]

    def append(self, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> "KVCache":
        """Return a cache that also holds the keys and values [B, H, L, d] of new tokens."""
        length = self.length + k.shape[2]
        if self.max_len is not None and length > self.max_len:
            raise ValueError(
                f"the cache is limited to max_len = {self.max_len} tokens, got {length};"
                " build the mixer with a larger max_len, or with None"
            )
        mask = self._mask_with(key_mask, k)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, self.keys)):
            # Autograd has saved these tensors, so they must not be overwritten.
            keys, values = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
            return replace(
                self, keys=keys, values=values, length=length, mask=mask, written=[length]
            )
        cache = self._with_capacity(length)
        cache.keys[:, :, self.length : length] = k
        cache.values[:, :, self.length : length] = v
        cache.written[0] = length
        return replace(cache, length=length, mask=mask)

    def _with_capacity(self, length: int) -> "KVCache":
        """Return this cache if `length` tokens can be written to it, else a copy with room."""
        capacity = self.keys.shape[2]
        # Tensors made in inference mode cannot be written to outside of it.
        frozen = self.keys.is_inference() and not torch.is_inference_mode_enabled()
        if self.written[0] == self.length and length <= capacity and not frozen:
            return self
        capacity = self.max_len or max(2 * capacity if length > capacity else capacity, length)
        keys, values = (x.new_empty(*x.shape[:2], capacity, x.shape[3]) for x in (self.k, self.v))
        keys[:, :, : self.length], values[:, :, : self.length] = self.k, self.v
        return replace(self, keys=keys, values=values, written=[self.length])

    def _mask_with(self, key_mask: Tensor | None, k: Tensor) -> Tensor | None:
        if self.mask is None and key_mask is None:
            return None
        earlier, new = self.mask, key_mask
        if earlier is None:
            earlier = torch.ones(k.shape[0], self.length, dtype=torch.bool, device=k.device)
        if new is None:
            new = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        return torch.cat([earlier, new], 1)

    def _flatten(self) -> tuple[dict[str, Tensor], Any]:
        """Return keys and values without the unused capacity."""
        mask = {} if self.mask is None else {"mask": self.mask}
        return {"keys": self.k, "values": self.v} | mask, (self.length, self.max_len)

    @classmethod
    def _unflatten(cls, children: dict[str, Any], static: Any) -> "KVCache":
        length, max_len = static
        if isinstance(children["keys"], Tensor):
            length = children["keys"].shape[2]
        return cls(**{"mask": None} | children, length=length, max_len=max_len, written=[length])


def extend_cache(
    state: Any, k: Tensor, v: Tensor, key_mask: Tensor | None, *, max_len: int | None = None
) -> KVCache:
    """Append k and v [B, H, L, d] to the cache `state`, or to a new cache if it is None."""
    if state is None:
        state = KVCache.empty(k, v, max_len=max_len)
    else:
        _check_cache(state, k)
    return state.append(k, v, key_mask)


def rewind(state: Any) -> None:
    """Let the next call overwrite keys and values after `state`, which no other state may read."""
    if isinstance(state, ConvState):
        rewind(state.after)
    elif isinstance(state, KVCache):
        state.written[0] = state.length


def next_positions(state: Any, k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Count the valid tokens before each new token of k [B, H, L, d], [B or 1, L]."""
    if key_mask is None:
        new = torch.arange(k.shape[2], device=k.device).unsqueeze(0)
    else:
        new = key_mask.cumsum(1) - 1
    if state is None:
        return new
    _check_cache(state, k)
    return new + (state.length if state.mask is None else state.mask.sum(1, keepdim=True))


def _check_cache(state: Any, k: Tensor) -> None:
    want = (*k.shape[:2], getattr(state, "length", 0), k.shape[3])
    check_held(state, KVCache, "k", want, "[B, H, length, d]")


def check_held(state: Any, cls: type, name: str, want: tuple[int, ...], axes: str) -> Tensor:
    """Return the tensor `name` of a state after checking the state's class and the shape."""
    if not isinstance(state, cls):
        raise TypeError(f"state must be a {cls.__name__}, got {type(state).__name__}")
    held: Tensor = getattr(state, name)
    if tuple(held.shape) != want:
        raise ValueError(
            f"state must hold {axes} = {want} for this input and layer, got {tuple(held.shape)}"
        )
    return held


def parts(state: Any) -> dict[str, Tensor]:
    """Return the tensors of a state by field name, to save or export them.

    Examples
    --------
    >>> from eattn import State
    >>> list(parts(ConvState(torch.zeros(2, 3, 8), State.zeros(2, 8))))
    ['conv', 's', 'z', 'shift']
    """
    return dict(_named_leaves(state)[0])


def rebuilt(like: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a state of the kind of `like` from the tensors that `parts` returned."""
    named, spec = _named_leaves(like)
    return pytree.tree_unflatten([tensors[name] for name, _ in named], spec)


def _named_leaves(state: Any) -> tuple[list[tuple[str, Tensor]], pytree.TreeSpec]:
    leaves: Any
    leaves, spec = pytree.tree_flatten_with_path(state)
    return [(path[-1].key, x) for path, x in leaves], spec
