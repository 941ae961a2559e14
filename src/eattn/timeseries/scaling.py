"""Values of a series in units of its own deviation around its own mean, and back."""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Values = TypeVar("Values", float, NDArray[np.float64])


class Scale(NamedTuple):
    """x = (y - mean) / std.

    >>> Scale.of(np.array([1.0, np.nan, 3.0])).apply(5.0)
    3.0
    """

    mean: float
    std: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Scale":
        """Of the known values, at least one; constant ones have their own size for a deviation."""
        known = values[~np.isnan(values)]
        mean, std = float(known.mean()), float(known.std())
        if std <= 1e-9 * float(np.abs(known).max()):
            std = abs(mean) or 1.0
        return cls(mean, std)

    def apply(self, values: Values) -> Values:
        return (values - self.mean) / self.std

    def undo(self, values: Values) -> Values:
        return values * self.std + self.mean


def carried_forward(values: NDArray[np.float64], before: float) -> NDArray[np.float64]:
    """Missing values as the last one known; `before` the first.

    >>> carried_forward(np.array([np.nan, 2.0, np.nan, 4.0]), before=1.0).tolist()
    [1.0, 2.0, 2.0, 4.0]
    """
    full = np.concatenate([[before], values])
    known = np.where(np.isnan(full), 0, np.arange(len(full)))
    filled: NDArray[np.float64] = full[np.maximum.accumulate(known)][1:]
    return filled
