"""Decoding states of a model as a `transformers` cache.

Unlike the states of `eattn.nn`, a cache is updated in place by every call that uses it. `fork` and
`snapshot` copy it, to continue from it more than once.

With `rollback=n` the cache also keeps a few earlier states and the inputs of the mixers since the
oldest of them. To remove tokens, it returns to the newest state before them. The next call reads
the tokens in between again, together with its own and in one parallel call, which needs no
feed-forward network for them.

Without rollback, a cache holds only tensors, lists, dicts and classes. The exporters of
`transformers` can take these apart and rebuild them, but not frozen dataclasses.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from eattn._checks import check_size
from eattn.nn import DecodingState
from eattn.nn.base import Mixer
from eattn.nn.decoding_state import rewind

ROLLBACK = 64  # tokens; set by assisted generation
MAX_PENDING = 8  # tokens; more than these are read again separately, which gives a newer state

Inputs = tuple[int, Tensor, Tensor | None]  # first token, inputs [B, L, D], key_mask [B, L]


class EACacheLayer(LinearAttentionCacheLayerMixin):
    """State of one block after the tokens so far, and what is needed to remove tokens again.

    Tokens are numbered from the first one that was recorded, or from the beginning of the text if
    the cache has recorded all tokens.
    """

    is_compileable = False  # keeps `generate` from compiling the model by default

    def __init__(self, rollback: int = 0) -> None:
        super().__init__()
        self.rollback = rollback  # number of tokens that can be removed
        self.every = 0  # number of tokens between saved states; 0 saves none
        self.reset()

    def reset(self) -> None:
        """Remove all states."""
        self.parts: dict[str, Any] | None = None  # newest state as nested dicts
        self.at = 0  # tokens contained in the newest state
        self.end = 0  # tokens read; the newest state lacks the last of them after a crop
        self.earlier: list[tuple[int, Any]] = []  # earlier states after their number of tokens
        self.inputs: list[Inputs] = []  # of the calls since the oldest earlier state
        self.saved: dict[int, Any] = {}  # states by number of tokens, for `every`
        self.has_previous_state[0] = False

    @property
    def state(self) -> DecodingState | None:
        """Newest state: after all tokens, unless tokens were removed since the last call."""
        state: DecodingState | None = _join(self.parts)
        return state

    @property
    def is_recording(self) -> bool:
        """Return True if the next call must use `read`."""
        return bool(self.rollback or self.every or self.at < self.end)

    @property
    def is_croppable(self) -> bool:
        return self.rollback > 0

    @property
    def removable(self) -> int:
        """Number of tokens that `crop` can remove now."""
        oldest = self.earlier[0][0] if self.earlier else self.at
        return min(self.rollback, self.end - oldest)

    def update(self, state: DecodingState | None) -> None:
        """Replace the state."""
        self.parts = _split(state)
        self.has_previous_state[0] = state is not None

    def read(self, mixer: Mixer, u: Tensor, key_mask: Tensor | None) -> Tensor:
        """Apply `mixer` to the inputs u [B, L, D] of new tokens, and record them."""
        L, pending = u.shape[1], self._pending()
        start, ahead = self.at, self.end - self.at
        self.end += L
        if self.rollback:
            self.inputs.append((self.end - L, u, key_mask))
        u, key_mask = _concatenated([*pending, (self.end - L, u, key_mask)])
        outputs = []
        for stop in self._stops(start, ahead):
            now = slice(self.at - start, stop - start)
            mask = None if key_mask is None else key_mask[:, now]
            y, state = _mixed(mixer, u[:, now], mask, self.state)
            outputs.append(y)
            self._advance(stop, state)
        self._trim()
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
        return y[:, ahead:]

    def _pending(self) -> list[Inputs]:
        """Return the inputs of the tokens that the newest state lacks."""
        return [] if self.at == self.end else _since(self.at, self.inputs)

    def _stops(self, start: int, ahead: int) -> list[int]:
        """Return the numbers of tokens after which a state is needed."""
        stops = {self.end}
        if self.rollback:
            stops.add(self.end - self.rollback)
        if ahead > MAX_PENDING:
            stops.add(start + ahead)
        if self.every:
            stops.update(range(start - start % self.every, self.end, self.every))
        return sorted(stop for stop in stops if stop > start)

    def _advance(self, tokens: int, state: DecodingState) -> None:
        """Replace the newest state, and keep it as an earlier one if needed."""
        if self.rollback:
            earlier = self.earlier
            if len(earlier) > 1 and earlier[-1][0] - earlier[-2][0] < self.rollback:
                earlier.pop()
            if not earlier or earlier[-1][0] < self.at:
                earlier.append((self.at, self.parts))
            while len(earlier) > 1 and earlier[1][0] <= self.end - self.rollback:
                earlier.pop(0)
        self.at = tokens
        self.update(state)
        if self.every and tokens % self.every == 0:
            self.saved[tokens] = self.parts

    def _trim(self) -> None:
        """Remove inputs before the oldest earlier state."""
        oldest = self.earlier[0][0] if self.earlier else self.at
        if self.inputs and self.inputs[0][0] < oldest:
            # The copy frees the memory of the inputs before.
            self.inputs = [
                (start, u.clone() if start == oldest else u, mask)
                for start, u, mask in _since(oldest, self.inputs)
            ]

    def crop(self, tokens_to_remove: int) -> int | Tensor:
        """Remove the last -`tokens_to_remove` tokens; return the valid ones among them per row."""
        self.end += tokens_to_remove
        removed: int | Tensor = 0
        while self.inputs and (last := self.inputs[-1])[0] + last[1].shape[1] > self.end:
            start, u, mask = self.inputs.pop()
            kept = max(self.end - start, 0)
            removed = removed + (u.shape[1] - kept if mask is None else mask[:, kept:].sum(1))
            if kept:
                self.inputs.append((start, u[:, :kept], None if mask is None else mask[:, :kept]))
        if self.at > self.end:
            while self.earlier[-1][0] > self.end:
                self.earlier.pop()
            self.at, self.parts = self.earlier[-1]
            self.has_previous_state[0] = self.parts is not None
            rewind(self.state)
        self.saved = {tokens: parts for tokens, parts in self.saved.items() if tokens <= self.end}
        return removed

    def activate_past_recording(self) -> None:
        """Record the tokens from now on, so that at least 64 of them can be removed."""
        self.rollback = max(self.rollback, ROLLBACK)

    def copy_from(self, other: "EACacheLayer") -> None:
        """Copy the newest state of another layer, and the inputs that it lacks."""
        self.reset()
        self.update(pytree.tree_map_only(Tensor, torch.clone, other.state))
        self.at, self.end = other.at, other.end
        self.inputs = pytree.tree_map_only(Tensor, torch.clone, other._pending())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select rows of the batch."""

        def select(parts: Any) -> Any:
            return None if parts is None else _split(_join(parts).select(beam_idx))

        self.parts = select(self.parts)
        self.earlier = [(tokens, select(parts)) for tokens, parts in self.earlier]
        self.saved = {tokens: select(parts) for tokens, parts in self.saved.items()}
        self.inputs = pytree.tree_map_only(
            Tensor, lambda x: x.index_select(0, beam_idx), self.inputs
        )

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors; those of a growing cache may share memory."""
        kept = [self.parts, *(parts for _, parts in self.earlier), *self.saved.values()]
        leaves = pytree.tree_leaves([[_join(parts) for parts in kept], self.inputs])
        yield from (x for x in leaves if isinstance(x, Tensor))

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the model creates the first state."""

    def update_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("an EACache stores entire states: use layers[i].update(state)")

    update_recurrent_state = update_conv_state


class EACache(Cache):
    """Decoding states of all blocks, with the number of tokens read.

    For EA-series, linear attention and recurrences, its size does not depend on that number.

    Parameters
    ----------
    num_layers : int
        Number of blocks of the model.
    rollback : int, default 0
        Number of last tokens that `crop` can remove. The cache then also holds the inputs of up to
        3 * rollback tokens and up to three earlier states.

    Attributes
    ----------
    seen : int
        Number of tokens read per row, including padding.
    lengths : int Tensor, shape (B,), or None
        Number of valid tokens read in each row, which is the position of the next token.

    Examples
    --------
    >>> cache = EACache(12)
    >>> cache.get_seq_length(), cache.nbytes
    (0, 0)
    """

    layers: list[EACacheLayer]

    def __init__(self, num_layers: int, rollback: int = 0) -> None:
        if rollback != 0:
            check_size("rollback", rollback)
        super().__init__(layers=[EACacheLayer(rollback) for _ in range(num_layers)])
        self.lengths: Tensor | None = None
        # Has one element per token read but no memory per token. A number would become a constant
        # of an exported program, while the length of a tensor may vary.
        self.tokens: Tensor | None = None

    @property
    def seen(self) -> int:
        """Number of tokens read per row, including padding."""
        return 0 if self.tokens is None else self.tokens.shape[0]

    @property
    def nbytes(self) -> int:
        """Size in bytes of all states, and of the inputs that are kept to remove tokens."""
        sizes: dict[int, int] = {}
        for x in (x for layer in self.layers for x in layer.tensors()):
            at = x.data_ptr()  # keys and values of an earlier state share the memory of later ones
            sizes[at] = max(sizes.get(at, 0), x.numel() * x.element_size())
        return sum(sizes.values())

    @property
    def rollback(self) -> int:
        """Number of last tokens that `crop` can remove, out of those read since it was set."""
        return self.layers[0].rollback

    @rollback.setter
    def rollback(self, tokens: int) -> None:
        for layer in self.layers:
            layer.rollback = tokens

    @property
    def is_initialized(self) -> bool:
        """True once the cache has read a token."""
        return self.lengths is not None

    @property
    def batch_size(self) -> int:
        """Number of rows; -1 if the cache is empty."""
        return -1 if self.lengths is None else len(self.lengths)

    def advance(self, key_mask: Tensor | None, x: Tensor) -> None:
        """Count the tokens of x [B, L, D]; `key_mask` [B, L] is True for valid tokens."""
        B, L = x.shape[:2]
        if self.lengths is None:
            self.lengths = torch.zeros(B, dtype=torch.long, device=x.device)
        self.lengths = self.lengths + (L if key_mask is None else key_mask.sum(1))
        self.tokens = x.new_zeros(1, dtype=torch.bool).expand(self.seen + L)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens read per row, including padding."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return length and offset of the attention mask."""
        return self.seen + query_length, 0

    def reset(self) -> None:
        """Empty the cache."""
        super().reset()
        self.tokens = self.lengths = None

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, as if they had never been read.

        Parameters
        ----------
        tokens_to_remove : int
            Minus the number of tokens to remove from every row, including padding; 0 does nothing.

        Raises
        ------
        ValueError
            If `tokens_to_remove` is positive, or goes back farther than `rollback` tokens, or to
            tokens that were read before the cache had a rollback or was restored.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                "tokens_to_remove must be minus the number of tokens to remove, got"
                f" {tokens_to_remove}"
            )
        limit = self.layers[0].removable
        if -tokens_to_remove > limit:
            raise ValueError(
                f"cannot remove {-tokens_to_remove} tokens: this EACache has rollback ="
                f" {self.rollback} and can go back {limit} tokens now; create it with"
                f" EACache(num_layers, rollback={max(-tokens_to_remove, self.rollback)})"
            )
        if tokens_to_remove:
            removed, *_ = [layer.crop(tokens_to_remove) for layer in self.layers]
            assert self.lengths is not None and self.tokens is not None
            self.lengths = self.lengths - removed
            self.tokens = self.tokens[:tokens_to_remove]

    def snapshot(self) -> "EACache":
        """Return a copy, which later calls and crops of this cache do not change.

        Takes time and memory for one state. The copy has the same `rollback`, but cannot remove
        tokens that were read before.

        Examples
        --------
        >>> from eattn.hf import EAConfig, EAForCausalLM
        >>> model = EAForCausalLM(EAConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2))
        >>> cache = EACache(2)
        >>> _ = model(torch.tensor([[1, 2, 3]]), past_key_values=cache)
        >>> snapshot = cache.snapshot()
        >>> _ = model(torch.tensor([[4, 5]]), past_key_values=cache)
        >>> cache.restore(snapshot)
        >>> cache.seen
        3
        """
        copy = EACache(len(self.layers), self.rollback)
        copy.restore(self)
        return copy

    def restore(self, snapshot: "EACache") -> None:
        """Continue from the tokens of a snapshot, which stays valid. The rollback is unchanged.

        Parameters
        ----------
        snapshot : EACache
            Cache of the same model.
        """
        if len(snapshot.layers) != len(self.layers):
            raise ValueError(
                f"snapshot must have {len(self.layers)} layers, got {len(snapshot.layers)}"
            )
        for layer, other in zip(self.layers, snapshot.layers, strict=True):
            layer.copy_from(other)
        self.lengths, self.tokens = snapshot.lengths, snapshot.tokens

    def fork(self, n: int) -> "list[EACache]":
        """Return `n` independent snapshots, for different continuations of the same tokens."""
        return [self.snapshot() for _ in range(check_size("n", n))]

    def states(self) -> Iterator[tuple[int, list[DecodingState]]]:
        """Yield the states of all blocks after some numbers of tokens, the newest ones last."""
        saved = [{**layer.saved, layer.at: layer.parts} for layer in self.layers]
        newest = self.layers[0].at
        for at in sorted(saved[0]):
            if all(parts[at] is not None for parts in saved):
                # Without recording, a layer does not count the tokens.
                tokens = self.seen - self.layers[0].end + at if at == newest else at
                yield tokens, [_join(parts[at]) for parts in saved]

    def load(self, states: list[DecodingState], tokens: int) -> None:
        """Continue one text without padding from the states of all blocks after `tokens` tokens."""
        self.reset()
        device = pytree.tree_leaves(states)[0].device
        for layer, state in zip(self.layers, states, strict=True):
            layer.update(state)
            layer.at = layer.end = tokens
        self.lengths = torch.tensor([tokens], device=device)
        self.tokens = torch.zeros(1, dtype=torch.bool, device=device).expand(tokens)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows `beam_idx`, shape (n,), of the batch, in this order."""
        super().reorder_cache(beam_idx)
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows of the batch by index or by a bool mask."""
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        if self.lengths is not None:
            rows = torch.arange(len(self.lengths), device=self.lengths.device)
            self.reorder_cache(rows.repeat_interleave(repeats))


def _mixed(
    mixer: Mixer, u: Tensor, key_mask: Tensor | None, state: DecodingState | None
) -> tuple[Tensor, DecodingState]:
    """Return the output of a mixer and the state after the inputs u [B, L, D]."""
    if u.shape[1] > 1 or key_mask is not None:
        options: Any = dict(state=state, return_state=True, _checked=True)
        y, state = mixer(u, key_mask=key_mask, **options)
        return y, state
    y, state = mixer.step(u.squeeze(1), state)
    return y.unsqueeze(1), state


def _since(tokens: int, inputs: list[Inputs]) -> list[Inputs]:
    """Return the inputs after the first `tokens` tokens."""
    found: list[Inputs] = []
    for start, u, mask in reversed(inputs):
        if start < tokens:
            before = tokens - start
            if before < u.shape[1]:
                mask = None if mask is None else mask[:, before:]
                found.append((tokens, u[:, before:], mask))
            break
        found.append((start, u, mask))
    return found[::-1]


def _concatenated(inputs: list[Inputs]) -> tuple[Tensor, Tensor | None]:
    """Return the inputs of consecutive calls as those of one call."""
    if len(inputs) == 1:
        return inputs[0][1:]
    u = torch.cat([x for _, x, _ in inputs], 1)
    if all(mask is None for *_, mask in inputs):
        return u, None
    masks = [x.new_ones(x.shape[:2], dtype=torch.bool) if m is None else m for _, x, m in inputs]
    return u, torch.cat(masks, 1)


def _split(state: Any) -> Any:
    """Return a state as nested dicts with the class and the fields of each dataclass in it."""
    if not is_dataclass(state):
        return state
    return {"class": type(state), **{name: _split(x) for name, x in vars(state).items()}}


def _join(parts: Any) -> Any:
    """Return the state that `_split` took apart."""
    if not isinstance(parts, dict):
        return parts
    return parts["class"](**{name: _join(x) for name, x in parts.items() if name != "class"})
