"""What a model remembers while it generates, as `transformers` wants a cache to be.

Unlike the states of `eattn.nn`, which never change, a cache is updated by every call it is given
to; `copy.deepcopy` keeps one to go on from twice.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from eattn.nn import DecodingState

ROLLBACK = (
    "a cache of sums cannot forget the tokens it has read last, so nothing that tries tokens and"
    " takes them back (assisted, speculative and prompt lookup decoding) works with it"
)


class EACacheLayer(LinearAttentionCacheLayerMixin):
    """The state of one block after the tokens so far; None before the first."""

    is_compileable = False  # `generate` must not compile unasked; `torch.compile` of the model does
    is_croppable = False

    def __init__(self) -> None:
        super().__init__()
        self.state: DecodingState | None = None

    def update(self, state: DecodingState) -> None:
        self.state = state
        self.has_previous_state[0] = True

    def reset(self) -> None:
        self.state = None
        self.has_previous_state[0] = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(beam_idx)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the first state comes from the model."""

    def update_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("an EACache takes whole states: layers[i].update(state)")

    update_recurrent_state = update_conv_state

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise NotImplementedError(ROLLBACK)

    def activate_past_recording(self) -> NoReturn:
        raise NotImplementedError(ROLLBACK)


class EACache(Cache):
    """States of every block, the number of columns read, and of valid tokens in each row.

    With a series its size in bytes, `nbytes`, does not depend on how many tokens there were.

    >>> cache = EACache(12)
    >>> cache.get_seq_length(), cache.nbytes
    (0, 0)
    """

    layers: list[EACacheLayer]

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[EACacheLayer() for _ in range(num_layers)])
        self.seen = 0
        self.lengths: Tensor | None = None  # [B]: valid tokens so far, the position of the next

    @property
    def nbytes(self) -> int:
        """Bytes held for the tokens so far."""
        return sum(layer.state.nbytes for layer in self.layers if layer.state is not None)

    @property
    def batch_size(self) -> int:
        return -1 if self.lengths is None else len(self.lengths)

    def advance(self, key_mask: Tensor | None, x: Tensor) -> None:
        """Count the columns of x [B, L, D], of which key_mask [B, L] says which are tokens."""
        B, L = x.shape[:2]
        if self.lengths is None:
            self.lengths = torch.zeros(B, dtype=torch.long, device=x.device)
        self.lengths = self.lengths + (L if key_mask is None else key_mask.sum(1))
        self.seen += L

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def reset(self) -> None:
        super().reset()
        self.seen, self.lengths = 0, None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows `beam_idx` of the batch, repeated or reordered as beam search needs."""
        super().reorder_cache(beam_idx)
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.lengths is not None:
            rows = torch.arange(len(self.lengths), device=self.lengths.device)
            self.reorder_cache(rows.repeat_interleave(repeats))
