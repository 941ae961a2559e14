"""Decoding states of a model as a `transformers` cache.

Unlike the states of `eattn.nn`, a cache is updated in place by every call that uses it. Copy it
with `copy.deepcopy` to continue from it more than once.

A cache holds only tensors, lists, dicts and classes. The exporters of `transformers` can take these
apart and rebuild them, but not frozen dataclasses.
"""

from dataclasses import is_dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from eattn.nn import DecodingState

ROLLBACK = (
    "an EACache cannot remove tokens it has read, as decoding that may reject tokens requires"
    " (assisted, speculative and prompt lookup decoding)"
)


class EACacheLayer(LinearAttentionCacheLayerMixin):
    """State of one block after the tokens so far; None before the first token."""

    is_compileable = False  # keeps `generate` from compiling the model by default
    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, Any] | None = None  # the state as nested dicts

    @property
    def state(self) -> DecodingState | None:
        """State after the tokens so far."""
        state: DecodingState | None = _join(self.parts)
        return state

    def update(self, state: DecodingState) -> None:
        """Replace the state."""
        self.parts = _split(state)
        self.has_previous_state[0] = True

    def reset(self) -> None:
        """Remove the state."""
        self.parts = None
        self.has_previous_state[0] = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select rows of the batch."""
        if (state := self.state) is not None:
            self.parts = _split(state.select(beam_idx))

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the model creates the first state."""

    def update_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("an EACache stores entire states: use layers[i].update(state)")

    update_recurrent_state = update_conv_state

    def crop(self, tokens_to_remove: int) -> None:
        """Raise unless there is nothing to remove."""
        if tokens_to_remove:
            raise NotImplementedError(ROLLBACK)

    def activate_past_recording(self) -> NoReturn:
        raise NotImplementedError(ROLLBACK)


class EACache(Cache):
    """Decoding states of all blocks, with the number of tokens read.

    For EA-series, linear attention and recurrences, its size does not depend on that number.

    Parameters
    ----------
    num_layers : int
        Number of blocks of the model.

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

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[EACacheLayer() for _ in range(num_layers)])
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
        """Size of all states in bytes."""
        states = [layer.state for layer in self.layers]
        return sum(state.nbytes for state in states if state is not None)

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
