"""Times of a series: how far apart they are, which come next, and what a calendar says of them."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Time = Any  # a pandas Timestamp, or an int where a series has no calendar
LONGEST = 10_000_000  # steps from one time to another: more is a slip of the pen
HOUR, DAY = 3600.0, 86400.0  # seconds
CYCLES = {"minute": HOUR, "hour": DAY, "weekday": 7 * DAY, "day": 30.5 * DAY, "month": 365 * DAY}


@dataclass(frozen=True)
class Step:
    """From one time to the next: a frequency of pandas ("h", "15min", "MS", ...), or an int.

    >>> Step(2).after(7, 3).tolist()
    [9, 11, 13]
    """

    freq: str | int

    def after(self, time: Time, count: int) -> "pd.Index[Any]":
        """The `count` times that follow."""
        import pandas as pd

        if isinstance(self.freq, int):
            return pd.Index(time + self.freq * np.arange(1, count + 1))
        return pd.date_range(time, periods=count + 1, freq=self.freq)[1:]

    def until(self, time: Time, count: int) -> "pd.Index[Any]":
        """The last `count` times, of which this is one."""
        import pandas as pd

        if isinstance(self.freq, int):
            return pd.Index(time - self.freq * np.arange(count)[::-1])
        return pd.date_range(end=time, periods=count, freq=self.freq)

    def places(self, times: "pd.Index[Any]") -> NDArray[np.int64]:
        """How many steps each time is after the first of them; -1 where that is no whole number."""
        import pandas as pd

        size = self._size
        if size is None:
            grid = pd.date_range(times[0], times[-1], freq=self.freq)
            found: NDArray[np.int64] = grid.get_indexer(times).astype(np.int64)
            return found
        ticks = times.astype(np.int64).to_numpy()
        whole, rest = np.divmod(ticks - ticks[0], size)
        if whole[-1] > LONGEST:
            raise ValueError(
                f"{times[-1]} is {whole[-1]:,} steps of {self} after {times[0]}: too many"
            )
        return np.where(rest == 0, whole, -1)

    @property
    def _size(self) -> int | None:
        """In nanoseconds, or as integers have it; None where it varies, as months do."""
        import pandas as pd

        if isinstance(self.freq, int):
            return self.freq
        try:
            return int(pd.Timedelta(pd.tseries.frequencies.to_offset(self.freq)).value)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.freq}"


def check_freq(freq: Any) -> Step:
    """A frequency as the user gives it."""
    import pandas as pd

    if isinstance(freq, int) and not isinstance(freq, bool) and freq > 0:
        return Step(freq)
    offset = None
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")  # of older names, as H for h, which are as good here
        offset = pd.tseries.frequencies.to_offset(freq) if isinstance(freq, str) else None
    if offset is None or offset.n < 1:
        raise ValueError(
            f"freq must be a frequency of pandas, as 'h' or 'MS', or an int >= 1, got {freq!r}"
        )
    return Step(offset.freqstr)


def infer_step(times: "pd.Index[Any]") -> Step:
    """The step that brings rising times, two or more, to each other; rows may be missing."""
    usual, *others = dict.fromkeys(_candidates(times))
    for step in (usual, *others):
        if (step.places(times) >= 0).all():
            return step
    number = int((usual.places(times) < 0).argmax())
    raise ValueError(
        f"{times[number]} is no whole number of steps ({usual}) after {times[0]}:"
        " times must be evenly spaced, though rows may be missing"
    )


def _candidates(times: "pd.Index[Any]") -> Iterator[Step]:
    """What pandas infers from all, the median step, and what pandas infers from a few in a row."""
    import pandas as pd

    dated = isinstance(times, pd.DatetimeIndex)
    if dated and len(times) > 2 and (freq := pd.infer_freq(times)):
        yield Step(freq)
        return
    sizes = np.sort(np.diff(times.astype(np.int64).to_numpy()))
    median = int(sizes[len(sizes) // 2])
    if not dated:
        yield Step(median)
        return
    tick = Step(pd.tseries.frequencies.to_offset(pd.Timedelta(median)).freqstr)
    # Working days and months with some missing: only a few in a row tell what they are.
    size = 6 if len(times) > 7 else 3
    parts = (times[i : i + size] for i in range(min(len(times) - size + 1, 100)))
    freqs = {pd.infer_freq(part) for part in parts} - {None}
    calendar = [step for step in map(Step, sorted(freqs)) if step._size is None]
    yield from [*calendar, tick] if median == DAY * 1e9 else [tick, *calendar]


def varying_fields(times: Iterable["pd.Index[Any]"]) -> tuple[str, ...]:
    """The calendar fields that differ from step to step, where some series had two cycles of them.

    What was seen once cannot be told from chance: a year of hourly values says nothing of months.
    """
    import pandas as pd

    found = set()
    for index in times:
        if not isinstance(index, pd.DatetimeIndex) or len(index) < 2:
            continue
        seconds = np.diff(index.to_numpy()) / np.timedelta64(1, "s")
        step, span = float(np.median(seconds)), float(seconds.sum())
        for name, cycle in CYCLES.items():
            month = step >= 28 * DAY  # its day and weekday are those of the calendar, not the data
            known = step % cycle and not (month and name != "month")
            if known and span >= 2 * cycle - step:
                found.add(name)
    return tuple(name for name in reversed(CYCLES) if name in found)
