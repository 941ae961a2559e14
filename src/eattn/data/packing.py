"""Pack documents end to end into rows of equal length, without padding."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Rows end to end: tokens and the token after each, [n], and offsets of the sequences."""

    tokens: Ints
    labels: Ints
    cu_seqlens: NDArray[np.int32]  # [sequences + 1]


class Packed:
    """Rows of `length` tokens, the last one shorter, of documents with `end` before each of them.

    A document that exceeds a row continues in the next row as a sequence of its own. `end` begins
    a document and is the label of its last token.

    >>> packed = Packed([[1, 2, 3], [4]], length=4, end=0)
    >>> packed.rows([0, 1])
    Rows(tokens=array([0, 1, 2, 3, 0, 4]), labels=array([1, 2, 3, 0, 4, 0]), \
cu_seqlens=array([0, 4, 6], dtype=int32))
    """

    def __init__(self, documents: Iterable[ArrayLike], *, length: int, end: int) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        parts = [np.append(end, np.asarray(document, np.int64)) for document in documents]
        if not parts:
            raise ValueError("documents must not be empty, got none")
        self.length = length
        self.starts = np.cumsum([0, *map(len, parts[:-1])])
        stream = np.append(np.concatenate(parts), end)
        self.stream = stream.astype(np.min_scalar_type(int(stream.max())))  # saves memory

    @property
    def tokens(self) -> int:
        """Number of tokens that are read, and predicted."""
        return len(self.stream) - 1

    def __len__(self) -> int:
        return -(-self.tokens // self.length)

    def rows(self, numbers: Sequence[int]) -> Rows:
        """Return these rows in this order."""
        spans = [(n * self.length, min((n + 1) * self.length, self.tokens)) for n in numbers]
        at = np.concatenate([np.arange(a, b) for a, b in spans])
        # A sequence starts at the first token of a row and at that of a document.
        document = self.starts[np.searchsorted(self.starts, at, side="right") - 1]
        first = np.flatnonzero((at % self.length == 0) | (at == document))
        cu_seqlens = np.append(first, len(at)).astype(np.int32)
        stream = self.stream
        return Rows(stream[at].astype(np.int64), stream[at + 1].astype(np.int64), cu_seqlens)
