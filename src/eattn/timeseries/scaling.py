"""Values of a series in units of its own deviation around its own mean, and back."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
LIMIT = 1e9  # deviations: what is farther out is cut off, so that nothing overflows


class Scale(NamedTuple):
    """x = (y - mean) / std, within ±LIMIT.

    >>> Scale.of(np.array([1.0, np.nan, 3.0])).apply(np.array([5.0])).tolist()
    [3.0]
    """

    mean: float
    std: float

    @classmethod
    def of(cls, values: Values) -> "Scale":
        """Of the known values, at least one; constant ones have their own size for a deviation."""
        known = values[~np.isnan(values)]
        mean, std = float(known.mean()), float(known.std())
        if std <= 1e-9 * float(np.abs(known).max()):
            std = abs(mean) or 1.0
        return cls(mean, std)

    def apply(self, values: Values) -> Values:
        return ((values - self.mean) / self.std).clip(-LIMIT, LIMIT)

    def undo(self, values: Values) -> Values:
        return values * self.std + self.mean


def carried_forward(values: Values, before: float) -> Values:
    """Missing values as the last one known; `before` the first.

    >>> carried_forward(np.array([np.nan, 2.0, np.nan, 4.0]), before=1.0).tolist()
    [1.0, 2.0, 2.0, 4.0]
    """
    full = np.concatenate([[before], values])
    known = np.where(np.isnan(full), 0, np.arange(len(full)))
    filled: Values = full[np.maximum.accumulate(known)][1:]
    return filled
