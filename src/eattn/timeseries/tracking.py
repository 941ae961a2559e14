"""Follow a series value by value: cleaned values, levels, scale and seasonal profiles.

A row holds these numbers after one step. It depends on that step and earlier ones only, so a stream
can keep it up to date, and forecasts from any row of a history use no later value.

A single value far outside the usual range is replaced by the last value. If the next value is
outside as well, the level has shifted, and it is kept. Missing values are replaced likewise. There
is no usual range yet for the first values: they are compared with each other, so only their rows
may depend on later values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]  # [..., columns]
VALUE, FAST, SLOW, SCALE, SLOPE, MOVE, DRIFT = range(7)  # columns
SEASONAL = 7  # first of two columns per season: its level and its profile

SPIKE = 20.0  # a value this many scales outside the usual range is taken for an error
WARMUP = 10  # number of first values, which are compared with each other
HUGE = 1000.0  # a first value is an error if it is this many times as far away as all others
FAST_HALF_LIFE, MOVE_HALF_LIFE, SLOW_HALF_LIFE, SCALE_HALF_LIFE = 3.0, 8.0, 8.0, 64.0  # steps
PROFILE_RATE = 0.12  # of a new season in the seasonal profile
SMALLEST = 1e-7  # scale of a constant series, relative to its level


def level_column(season: int) -> int:
    """Return the column of the level of season number `season`: a mean over about one season."""
    return SEASONAL + 2 * season


def profile_column(season: int) -> int:
    """Return the column of the mean deviation from the level at this phase of a season."""
    return SEASONAL + 2 * season + 1


@dataclass(frozen=True, eq=False)
class Track:
    """Last rows of a series, oldest first, and what is needed to follow it further."""

    rows: Rows
    steps: int = 0  # number of values, with missing ones
    known: int = 0  # number of known values
    first: float = 0.0  # first value
    spikes: int = 0  # number of values taken for errors; each makes the next less likely
    held: bool = False  # the last value was taken for an error

    def last(self, count: int) -> "Track":
        """Return the track with its last rows only."""
        rows = self.rows[-count:].copy()
        return Track(rows, self.steps, self.known, self.first, self.spikes, self.held)


def follow(
    values: Sequence[float], seasons: Sequence[int], before: Track | None = None
) -> tuple[Rows, Track]:
    """Return a row for each value, and the track after the last one with all rows.

    Parameters
    ----------
    values : sequence of float
        Values after `before`; NaN if missing. The very first one must be known.
    seasons : sequence of int
        Season lengths, shortest first.
    before : Track, optional
        Earlier rows: at least as many as the longest season, unless there are fewer.
    """
    columns = SEASONAL + 2 * len(seasons)
    old = 0 if before is None else len(before.rows)
    rows = np.empty((old + len(values), columns))
    if before is None:
        values = _without_error(values)
        before = Track(rows[:0], first=float(values[0]))
        last = [before.first, before.first, before.first, *[0.0] * (columns - 3)]
        for season in range(len(seasons)):
            last[level_column(season)] = before.first
    else:
        rows[:old] = before.rows
        last = before.rows[-1].tolist()
    steps, known, spikes, held = before.steps, before.known, before.spikes, before.held
    fast_rate, move_rate = rate_of(FAST_HALF_LIFE), rate_of(MOVE_HALF_LIFE)
    scale_rate = rate_of(max(SCALE_HALF_LIFE, 4.0 * max(seasons, default=1)))
    slow_rate = rate_of(max(SLOW_HALF_LIFE, float(seasons[0]) if seasons else 0.0))
    level_rates = [rate_of(max(SLOW_HALF_LIFE, float(m))) for m in seasons]
    nearest = seasons[0] if seasons else 1
    for at, y in enumerate(values, old):
        value, fast, slow, scale, slope, move, _ = last[:SEASONAL]
        usual = float(rows[at - nearest, VALUE]) if at >= nearest else value
        missing = y != y
        if not missing and known >= WARMUP:
            apart = min(abs(y - value), abs(y - usual))
            outside = apart > SPIKE * scale * 10.0**spikes and not held
            if spikes and scale <= smallest_scale(slow):
                outside = False  # constant so far: more than one deviation is no error
            missing, held, spikes = outside, outside, spikes + outside
        steps += 1
        if not missing:
            known += 1
            share = 1.0 / known
            change = y - value
            if known > 1:
                rate = max(scale_rate, 1.0 / (known - 1))
                # Seasonal differences of a periodic series are 0, but not its deviations.
                scale += rate * (max(abs(y - usual), 0.1 * abs(y - slow)) - scale)
                move += max(move_rate, 1.0 / (known - 1)) * (abs(change) - move)
                slope += 0.5 * max(move_rate, share) * (change - slope)
            fast += max(fast_rate, share) * (y - fast)
            slow += max(slow_rate, share) * (y - slow)
            value = y
        row = [value, fast, slow, max(scale, smallest_scale(slow)), slope, move, 0.0]
        row[DRIFT] = (value - before.first) / max(steps - 1, 1)
        for season, (m, level_rate) in enumerate(zip(seasons, level_rates, strict=True)):
            level = last[level_column(season)]
            profile = float(rows[at - m, profile_column(season)]) if at >= m else 0.0
            if not missing:
                level += max(level_rate, share) * (y - level)
                rate = max(PROFILE_RATE, m / steps) if at >= m else 1.0
                profile += rate * (y - level - profile)
            row += [level, profile]
        rows[at] = last = row
    after = Track(rows, steps, known, before.first, spikes, held)
    return rows[old:], after


def _without_error(values: Sequence[float]) -> Sequence[float]:
    """Return the values of a new series, where one of the first may be replaced by NaN.

    An error in the very first value is replaced by the second value.
    """
    known = sorted(y for y in values[:WARMUP] if y == y)
    if len(known) < 3:
        return values
    middle = known[len(known) // 2]
    *_, other, farthest = sorted(known, key=lambda y: abs(y - middle))
    usual = max(abs(other - middle), 0.01 * abs(middle))
    if not 0 < HUGE * usual < abs(farthest - middle):
        return values
    cleaned = [np.nan if y == farthest else y for y in values[:WARMUP]]
    cleaned[0] = next(y for y in cleaned if y == y)
    return [*cleaned, *values[WARMUP:]]


def smallest_scale(level: Any) -> Any:
    """Return the scale of a constant series."""
    return SMALLEST * abs(level) + 1e-12


def rate_of(half_life: float) -> float:
    """Return the share of a new value in a mean with this half-life."""
    return float(1.0 - 0.5 ** (1.0 / half_life))
