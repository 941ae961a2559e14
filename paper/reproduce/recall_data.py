"""Multi-query associative recall (MQAR), as Zoology has it: pairs of key and value, then queries.

Arora et al., 2023: what a model with a small state finds hard. Keys and values are drawn from two
halves of the vocabulary, no key twice in a case. Later each key comes once more, the sooner the
likelier, between random tokens, and its value is to be foretold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

POWER = 0.01  # how much likelier an early place of a query is than a late one
NO_LABEL = -100


class Recall(NamedTuple):
    """Tokens, and what is to be foretold after each of them, -100 for nothing: [cases, length]."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]


def recall(cases: int, *, pairs: int, length: int, vocab: int, rng: np.random.Generator) -> Recall:
    """Cases of so many pairs in so many tokens, of 0 to vocab - 1.

    >>> tokens, labels = recall(2, pairs=4, length=16, vocab=32, rng=np.random.default_rng(0))
    >>> tokens.shape, int((labels != NO_LABEL).sum())
    ((2, 16), 8)
    """
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, got {pairs}")
    if length < 4 * pairs or length % 2:
        raise ValueError(f"length must be even and at least 4 pairs = {4 * pairs}, got {length}")
    keys_of, context = vocab // 2, 2 * pairs
    if keys_of - 1 < pairs:
        raise ValueError(f"vocab must be at least {2 * pairs + 2} for {pairs} pairs, got {vocab}")
    keys = 1 + _without_repeats(rng, cases, keys_of - 1, pairs)
    values = keys_of + _without_repeats(rng, cases, vocab - keys_of, pairs)
    tokens = np.zeros((cases, length), np.int64)
    tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
    space = (length - context) // 2
    weights = np.power(np.arange(1, space + 1), POWER - 1, dtype=np.float64)
    places = context + 2 * _without_repeats(rng, cases, space, pairs, weights)
    np.put_along_axis(tokens, places, keys, 1)
    labels = np.full_like(tokens, NO_LABEL)
    np.put_along_axis(labels, places, values, 1)
    empty = tokens == 0
    tokens[empty] = rng.integers(vocab, size=int(empty.sum()))
    return Recall(tokens, labels)


def _without_repeats(
    rng: np.random.Generator,
    cases: int,
    count: int,
    wanted: int,
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """`wanted` different ones of `count` for each case, [cases, wanted], in random order.

    Those with the shortest waiting times; a weight makes one's time shorter on average.
    """
    times = rng.exponential(size=(cases, count))
    if weights is not None:
        times = times / weights
    return np.argsort(times, axis=1)[:, :wanted]
