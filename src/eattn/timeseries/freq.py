"""Frequencies of series: infer them, generate times, and find calendar fields.

A frequency is a pandas alias such as "h", "15min" or "MS", or an int for integer times.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Freq = str | int
Time = Any  # a pandas Timestamp, or an int for series without a calendar
Times = Any  # a pandas DatetimeIndex, or an Index of int64
MAX_STEPS = 10_000_000  # a longer span between two times is most likely a typing error
HOUR, DAY = 3600.0, 86400.0  # seconds
CYCLES = {"minute": HOUR, "hour": DAY, "weekday": 7 * DAY, "day": 30.5 * DAY, "month": 365 * DAY}


def times_after(freq: Freq, time: Time, count: int) -> Times:
    """Return the `count` times that follow `time`.

    >>> times_after(2, 7, 3).tolist()
    [9, 11, 13]
    """
    if isinstance(freq, int):
        return pd.Index(time + freq * np.arange(1, count + 1))
    return pd.date_range(time, periods=count + 1, freq=freq)[1:]


def times_until(freq: Freq, time: Time, count: int) -> Times:
    """Return the last `count` times up to and including `time`."""
    if isinstance(freq, int):
        return pd.Index(time - freq * np.arange(count)[::-1])
    return pd.date_range(end=time, periods=count, freq=freq)


def positions(freq: Freq, times: Times) -> NDArray[np.int64]:
    """Count the steps from the first time to each time; -1 where the count is not whole."""
    size = _size(freq)
    if size is None:
        grid = pd.date_range(times[0], times[-1], freq=freq)
        found: NDArray[np.int64] = grid.get_indexer(times).astype(np.int64)
        return found
    ticks = times.astype(np.int64).to_numpy()
    whole, rest = np.divmod(ticks - ticks[0], size)
    if whole[-1] > MAX_STEPS:
        raise ValueError(
            f"{times[-1]} is {whole[-1]:,} steps of {freq} after {times[0]};"
            f" the limit is {MAX_STEPS:,}"
        )
    return np.where(rest == 0, whole, -1)


def _size(freq: Freq) -> int | None:
    """Return the step in nanoseconds or as an integer; None if it varies, as months do."""
    if isinstance(freq, int):
        return freq
    try:
        return int(pd.Timedelta(pd.tseries.frequencies.to_offset(freq)).value)
    except ValueError:
        return None


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


def infer_freq(times: Times) -> Freq:
    """Infer the frequency of two or more increasing times; rows may be missing."""
    usual, *others = dict.fromkeys(_candidates(times))
    for freq in (usual, *others):
        if (positions(freq, times) >= 0).all():
            return freq
    number = int((positions(usual, times) < 0).argmax())
    raise ValueError(
        f"{times[number]} is not a whole number of steps ({usual}) after {times[0]};"
        " times must be evenly spaced, but rows may be missing"
    )


def _candidates(times: Times) -> Iterator[Freq]:
    """Yield the frequency that pandas infers, or else the median step and calendar frequencies."""
    dated = isinstance(times, pd.DatetimeIndex)
    if dated and len(times) > 2 and (freq := pd.infer_freq(times)):
        yield freq
        return
    sizes = np.sort(np.diff(times.astype(np.int64).to_numpy()))
    median = int(sizes[len(sizes) // 2])
    if not dated:
        yield median
        return
    tick = pd.tseries.frequencies.to_offset(pd.Timedelta(median)).freqstr
    # With missing rows, business days and months can only be inferred from runs without gaps.
    size = 6 if len(times) > 7 else 3
    parts = (times[i : i + size] for i in range(min(len(times) - size + 1, 100)))
    freqs = {pd.infer_freq(part) for part in parts} - {None}
    calendar = [freq for freq in sorted(freqs) if _size(freq) is None]
    yield from [*calendar, tick] if median == DAY * 1e9 else [tick, *calendar]


def varying_fields(times: Iterable[Times]) -> tuple[str, ...]:
    """Return the calendar fields that vary and complete two cycles in some series.

    A cycle that occurs once cannot be distinguished from chance: a year of hourly values does not
    show the effect of the month.
    """
    found = set()
    for index in times:
        if not isinstance(index, pd.DatetimeIndex) or len(index) < 2:
            continue
        seconds = np.diff(index.to_numpy()) / np.timedelta64(1, "s")
        step, span = float(np.median(seconds)), float(seconds.sum())
        monthly = step >= 28 * DAY  # day and weekday then vary with the calendar, not with the data
        for name, cycle in CYCLES.items():
            varies = step % cycle and (name == "month" or not monthly)
            if varies and span >= 2 * cycle - step:
                found.add(name)
    return tuple(name for name in reversed(CYCLES) if name in found)
