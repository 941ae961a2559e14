"""Scale series by mean and standard deviation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONSTANT = 1e-12  # a smaller standard deviation, relative to the largest value, is rounding


@dataclass(frozen=True, eq=False)
class Scaler:
    """Standardise values [..., n] along the last axis; NaN stays NaN.

    >>> scaler = Scaler.fit(np.array([1.0, np.nan, 3.0]), limit=100.0)
    >>> scaler.transform(np.array([5.0])).tolist()
    [3.0]
    """

    mean: Any  # [...] or a float
    std: Any
    limit: float  # scaled values are clipped to ±limit to avoid overflow

    @classmethod
    def fit(cls, values: NDArray[Any], *, limit: float) -> "Scaler":
        """Compute mean and std of the known values; the std of a constant is its magnitude."""
        values = values.astype(np.float64)
        missing = np.isnan(values)
        count = np.maximum((~missing).sum(-1), 1)
        seen = np.where(missing, 0.0, values)
        size = np.abs(seen).max(-1)
        size = np.where(size == 0, 1.0, size)
        seen /= size[..., None]  # squares of large values must not overflow
        mean = seen.sum(-1) / count
        apart = np.where(missing, 0.0, seen - mean[..., None])
        std = np.sqrt((apart**2).sum(-1) / count)
        return cls(mean * size, np.where(std <= CONSTANT, 1.0, std) * size, limit)

    def transform(self, values: NDArray[Any]) -> NDArray[np.float64]:
        mean, std = np.expand_dims(self.mean, -1), np.expand_dims(self.std, -1)
        scaled: NDArray[np.float64] = (values.astype(np.float64) - mean) / std
        return scaled.clip(-self.limit, self.limit)
