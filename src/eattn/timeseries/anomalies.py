"""Anomaly scores: how unlikely a value was, compared with earlier surprises of the series.

A value far outside its forecast is a surprise. Some series are surprising often, so the mean of the
last surprises is compared with the distribution of all earlier ones, which decays slowly.
"""

import math
from typing import NamedTuple

RECENT, USUAL = 0.15, 0.002  # rates of the recent mean and of the distribution
LARGEST = 30.0  # distances from the median to its quantile: larger errors are clipped
DIGITS = 7.0  # a probability of 10^-7 has the score 1


class Surprise(NamedTuple):
    """Recent mean of the surprises of a series, and mean and variance of all of them."""

    values: int = 0  # number of them
    recent: float = 0.0
    mean: float = 0.0
    variance: float = 1.0

    def score(self, y: float, low: float, median: float, high: float) -> tuple["Surprise", float]:
        """Return the state after a value, and its score in [0, 1].

        `low`, `median` and `high` are the quantiles 0.1, 0.5 and 0.9 of its forecast.
        """
        side = high - median if y > median else median - low
        surprise = min(abs(y - median) / max(side, 1e-12), LARGEST)
        count = self.values + 1
        recent = self.recent + RECENT * (surprise - self.recent)
        rate = max(USUAL, 1 / (count + 1))
        apart = (recent - self.mean) / math.sqrt(max(self.variance, 1e-4))
        tail = 0.5 * math.erfc(apart / math.sqrt(2))
        score = min(1.0, -math.log10(max(tail, 1e-300)) / DIGITS)
        mean = self.mean + rate * (recent - self.mean)
        variance = self.variance + rate * ((recent - mean) ** 2 - self.variance)
        return Surprise(count, recent, mean, variance), score


START = Surprise()
