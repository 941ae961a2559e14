"""Frequencies of time series: infer them, count steps, and generate times.

A frequency is a pandas alias such as "h", "15min" or "MS", or an int for integer times. Steps of
less than a day have a fixed duration. Longer steps follow the local clock of times with a zone, so
that daily values stay at midnight when daylight saving time begins or ends.
"""

import contextlib
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Freq = str | int
Time = Any  # a pandas Timestamp, or an int for series without a calendar
Times = Any  # a pandas DatetimeIndex, or an Index of int64
MAX_STEPS = 10_000_000  # a longer span between two times is most likely a typing error
DAY = 86_400 * 10**9  # nanoseconds
USUAL = 0.8  # times that share a grid make the others errors; fewer make the grid a coincidence
MIN_BUSINESS = 10  # fewer days without a weekend day are most likely chance


def times_after(freq: Freq, time: Time, count: int) -> Times:
    """Return the `count` times that follow `time`.

    >>> times_after(2, 7, 3).tolist()
    [9, 11, 13]
    """
    if isinstance(freq, int):
        return pd.Index(time + freq * np.arange(1, count + 1))
    start = time if time.tz is None else _clock(freq, pd.DatetimeIndex([time]))[0]
    size = _size(freq)
    if size is None:
        return _with_zone(freq, pd.date_range(start, periods=count + 1, freq=freq)[1:], time.tz)
    ticks = start.as_unit("ns").value + size * np.arange(1, count + 1)  # faster than date_range
    return _with_zone(freq, pd.DatetimeIndex(ticks.view("M8[ns]")), time.tz)


def is_next(freq: Freq, time: Time, other: Time) -> bool:
    """Return whether `other` is one step after `time`."""
    size = _size(freq)
    if size is None or getattr(time, "tz", None) is not None:
        return bool(times_after(freq, time, 1)[0] == other)
    return bool(time + size == other if isinstance(freq, int) else other.value - time.value == size)


def times_until(freq: Freq, time: Time, count: int) -> Times:
    """Return the last `count` times up to and including `time`."""
    if isinstance(freq, int):
        return pd.Index(time - freq * np.arange(count)[::-1])
    end = _clock(freq, pd.DatetimeIndex([time]))[0]
    return _with_zone(freq, pd.date_range(end=end, periods=count, freq=freq), time.tz)


def positions(freq: Freq, times: Times) -> NDArray[np.int64]:
    """Count the steps from the first time to each time; -1 where the count is not whole."""
    size = _size(freq)
    even = times if isinstance(freq, int) else _clock(freq, times)
    if size is None:
        grid = pd.date_range(even[0], even[-1], freq=freq)
        found: NDArray[np.int64] = grid.get_indexer(even).astype(np.int64)
        return found
    ticks = even.astype(np.int64).to_numpy()
    whole, rest = np.divmod(ticks - ticks[0], size)
    if whole[-1] > MAX_STEPS:
        raise ValueError(
            f"{times[-1]} is {whole[-1]:,} steps of {freq} after {times[0]};"
            f" the limit is {MAX_STEPS:,}"
        )
    return np.where(rest == 0, whole, -1)


def check_freq(freq: Any) -> Freq:
    """Return the frequency in its canonical spelling, or raise if it is invalid."""
    if isinstance(freq, int) and not isinstance(freq, bool) and freq > 0:
        return freq
    offset = None
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")  # deprecated spellings such as H for h are accepted
        offset = pd.tseries.frequencies.to_offset(freq) if isinstance(freq, str) else None
    if offset is None or offset.n < 1:
        raise ValueError(
            f"freq must be a pandas frequency such as 'h' or 'MS', or an int >= 1, got {freq!r}"
        )
    alias: str = offset.freqstr
    return alias


def infer_freq(series: Sequence[Times]) -> Freq:
    """Infer one frequency for all series from the greatest common step of their times.

    Times must increase; rows may be missing. Raises if a few times are off the grid of all others.
    """
    longer = [times for times in series if len(times) > 1]
    if not longer:
        raise ValueError("the frequency of a single row cannot be inferred; add rows or set freq")
    if not isinstance(longer[0], pd.DatetimeIndex):
        steps = [np.diff(times.to_numpy()) for times in longer]
        _check_usual_grid(longer, steps)
        return int(np.gcd.reduce(np.concatenate(steps)))
    exact = {pd.infer_freq(wall(times)) for times in longer if len(times) > 2}
    if len(exact) == 1 and (freq := exact.pop()) and _fits(freq, series):
        return freq
    steps = [np.diff(wall(times).astype(np.int64)) for times in longer]
    step = int(np.gcd.reduce(np.concatenate(steps)))
    if step % DAY:
        steps = [np.diff(times.astype(np.int64)) for times in longer]
        _check_usual_grid(longer, steps)
        return _tick(int(np.gcd.reduce(np.concatenate(steps))))
    for freq in _calendar_freqs([wall(times) for times in series], step // DAY):
        if _fits(freq, series):
            return check_freq(freq)
    return _tick(step)


def missing_share(freq: Freq, series: Sequence[Times]) -> float:
    """Return the share of the steps of all series that have no row."""
    rows = sum(len(times) for times in series)
    return 1 - rows / sum(int(positions(freq, times)[-1]) + 1 for times in series)


def wall(times: Times) -> Times:
    """Return times as the local clock shows them, without their zone."""
    return times.tz_localize(None) if getattr(times, "tz", None) is not None else times


def _calendar_freqs(series: Sequence[Times], days: int) -> list[str]:
    """Return months, weeks or business days that may explain steps of whole days."""
    gaps = np.concatenate([np.diff(times.astype(np.int64)) for times in series])
    if gaps.min() >= 28 * DAY:
        months = [times.year.to_numpy() * 12 + times.month.to_numpy() for times in series]
        count = int(np.gcd.reduce(np.concatenate([np.diff(each) for each in months])))
        return [f"{count}{name}" for name in ("MS", "ME", "BMS", "BME") if count]
    if days % 7 == 0:
        return [f"{days // 7}W-{series[0][0]:%a}".upper()]
    together = series[0].append(list(series[1:]))
    working = len(together) >= MIN_BUSINESS and (together.dayofweek < 5).all()
    return ["B"] if days == 1 and working else []


def _fits(freq: str, series: Sequence[Times]) -> bool:
    offset = pd.tseries.frequencies.to_offset(freq)
    if _size(freq) is None and not all(offset.is_on_offset(wall(times)[0]) for times in series):
        return False
    return all((positions(freq, times) >= 0).all() for times in series)


def _check_usual_grid(series: Sequence[Times], steps: Sequence[NDArray[np.int64]]) -> None:
    """Raise if most times of a series are on a grid that a few times miss."""
    together = np.concatenate(steps)
    sizes, counts = np.unique(together, return_counts=True)
    usual, least = int(sizes[counts.argmax()]), int(np.gcd.reduce(together))
    if 2 * sum(map(len, series)) > sum(int(each.sum()) // least + 1 for each in steps):
        return  # at most half of the steps are missing
    for times in series:
        rests = times.astype(np.int64).to_numpy() % usual
        values, counts = np.unique(rests, return_counts=True)
        on_grid = rests == values[counts.argmax()]
        if USUAL <= on_grid.mean() < 1:
            freq = _tick(usual) if isinstance(times, pd.DatetimeIndex) else usual
            raise ValueError(
                f"{times[int((~on_grid).argmax())]} is not a whole number of steps ({freq}) after"
                f" {times[int(on_grid.argmax())]};"
                " times must be evenly spaced, but rows may be missing"
            )


@cache
def _size(freq: Freq) -> int | None:
    """Return the step in nanoseconds or as an integer; None if it varies, as months do."""
    if isinstance(freq, int):
        return freq
    try:
        return int(pd.Timedelta(pd.tseries.frequencies.to_offset(freq)).value)
    except ValueError:
        return None


def _tick(size: int) -> str:
    alias: str = pd.tseries.frequencies.to_offset(pd.Timedelta(size)).freqstr
    return alias


def _has_fixed_duration(freq: str) -> bool:
    size = _size(freq)
    return size is not None and size % DAY != 0


def _clock(freq: str, times: Times) -> Times:
    """Return times without a zone in which steps are even: UTC or the local clock."""
    if times.tz is None:
        return times
    return times.tz_convert(None) if _has_fixed_duration(freq) else times.tz_localize(None)


def _with_zone(freq: str, times: Times, tz: Any) -> Times:
    """Undo `_clock`; times that the local clock skips are moved to its next time."""
    if tz is None:
        return times
    if _has_fixed_duration(freq):
        return times.tz_localize("UTC").tz_convert(tz)
    return times.tz_localize(tz, ambiguous=np.ones(len(times), bool), nonexistent="shift_forward")
