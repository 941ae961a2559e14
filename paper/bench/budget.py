"""The longest sequence that fits a memory budget: predicted from few points, then searched for."""

import re
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np

UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{name}i": 2 ** (10 * power) for power, name in enumerate("KMGT", 1)}
GRAIN = 32  # tokens: every length tried is a multiple
GAP = 0.05  # how much longer than the longest that fits the one may be that does not
ATTEMPTS = 12  # that a search may take


def parse_bytes(text: str) -> int:
    """`8GiB`, `500 MB` or `1e9` as bytes."""
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*([KMGT]?i?)B?\s*", text)
    try:
        size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size <= 0:
        raise ValueError(f"budget must be a size such as 8GiB or 500MB, got {text!r}")
    return size


class Memory(NamedTuple):
    """Bytes of a step on B sequences of L tokens: fixed + B (linear L + quadratic L^2)."""

    fixed: float
    linear: float
    quadratic: float

    def bytes(self, batch: int, length: float) -> float:
        return self.fixed + batch * (self.linear * length + self.quadratic * length**2)

    def longest(self, batch: int, room: float) -> float:
        """The L at which a step takes all the room; 0 if there is none."""
        a, b, c = batch * self.quadratic, batch * self.linear, self.fixed - room
        if c >= 0:
            return 0.0
        # The root that does not subtract nearly equal numbers, nor divide by a = 0.
        return float(-2 * c / (b + (b * b - 4 * a * c) ** 0.5))


def fit(points: Iterable[tuple[int, int, float]]) -> Memory:
    """From (batch, length, bytes), by least squares of the relative error, no term below 0."""
    found = np.array(list(points), dtype=float)
    if len({length for _, length, _ in found}) < 3:
        raise LookupError(f"a memory model needs three lengths, got {len(found)} points")
    batch, length, size = found.T
    terms = np.stack([np.ones_like(size), batch * length, batch * length**2], 1) / size[:, None]
    best, least = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            some = terms[:, chosen]
            values = np.linalg.lstsq(some, np.ones_like(size), rcond=None)[0]
            error = float(np.square(some @ values - 1).sum())
            if (values >= 0).all() and error < least and {1, 2} & {*chosen}:
                best, least = np.zeros(3), error
                best[list(chosen)] = values
    return Memory(*best.tolist())


class Found(NamedTuple):
    """The longest that fitted and the shortest that did not, None where there was none."""

    fits: int | None
    fails: int | None


def search(first: float, fits: Callable[[int], bool]) -> Found:
    """From a first guess to two lengths at most GAP apart, one that fits and one that does not.

    A good guess takes two tries; from a bad one the strides double until both sides are known, and
    the rest is halved.
    """
    low: int | None = None
    high: int | None = None
    length, stride = max(GRAIN, _round(first)), GAP
    for _ in range(ATTEMPTS):
        if fits(length):
            low = length
        else:
            high = length
        if low is None and high == GRAIN:
            break
        if low is not None and high is not None:
            if high - low <= GRAIN or high <= low * (1 + GAP):
                break
            length = min(max(_round((low * high) ** 0.5), low + GRAIN), high - GRAIN)
        elif low is not None:
            length = max(_round(low * (1 + stride)), low + GRAIN)
            stride *= 2
        else:
            length = max(GRAIN, min(_round(length / (1 + stride)), length - GRAIN))
            stride *= 2
    return Found(low, high)


def _round(length: float) -> int:
    return int(length) // GRAIN * GRAIN
