"""Packing: every token is read once and predicted once, within its own document."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from eattn.lm import PackedDataset

END = 99
DOCUMENTS = [[1, 2, 3, 4, 5], [6], [], [7, 8], list(range(10, 24))]


@pytest.mark.parametrize("length", [1, 3, 4, 27, 100])
def test_rows_are_the_documents_without_padding(length):
    dataset = PackedDataset(DOCUMENTS, length=length, end=END)
    whole = [token for document in DOCUMENTS for token in (END, *document)]
    tokens, labels, cu_seqlens = dataset.collate(list(range(len(dataset))))
    assert tokens[0].tolist() == whole
    assert labels.tolist() == [*whole[1:], END]
    assert dataset.tokens == len(whole)
    assert len(dataset) == -(-len(whole) // length)
    # A sequence begins at each row and at each document.
    documents = (tokens[0] == END).nonzero().flatten().tolist()
    expected = sorted({*range(0, dataset.tokens, length), *documents, dataset.tokens})
    assert cu_seqlens.tolist() == expected
    assert cu_seqlens.dtype == torch.int32


def test_rows_can_be_in_any_order():
    dataset = PackedDataset(DOCUMENTS, length=4, end=END)
    order = [2, 6, 0]  # the last row, 6, is short
    tokens, labels, cu_seqlens = dataset.collate(order)
    alone = [dataset.collate([n]) for n in order]
    assert torch.equal(tokens, torch.cat([row[0] for row in alone], 1))
    assert torch.equal(labels, torch.cat([row[1] for row in alone]))
    assert torch.equal(cu_seqlens.diff(), torch.cat([row[2].diff() for row in alone]))
    assert alone[1][0].shape == (1, 3)


def test_the_stream_uses_the_smallest_integer_type():
    for token, dtype in ((99, np.uint8), (256, np.uint16), (70_000, np.uint32)):
        assert PackedDataset([[1]], length=2, end=token).stream.dtype == dtype


def test_invalid_input_raises():
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        PackedDataset([[1]], length=0, end=0)
    with pytest.raises(ValueError, match="documents must not be empty"):
        PackedDataset([], length=4, end=0)
