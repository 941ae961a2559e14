"""Packing: every token is read once and predicted once, within its own document."""

import numpy as np
import pytest

from eattn.lm.dataset import PackedDataset

END = 99
DOCUMENTS = [[1, 2, 3, 4, 5], [6], [], [7, 8], list(range(10, 24))]


def packed(length: int = 4) -> PackedDataset:
    return PackedDataset(DOCUMENTS, length=length, end=END)


@pytest.mark.parametrize("length", [1, 3, 4, 27, 100])
def test_rows_are_the_documents_without_padding(length):
    rows = packed(length)
    whole = [token for document in DOCUMENTS for token in (END, *document)]
    found = rows.rows(range(len(rows)))
    assert found.tokens.tolist() == whole
    assert found.labels.tolist() == [*whole[1:], END]
    assert rows.tokens == len(whole)
    assert len(rows) == -(-len(whole) // length)
    # A sequence begins at each row and at each document.
    documents = np.flatnonzero(found.tokens == END)
    expected = sorted({*range(0, rows.tokens, length), *documents.tolist(), rows.tokens})
    assert found.cu_seqlens.tolist() == expected
    assert found.cu_seqlens.dtype == np.int32


def test_rows_may_come_in_any_order():
    rows = packed()
    found = rows.rows([2, 6, 0])  # the last one, 6, is short
    alone = [rows.rows([n]) for n in (2, 6, 0)]
    assert found.tokens.tolist() == np.concatenate([row.tokens for row in alone]).tolist()
    assert found.labels.tolist() == np.concatenate([row.labels for row in alone]).tolist()
    lengths = [length for row in alone for length in np.diff(row.cu_seqlens)]
    assert np.diff(found.cu_seqlens).tolist() == lengths
    assert len(rows.rows([6]).tokens) == 3


def test_stream_uses_the_smallest_integer_type():
    assert packed().stream.dtype == np.uint8
    assert PackedDataset([[1]], length=2, end=256).stream.dtype == np.uint16
    assert PackedDataset([[70_000]], length=2, end=256).stream.dtype == np.uint32


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        PackedDataset([[1]], length=0, end=0)
    with pytest.raises(ValueError, match="documents must not be empty"):
        PackedDataset([], length=4, end=0)
