"""Documents end to end, cut into rows of one length: every token is read once, none is padding."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """Some rows end to end: tokens and the token after each, [n], and offsets of sequences."""

    tokens: Ints
    labels: Ints
    cu_seqlens: NDArray[np.int32]  # [sequences + 1]; no sequence knows of another


class Packed:
    """Rows of `length` tokens, the last one shorter, of documents with `end` before and between.

    A document that goes over the end of a row goes on in the next as a sequence of its own. `end`
    begins a document, and is what follows its last token.

    >>> packed = Packed([[1, 2, 3], [4]], length=4, end=0)
    >>> packed.rows([0, 1])
    Rows(tokens=array([0, 1, 2, 3, 0, 4]), labels=array([1, 2, 3, 0, 4, 0]), \
cu_seqlens=array([0, 4, 6], dtype=int32))
    """

    def __init__(self, documents: Iterable[ArrayLike], *, length: int, end: int) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        parts: list[Ints] = []
        for document in documents:
            parts += [np.array([end]), np.asarray(document, dtype=np.int64)]
        if not parts:
            raise ValueError("documents must not be empty, got none")
        self.length = length
        sizes = np.array([len(part) for part in parts])
        self.starts = np.concatenate([[0], sizes.cumsum()[1:-1:2]])
        whole = np.concatenate([*parts, [end]])
        # As narrow as it can be: a text is held once, and looked at for a long time.
        self.stream = whole.astype(np.min_scalar_type(int(whole.max())))

    @property
    def tokens(self) -> int:
        """How many are read, and as many predicted."""
        return len(self.stream) - 1

    def __len__(self) -> int:
        return -(-self.tokens // self.length)

    def rows(self, numbers: Sequence[int]) -> Rows:
        """These rows in this order."""
        spans = [(n * self.length, min((n + 1) * self.length, self.tokens)) for n in numbers]
        at = np.concatenate([np.arange(a, b) for a, b in spans])
        offsets, before = [np.zeros(1, np.int64)], 0
        for a, b in spans:
            first, last = np.searchsorted(self.starts, [a + 1, b])
            offsets += [self.starts[first:last] - a + before, np.array([before + b - a])]
            before += b - a
        cu_seqlens = np.concatenate(offsets).astype(np.int32)
        stream = self.stream
        return Rows(stream[at].astype(np.int64), stream[at + 1].astype(np.int64), cu_seqlens)
