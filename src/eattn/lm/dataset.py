"""Pack documents end to end into rows of equal length, without padding."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from eattn._checks import check_size

Batch = tuple[Tensor, Tensor, Tensor]  # tokens [1, n], the next token of each [n], cu_seqlens


class PackedDataset:
    """Rows of `length` tokens, the last one shorter; a batch is one row of packed sequences.

    A document that exceeds a row continues in the next row as a separate sequence. The token
    `end` begins every document and is the label of its last token.

    Examples
    --------
    >>> dataset = PackedDataset([[1, 2, 3], [4]], length=4, end=0)
    >>> dataset.collate([0, 1])
    (tensor([[0, 1, 2, 3, 0, 4]]), tensor([1, 2, 3, 0, 4, 0]), tensor([0, 4, 6], dtype=torch.int32))
    """

    def __init__(self, documents: Iterable[ArrayLike], *, length: int, end: int) -> None:
        self.length = check_size("length", length)
        parts = [np.append(end, np.asarray(document, np.int64)) for document in documents]
        if not parts:
            raise ValueError("documents must not be empty, got none")
        self.starts = np.cumsum([0, *map(len, parts[:-1])])
        stream = np.append(np.concatenate(parts), end)
        self.stream = stream.astype(np.min_scalar_type(int(stream.max())))  # saves memory

    @property
    def tokens(self) -> int:
        """Number of tokens that are read, and predicted."""
        return len(self.stream) - 1

    def __len__(self) -> int:
        return -(-self.tokens // self.length)

    def collate(self, indices: list[int]) -> Batch:
        """Return these rows in this order."""
        spans = [(n * self.length, min((n + 1) * self.length, self.tokens)) for n in indices]
        at = np.concatenate([np.arange(a, b) for a, b in spans])
        # A sequence starts at the first token of a row and at that of a document.
        document = self.starts[np.searchsorted(self.starts, at, side="right") - 1]
        first = np.flatnonzero((at % self.length == 0) | (at == document))
        cu_seqlens = np.append(first, len(at)).astype(np.int32)
        tokens, labels = (self.stream[i].astype(np.int64) for i in (at, at + 1))
        return torch.from_numpy(tokens)[None], torch.from_numpy(labels), torch.tensor(cu_seqlens)
