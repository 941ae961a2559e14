"""Adaptive conformal calibration: keep the coverage of quantiles right while a series drifts.

The distance of each quantile from the median is multiplied by a factor, one per level and step
ahead. After each observation, a factor grows if the value lies outside its quantile, and shrinks
a little if it does not, so that in the long run the right share of values lies outside. Factors
exist for the steps 1, 2, 4, ... and are interpolated in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RATE = 0.05  # of learning, in log factors
LARGEST = 3.0  # log factor
PRIOR = 300  # validation windows as many as which the trained quantiles count


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


@dataclass(frozen=True)
class Calibration:
    """Apply and update log factors [steps, levels] of the quantiles of `horizon` steps."""

    levels: tuple[float, ...]  # ascending, with 0.5
    horizon: int

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Steps ahead that have factors."""
        powers = 2 ** np.arange(self.horizon.bit_length())
        return np.unique(np.append(powers[powers < self.horizon], self.horizon))

    @cached_property
    def mix(self) -> Array:
        """Weights of the factors at each step ahead: [horizon, steps]."""
        ahead, known = np.log(np.arange(1, self.horizon + 1)), np.log(self.steps)
        rows = [np.interp(ahead, known, one) for one in np.eye(len(known))]
        return np.stack(rows, -1)

    @cached_property
    def _outside(self) -> tuple[Array, Array]:
        """The direction from the median of each level, and the share of values beyond it."""
        levels = np.array(self.levels)
        return np.sign(levels - 0.5), np.minimum(levels, 1 - levels)

    def initial(self) -> Array:
        """Return factors of 1."""
        return np.zeros((len(self.steps), len(self.levels)))

    def fit(self, quantiles: Array, values: Array) -> Array:
        """Return factors from quantiles [windows, horizon, levels] and values with NaN."""
        direction, beyond = self._outside
        found = self.initial()
        for row, step in enumerate(self.steps):
            q, y = quantiles[:, step - 1], values[:, step - 1]
            q, y = q[np.isfinite(y)], y[np.isfinite(y)]
            if not len(y):
                continue
            middle = q[:, [self.levels.index(0.5)]]
            ratio = (y[:, None] - middle) * direction / np.maximum(np.abs(q - middle), 1e-9)
            for column, share in enumerate(beyond):
                if direction[column]:
                    factor = np.quantile(ratio[:, column], 1 - share)
                    found[row, column] = (
                        np.log(np.clip(factor, 0.05, 20)) * len(y) / (len(y) + PRIOR)
                    )
        return found

    def apply(self, factors: Array, quantiles: Array) -> Array:
        """Return calibrated quantiles [..., horizon, levels]; factors are [..., steps, levels]."""
        return self.apply_one(self.mix[: quantiles.shape[-2]] @ factors, quantiles)

    def apply_one(self, factors: Array, quantiles: Array) -> Array:
        """Return calibrated quantiles [..., levels] from their factors; they do not cross."""
        half = self.levels.index(0.5)
        middle = quantiles[..., half : half + 1]
        apart = (quantiles - middle) * np.exp(factors)
        upper = np.maximum.accumulate(apart[..., half:], -1)
        lower = np.minimum.accumulate(apart[..., half::-1], -1)[..., :0:-1]
        result: Array = middle + np.concatenate([lower, upper], -1)
        return result

    def bound(self, quantiles: Array, lower: Any) -> Array:
        """Return quantiles [..., levels] of at least `lower`, which do not shrink to a point.

        Where even the median is lower, all quantiles are shifted until it is `lower`.
        """
        half = self.levels.index(0.5)
        shift = np.maximum(lower - quantiles[..., half : half + 1], 0.0)
        result: Array = np.maximum(quantiles + shift, lower)
        return result

    def update(self, factors: Array, step: int, quantiles: Array, value: float) -> Array:
        """Return the factors after a value whose calibrated quantiles [levels] were these.

        `step` is an index into `steps`.
        """
        direction, beyond = self._outside
        missed = (value - quantiles) * direction > 0
        after = factors.copy()
        after[step] += RATE * np.abs(direction) * (missed - beyond)
        return after.clip(-LARGEST, LARGEST)


def all_levels(quantiles: Sequence[float]) -> tuple[float, ...]:
    """Return the levels to train: 0.1, ..., 0.9 and those that are asked for."""
    return tuple(sorted({round(i / 10, 1) for i in range(1, 10)} | set(quantiles)))
