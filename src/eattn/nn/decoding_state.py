"""Decoding states of the mixers: frozen dataclasses that are pytrees, with rows along axis 0."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from eattn.ops.traceable import exporting

SMALLEST = 64  # tokens a growing cache has room for at first


class DecodingState(Protocol):
    """The interface of every state, `eattn.State` included."""

    @property
    def nbytes(self) -> int:
        """Bytes held for the tokens so far."""

    def select(self, index: Tensor) -> Self:
        """Return rows `index` of the batch, repeated or reordered as beam search needs."""


class Rows:
    """Base of states: a pytree whose children are the fields, under their names."""

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in pytree.tree_leaves(self))

    def select(self, index: Tensor) -> Self:
        return pytree.tree_map(lambda x: x.index_select(0, index), self)

    def _flatten(self) -> tuple[dict[str, Any], Any]:
        """Return the children by name, and what else `_unflatten` needs."""
        return {field.name: getattr(self, field.name) for field in fields(self)}, None  # type: ignore[arg-type]

    @classmethod
    def _unflatten(cls, children: dict[str, Any], static: Any) -> Self:
        return cls(**children)


def register_state(cls: type[Rows]) -> None:
    """Register a state as a pytree, and for `torch.load(weights_only=True)`."""

    def flatten(state: Rows) -> tuple[list[Any], Any]:
        children, static = state._flatten()
        return list(children.values()), (tuple(children), static)

    def flatten_with_keys(state: Rows) -> tuple[list[tuple[Any, Any]], Any]:
        children, static = state._flatten()
        return [(pytree.MappingKey(n), x) for n, x in children.items()], (tuple(children), static)

    def unflatten(children: Iterable[Any], context: Any) -> Rows:
        names, static = context
        return cls._unflatten(dict(zip(names, children, strict=True)), static)

    name = f"eattn.{cls.__name__}"
    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=name,
        flatten_with_keys_fn=flatten_with_keys,
    )
    torch.serialization.add_safe_globals([cls])


@dataclass(frozen=True, eq=False)
class Hidden(Rows):
    """Hidden vector of a recurrence, [B, D]."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class LinearState(Rows):
    """Sums of phi(k)^T (v, 1), [B, H, F, d + 1] (Eq. 18)."""

    s: Tensor


@dataclass(frozen=True, eq=False)
class ConvState(Rows):
    """Last inputs of a short convolution, [B, width - 1, D], and the state of its mixer."""

    conv: Tensor
    after: DecodingState


@dataclass(frozen=True, eq=False)
class KVCache(Rows):
    """Keys and values of every token so far: [B, H, length, d], so it grows with each of them.

    Appending writes behind `length` into memory that earlier caches share and do not look at; a
    cache that was continued before is copied first. So no cache ever changes, and decoding copies
    nothing.
    """

    keys: Tensor  # [B, H, capacity, d]
    values: Tensor
    length: int
    mask: Tensor | None  # [B, length], True for valid tokens; None: all are
    max_len: int | None  # room from the start, and the limit; None: grows
    written: list[int]  # how far the shared memory is taken

    @classmethod
    def empty(cls, k: Tensor, v: Tensor, *, max_len: int | None) -> "KVCache":
        """Make a cache before the first token, for keys and values like these [B, H, L, d]."""
        room = max(k.shape[2], SMALLEST) if max_len is None else max_len
        keys, values = (x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (k, v))
        return cls(keys, values, 0, None, max_len, [0])

    @property
    def k(self) -> Tensor:
        return self.keys[:, :, : self.length]

    @property
    def v(self) -> Tensor:
        return self.values[:, :, : self.length]

    def append(self, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> "KVCache":
        """Return the cache with the keys and values of further tokens, [B, H, L, d]."""
        length = self.length + k.shape[2]
        if self.max_len is not None and length > self.max_len:
            raise ValueError(
                f"the cache has room for max_len = {self.max_len} tokens, got token {length}"
            )
        mask = self._mask_with(key_mask, k)
        saved = torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, self.keys))
        if saved or exporting():
            # Autograd forbids writing into what it has saved, and a graph has no memory of its own.
            keys, values = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
            return replace(
                self, keys=keys, values=values, length=length, mask=mask, written=[length]
            )
        cache = self._with_room(length)
        cache.keys[:, :, self.length : length] = k
        cache.values[:, :, self.length : length] = v
        cache.written[0] = length
        return replace(cache, length=length, mask=mask)

    def _with_room(self, length: int) -> "KVCache":
        """Return this cache if nothing is written behind it and `length` tokens fit, or a copy."""
        room = self.keys.shape[2]
        # Outside of inference mode its tensors cannot be written to.
        frozen = self.keys.is_inference() and not torch.is_inference_mode_enabled()
        if self.written[0] == self.length and length <= room and not frozen:
            return self
        room = self.max_len or max(2 * room if length > room else room, length)
        keys, values = (x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (self.k, self.v))
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
        """Leave out the room for tokens to come."""
        mask = {} if self.mask is None else {"mask": self.mask}
        return {"keys": self.k, "values": self.v} | mask, (self.length, self.max_len)

    @classmethod
    def _unflatten(cls, children: dict[str, Any], static: Any) -> "KVCache":
        length, max_len = static
        if isinstance(children["keys"], Tensor):
            length = children["keys"].shape[2]
        return cls(**{"mask": None} | children, length=length, max_len=max_len, written=[length])


for _state in (Hidden, LinearState, ConvState, KVCache):
    register_state(_state)


def check_cache(state: object, k: Tensor) -> KVCache:
    """Return `state` if it is a cache that keys k [B, H, L, d] can be appended to."""
    if not isinstance(state, KVCache):
        raise TypeError(f"state must be a KVCache, got {type(state).__name__}")
    check_shape(state.k, (*k.shape[:2], state.length, k.shape[3]), "[B, H, length, d]")
    return state


def check_shape(held: Tensor, want: tuple[int, ...], axes: str) -> None:
    """Check that a tensor of a state fits x and the layer."""
    if tuple(held.shape) != want:
        raise ValueError(
            f"state must hold {axes} = {want} for this x and layer, got {tuple(held.shape)}"
        )


def parts(state: Any) -> dict[str, Tensor]:
    """Return the tensors of a state by the names of their fields, to store or export them.

    >>> from eattn import State
    >>> list(parts(ConvState(torch.zeros(2, 3, 8), State.zeros(2, 8))))
    ['conv', 's', 'z', 'shift']
    """
    return dict(_named_leaves(state)[0])


def rebuilt(like: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a state of the same kind that holds the tensors that `parts` returned."""
    named, spec = _named_leaves(like)
    return pytree.tree_unflatten([tensors[name] for name, _ in named], spec)


def _named_leaves(state: Any) -> tuple[list[tuple[str, Tensor]], pytree.TreeSpec]:
    leaves: Any
    leaves, spec = pytree.tree_flatten_with_path(state)
    return [(path[-1].key, x) for path, x in leaves], spec
