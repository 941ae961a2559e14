"""What the mixers remember while decoding. Each state tells its `nbytes` and can be reordered."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from eattn.ops import State
from eattn.ops.traceable import exporting

SMALLEST = 64  # tokens a growing cache has room for at first


class DecodingState(Protocol):
    """What every state can do, `eattn.State` too."""

    @property
    def nbytes(self) -> int:
        """Bytes held for the tokens so far."""

    def select(self, index: Tensor) -> Self:
        """Rows `index` of the batch, repeated or reordered as beam search needs."""


class _Tensors:
    """A state of tensors [B, ...] whose size does not depend on the tokens seen."""

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self._tensors())

    def select(self, index: Tensor) -> Self:
        return type(self)(*(x.index_select(0, index) for x in self._tensors()))

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Hidden(_Tensors):
    """The hidden vector of a recurrence, [B, D]."""

    h: Tensor


@dataclass(frozen=True)
class LinearState(_Tensors):
    """Sums of phi(k)^T (v, 1), [B, H, F, d + 1] (Eq. 18)."""

    s: Tensor


class ConvState(NamedTuple):
    """The last inputs of a short convolution, [B, width - 1, D], and the state of what follows."""

    last: Tensor
    after: DecodingState

    @property
    def nbytes(self) -> int:
        return self.last.numel() * self.last.element_size() + self.after.nbytes

    def select(self, index: Tensor) -> "ConvState":
        return ConvState(self.last.index_select(0, index), self.after.select(index))


@dataclass(frozen=True, eq=False)
class KVCache:
    """Keys and values of every token so far: [B, H, length, d], so it grows with each of them.

    Appending writes behind `length` into memory that earlier caches share and do not look at; a
    cache that was continued before is copied first. So no cache ever changes, and decoding copies
    nothing.
    """

    keys: Tensor  # [B, H, capacity, d]
    values: Tensor
    length: int
    mask: Tensor | None  # [B, length], True for real tokens; None: all are
    max_len: int | None  # room from the start, and the limit; None: grows
    written: list[int]  # how far the shared memory is taken

    @classmethod
    def empty(cls, k: Tensor, v: Tensor, *, max_len: int | None) -> "KVCache":
        """Before the first token, for keys and values like these [B, H, L, d]."""
        room = max(k.shape[2], SMALLEST) if max_len is None else max_len
        keys, values = (x.new_empty(*x.shape[:2], room, x.shape[3]) for x in (k, v))
        return cls(keys, values, 0, None, max_len, [0])

    @property
    def k(self) -> Tensor:
        return self.keys[:, :, : self.length]

    @property
    def v(self) -> Tensor:
        return self.values[:, :, : self.length]

    @property
    def nbytes(self) -> int:
        held = [self.k, self.v] + ([] if self.mask is None else [self.mask])
        return sum(x.numel() * x.element_size() for x in held)

    def select(self, index: Tensor) -> "KVCache":
        keys, values = self.keys.index_select(0, index), self.values.index_select(0, index)
        mask = None if self.mask is None else self.mask.index_select(0, index)
        return replace(self, keys=keys, values=values, mask=mask, written=[self.length])

    def append(self, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> "KVCache":
        """With the keys and values of further tokens, [B, H, L, d]."""
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
        """This cache if nothing is written behind it and `length` tokens fit, else a copy."""
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


def check_cache(state: object, k: Tensor) -> KVCache:
    """A cache that keys k [B, H, L, d] can be appended to."""
    if not isinstance(state, KVCache):
        raise TypeError(f"state must be a KVCache, got {type(state).__name__}")
    check_shape(state.k, (*k.shape[:2], state.length, k.shape[3]), "[B, H, length, d]")
    return state


def check_shape(held: Tensor, want: tuple[int, ...], axes: str) -> None:
    """That what a state holds fits x and the layer."""
    if tuple(held.shape) != want:
        raise ValueError(
            f"state must hold {axes} = {want} for this x and layer, got {tuple(held.shape)}"
        )


def parts(state: Any) -> dict[str, Tensor]:
    """The tensors of a state by name, for what stores or exports them; `rebuilt` takes them back.

    >>> list(parts(ConvState(torch.zeros(2, 3, 8), State.zeros(2, 8))))
    ['conv', 's', 'z', 'shift']
    """
    if isinstance(state, ConvState):
        return {"conv": state.last} | parts(state.after)
    if isinstance(state, KVCache):
        return {"keys": state.k, "values": state.v}
    if isinstance(state, State):
        return state.tensors()
    return {field.name: getattr(state, field.name) for field in fields(state)}


def rebuilt(like: Any, tensors: dict[str, Tensor]) -> Any:
    """A state of the same kind that holds these."""
    if isinstance(like, ConvState):
        after = {name: x for name, x in tensors.items() if name != "conv"}
        return ConvState(tensors["conv"], rebuilt(like.after, after))
    if not isinstance(like, KVCache):
        return replace(like, **tensors)
    keys, values = tensors["keys"], tensors["values"]
    length = keys.shape[2]
    return replace(like, keys=keys, values=values, length=length, mask=None, written=[length])


torch.serialization.add_safe_globals([ConvState])  # torch.load(weights_only=True) takes it back
