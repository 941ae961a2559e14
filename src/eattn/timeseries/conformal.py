"""Split conformal prediction: quantiles from the errors on validation windows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_quantiles(quantiles: Any) -> tuple[float, ...]:
    """Return the levels in ascending order; an empty tuple for None."""
    if quantiles is None:
        return ()
    try:
        levels = tuple(sorted(float(q) for q in quantiles))
    except (TypeError, ValueError):
        raise TypeError(
            f"quantiles must be numbers such as (0.1, 0.9), got {quantiles!r}"
        ) from None
    if not all(0 < q < 1 for q in levels) or len(set(levels)) != len(levels):
        raise ValueError(f"quantiles must be distinct and between 0 and 1, got {quantiles!r}")
    return levels


def error_quantiles(errors: NDArray[np.float64], levels: Sequence[float]) -> NDArray[np.float64]:
    """Return the offset to add to a forecast for each level and step: [n, H] -> [levels, H].

    The offset is the error of rank (n + 1) level, rounded away from the median and clipped to
    1..n. If errors are exchangeable, at least that fraction lies on its side. NaN is ignored.

    >>> error_quantiles(np.arange(1.0, 10.0)[:, None], [0.1, 0.5, 0.95]).tolist()
    [[1.0], [5.0], [9.0]]
    """
    columns = [np.sort(column[~np.isnan(column)]) for column in errors.T]
    table = [[column[_rank(len(column), q)] for column in columns] for q in levels]
    return np.array(table).reshape(len(levels), len(columns))


def _rank(n: int, level: float) -> int:
    """Return the zero-based rank of a level among n sorted errors."""
    exact = round((n + 1) * level, 9)  # removes the rounding error of levels such as 0.1
    rank = math.floor(exact) if level < 0.5 else math.ceil(exact)
    return min(max(rank, 1), n) - 1


def extend(offsets: NDArray[np.float64], horizon: int) -> NDArray[np.float64]:
    """Extend offsets [levels, H] to [levels, horizon] by repeating the last step."""
    steps = np.minimum(np.arange(horizon), offsets.shape[1] - 1)
    return offsets[:, steps]
