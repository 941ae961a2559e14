"""Quantiles from the errors on validation windows: split conformal prediction."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_quantiles(quantiles: Any) -> tuple[float, ...]:
    """Return the levels in rising order, none for None, or raise."""
    if quantiles is None:
        return ()
    try:
        levels = tuple(sorted(float(q) for q in quantiles))
    except (TypeError, ValueError):
        raise TypeError(f"quantiles must be numbers, as (0.1, 0.9), got {quantiles!r}") from None
    if not all(0 < q < 1 for q in levels) or len(set(levels)) != len(levels):
        raise ValueError(
            f"quantiles must be between 0 and 1 and none twice, as (0.1, 0.9), got {quantiles!r}"
        )
    return levels


def error_quantiles(errors: NDArray[np.float64], levels: Sequence[float]) -> NDArray[np.float64]:
    """Return the offset to add to a forecast for each level and step: [n, H] -> [levels, H].

    It is the error of rank (n + 1) level, rounded away from the median and clipped to 1..n. For
    exchangeable errors at least that share lies on that side of it. NaN is not counted.

    >>> error_quantiles(np.arange(1.0, 10.0)[:, None], [0.1, 0.5, 0.95]).tolist()
    [[1.0], [5.0], [9.0]]
    """
    columns = [np.sort(column[~np.isnan(column)]) for column in errors.T]
    table = [[column[_rank(len(column), q)] for column in columns] for q in levels]
    return np.array(table).reshape(len(levels), len(columns))


def _rank(n: int, level: float) -> int:
    """Return the rank, from 0."""
    exact = round((n + 1) * level, 9)  # 0.1 is not exactly a tenth
    rank = math.floor(exact) if level < 0.5 else math.ceil(exact)
    return min(max(rank, 1), n) - 1


def extend(offsets: NDArray[np.float64], horizon: int) -> NDArray[np.float64]:
    """Return [levels, H] as [levels, horizon]; steps beyond H repeat the last one."""
    steps = np.minimum(np.arange(horizon), offsets.shape[1] - 1)
    return offsets[:, steps]
