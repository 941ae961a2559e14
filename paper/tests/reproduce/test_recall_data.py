"""Associative recall: pairs first, then each key once more, and its value is the label."""

import numpy as np
import pytest

from paper.reproduce.recall_data import NO_LABEL, recall

CASES, PAIRS, LENGTH, VOCAB = 50, 7, 40, 64


def made(seed: int = 0):
    rng = np.random.default_rng(seed)
    return recall(CASES, pairs=PAIRS, length=LENGTH, vocab=VOCAB, rng=rng)


def test_every_key_is_asked_for_once_and_its_value_is_the_label():
    tokens, labels = made()
    assert tokens.shape == labels.shape == (CASES, LENGTH)
    for case, label in zip(tokens, labels, strict=True):
        pairs = dict(zip(case[0 : 2 * PAIRS : 2], case[1 : 2 * PAIRS : 2], strict=True))
        assert len(pairs) == PAIRS
        assert all(1 <= key < VOCAB // 2 <= value < VOCAB for key, value in pairs.items())
        assert len(set(pairs.values())) == PAIRS
        (asked,) = np.nonzero(label != NO_LABEL)
        assert asked.min() >= 2 * PAIRS
        assert (asked % 2 == 0).all()  # a query has room for its answer
        assert sorted(case[asked]) == sorted(pairs)
        assert [pairs[key] for key in case[asked]] == label[asked].tolist()


def test_cases_differ_and_a_seed_decides():
    assert (made().tokens == made().tokens).all()
    assert (made(1).tokens != made().tokens).mean() > 0.8
    assert len(np.unique(made().tokens[:, 0])) > 10


def test_queries_come_early_rather_than_late():
    _, labels = recall(500, pairs=2, length=64, vocab=64, rng=np.random.default_rng(0))
    places = np.nonzero(labels != NO_LABEL)[1]
    assert np.median(places) < 24
    assert places.max() > 50


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(length=26), "even and at least 4 pairs = 28, got 26"),
        (dict(length=41), "even and at least 4 pairs = 28, got 41"),
        (dict(vocab=14), "vocab must be at least 16 for 7 pairs, got 14"),
        (dict(pairs=0), "pairs must be at least 1, got 0"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(change, reason):
    options = dict(pairs=PAIRS, length=LENGTH, vocab=VOCAB) | change
    with pytest.raises(ValueError, match=reason):
        recall(1, **options, rng=np.random.default_rng(0))
