"""Next times of series and their calendar columns, computed in blocks for streams."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eattn.data.freq import Freq, Time, Times, times_after
from eattn.timeseries.calendar import calendar_columns

BLOCK = 256  # times computed at once


class Ahead:
    """Return times and calendar columns; requests for consecutive times share one block.

    Parameters
    ----------
    fields : sequence of str
        Calendar fields of the columns.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = fields
        self._set_block(pd.Index([], dtype=np.int64))

    def _set_block(self, times: Times) -> None:
        dated = isinstance(times, pd.DatetimeIndex)
        self._times, self._zone = times, times.tz if dated else None
        self._ticks = (times.as_unit("ns") if dated else times).astype(np.int64).to_numpy()
        # Made when asked for: if series end at different times, most blocks need neither.
        self._columns: NDArray[np.float32] | None = None
        self._labels: list[Any] | None = None

    def times(self, freq: Freq, time: Time, count: int) -> Times:
        """Return the `count` times that follow `time`."""
        places = self._after(freq, time, count)  # may renew the block
        return self._times[places]

    def labels(self, freq: Freq, time: Time, count: int) -> list[Any]:
        """Return these times as text, and integers as they are."""
        places = self._after(freq, time, count)
        if self._labels is None:
            times = self._times.tolist()
            self._labels = times if isinstance(freq, int) else list(map(str, times))
        return self._labels[places]

    def _after(self, freq: Freq, time: Time, count: int) -> slice:
        """Return the places of the next times in the block, which is renewed if it lacks them."""
        place = self._place(time, 1 + count)
        if place is None:
            following = times_after(freq, time, max(count, BLOCK))
            self._set_block(following.insert(0, time))
            place = 0
        return slice(place + 1, place + 1 + count)

    def columns(self, times: Times) -> NDArray[np.float32]:
        """Return the calendar columns of consecutive times: [n, columns]."""
        place = self._place(times[0], len(times))
        if place is None:
            return calendar_columns(times, self.fields)
        if self._columns is None:
            self._columns = calendar_columns(self._times, self.fields)
        return self._columns[place : place + len(times)]

    def _place(self, time: Time, count: int) -> int | None:
        """Return the place of `time` in the block, or None unless `count` times are there."""
        tick = getattr(time, "value", time)  # of a Timestamp in nanoseconds
        place = int(self._ticks.searchsorted(tick))
        if place + count > len(self._ticks) or self._ticks[place] != tick:
            return None
        zone: Any = getattr(time, "tz", None)
        return place if zone == self._zone else None
