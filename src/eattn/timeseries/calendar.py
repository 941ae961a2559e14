"""Periodic functions of the calendar, which are known for every step ahead."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn.data.freq import Freq, Times, wall

HOUR, DAY = 3600.0, 86400.0  # seconds
CYCLES = {"minute": HOUR, "hour": DAY, "weekday": 7 * DAY, "day": 30.5 * DAY, "month": 365 * DAY}
HARMONICS = {"minute": 2, "hour": 4, "weekday": 3, "day": 2, "month": 3}
# Season lengths in steps of one unit, shortest first.
SEASONS = {
    "s": (60, 3600),
    "min": (1440, 10080),
    "h": (24, 168),
    "D": (7,),
    "B": (5,),
    "W": (52,),
    "MS": (12,),
    "ME": (12,),
    "QS": (4,),
    "QE": (4,),
}
LONGEST = 2100  # steps: a longer season would need a large state


def usual_seasons(freq: Freq) -> tuple[int, ...]:
    """Return the season lengths that follow from a frequency, shortest first.

    >>> usual_seasons("15min"), usual_seasons("MS"), usual_seasons(1)
    ((96, 672), (12,), ())
    """
    if isinstance(freq, int):
        return ()
    offset = pd.tseries.frequencies.to_offset(freq)
    unit = offset.rule_code.partition("-")[0]
    unit = unit if unit in SEASONS else unit.removeprefix("B")  # business months and quarters
    whole = [m // offset.n for m in SEASONS.get(unit, ()) if m % offset.n == 0]
    return tuple(m for m in whole if 1 < m <= LONGEST)


def varying_fields(times: Iterable[Times]) -> tuple[str, ...]:
    """Return the calendar fields that vary and complete two cycles in some series.

    A cycle that occurs once cannot be distinguished from chance: a year of hourly values does not
    show the effect of the month.
    """
    found = set()
    for index in times:
        if not isinstance(index, pd.DatetimeIndex) or len(index) < 2:
            continue
        seconds = np.diff(wall(index).to_numpy()) / np.timedelta64(1, "s")
        step, span = float(np.median(seconds)), float(seconds.sum())
        monthly = step >= 28 * DAY  # day and weekday then vary with the calendar, not with the data
        for name, cycle in CYCLES.items():
            varies = step % cycle and (name == "month" or not monthly)
            if varies and span >= 2 * cycle - step:
                found.add(name)
    return tuple(name for name in reversed(CYCLES) if name in found)


def calendar_columns(times: Times, fields: Sequence[str]) -> NDArray[np.float32]:
    """Return sines and cosines of the phases of calendar fields: [n, columns]."""
    if not fields:
        return np.zeros((len(times), 0), np.float32)
    at = wall(times).to_numpy().astype("datetime64[s]")
    days = at.astype("datetime64[D]")
    months, years = at.astype("datetime64[M]"), at.astype("datetime64[Y]")
    seconds = (at - days).astype(np.int64)
    phases = {
        "minute": lambda: seconds % 3600 / HOUR,
        "hour": lambda: seconds / DAY,
        "weekday": lambda: (days.astype(np.int64) + 3) % 7 / 7.0,  # 1970-01-01 was a Thursday
        "day": lambda: (days - months.astype("datetime64[D]")).astype(np.int64) / 31.0,
        "month": lambda: (days - years.astype("datetime64[D]")).astype(np.int64) / 365.25,
    }
    angles = [
        2 * np.pi * harmonic * phases[name]()
        for name in fields
        for harmonic in range(1, HARMONICS[name] + 1)
    ]
    table = np.stack(angles, -1)
    return np.concatenate([np.sin(table), np.cos(table)], -1).astype(np.float32)
