"""Anomaly scores: how unlikely a value was, given its forecast and all earlier values.

A value far outside its forecast is a surprise. Some series are surprising often, so the mean of the
last surprises is compared with the distribution of all earlier ones. A value that lies far outside
the range of the series is unlikely, too, even if the forecast has followed it there. Both
distributions decay slowly.
"""

import math
from typing import NamedTuple

RECENT, USUAL = 0.15, 0.002  # rates of the recent mean and of the distribution of surprises
LEVEL = 5e-4  # rate of the distribution of values
WEIGHT = 0.7  # of standard deviations of values, next to those of surprises
WARMUP = 20  # values before their distribution counts
LARGEST = 30.0  # distances from the median to its quantile: larger errors are clipped
FARTHEST = 1e150  # from the level, so that squares are finite
DIGITS = 7.0  # a probability of 10^-7 has the score 1


class Surprise(NamedTuple):
    """Recent mean of the surprises of a series, and mean and variance of them and of values."""

    values: int = 0  # number of them
    recent: float = 0.0
    mean: float = 0.0
    variance: float = 1.0
    level: float = 0.0
    spread: float = 0.0  # variance of the values

    def score(self, y: float, low: float, median: float, high: float) -> tuple["Surprise", float]:
        """Return the state after a value, and its score in [0, 1].

        `low`, `median` and `high` are the quantiles 0.1, 0.5 and 0.9 of its forecast.
        """
        side = high - median if y > median else median - low
        surprise = min(abs(y - median) / max(side, 1e-12), LARGEST)
        count = self.values + 1
        recent = self.recent + RECENT * (surprise - self.recent)
        apart = (recent - self.mean) / math.sqrt(max(self.variance, 1e-4))
        level = self.level if self.values else y
        away = min(max(y - level, -FARTHEST), FARTHEST)
        if count > WARMUP:
            apart = max(apart, WEIGHT * abs(away) / math.sqrt(max(self.spread, 1e-12)))
        tail = 0.5 * math.erfc(apart / math.sqrt(2))
        score = min(1.0, -math.log10(max(tail, 1e-300)) / DIGITS)
        share, slow = max(USUAL, 1 / (count + 1)), max(LEVEL, 1 / (count + 1))
        mean = self.mean + share * (recent - self.mean)
        variance = self.variance + share * ((recent - mean) ** 2 - self.variance)
        rest = (1 - slow) * away
        spread = self.spread + slow * (rest**2 - self.spread)
        return Surprise(count, recent, mean, variance, level + slow * away, spread), score


START = Surprise()
