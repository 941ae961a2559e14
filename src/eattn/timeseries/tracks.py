"""Series as they go on: where each stands, what is remembered of it, and what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn.models import Forecaster
from eattn.nn import calendar_fields
from eattn.timeseries.freq import Step, Time
from eattn.timeseries.inputs import ID, TIME, Rows, Values, need_pandas
from eattn.timeseries.memory import Memory, StateMemory, WindowMemory, forecast
from eattn.timeseries.regularize import Record, spread
from eattn.timeseries.rollout import Reading
from eattn.timeseries.scaling import Scale, carried_forward

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Reader:
    """A trained model, and how it reads a series."""

    model: Forecaster
    fields: tuple[str, ...]  # of the calendar; none where the model has none
    window: int | None  # values that a forecast comes from; None: all, through the state
    context: int | None  # of `StateMemory`

    def memory(self) -> Memory:
        """That of a series which has not begun."""
        return StateMemory(self.context) if self.window is None else WindowMemory(self.window)

    def values(self, x: Values) -> Tensor:
        """[n] -> [1, n, 1], as the model wants them."""
        like = next(self.model.parameters())
        return torch.from_numpy(x).to(like.device, like.dtype).reshape(1, -1, 1)

    def calendar(self, times: Sequence["pd.Index[Any]"]) -> Tensor | None:
        """Those of several series [n] each -> [series, n, F]."""
        if not self.fields:
            return None
        device = next(self.model.parameters()).device
        return torch.stack([calendar_fields(t.to_numpy(), self.fields) for t in times]).to(device)

    def forecast(
        self, readings: Sequence[Reading], times: Sequence["pd.Index[Any]"]
    ) -> NDArray[np.float64]:
        """At the times that follow each reading -> [readings, horizon], in units of the scale."""
        y = forecast(self.model, readings, len(times[0]), self.calendar(times))
        scaled: NDArray[np.float64] = y.squeeze(-1).double().cpu().numpy()
        return scaled


@dataclass(frozen=True)
class Track:
    """One series after its last value; going on makes a new one."""

    name: Any
    step: Step
    scale: Scale
    memory: Memory
    time: Time  # of the last row
    value: float  # the last that is known

    def recent(self) -> tuple["pd.Index[Any]", Values]:
        """The last values, as far as they are kept, and their times."""
        values = self.scale.undo(self.memory.recent().double().cpu().numpy())
        return self.step.until(self.time, len(values)), values

    def following(self, rows: Rows) -> tuple["pd.Index[Any]", Values]:
        """New rows on the grid from the next step on, or what is wrong with them."""
        times = rows.times
        if times is None:
            return self.step.after(self.time, len(rows.values)), rows.values
        if isinstance(self.step.freq, int) != (times.dtype.kind == "i"):
            kind = "an integer" if isinstance(self.step.freq, int) else "a time"
            raise ValueError(f"series {self.name!r}: ds must be {kind}, got {times[0]}")
        if times[0] == self.time:
            raise ValueError(f"series {self.name!r}: {times[0]} is known already")
        if times[0] < self.time:
            raise ValueError(
                f"series {self.name!r}: {times[0]} comes before {self.time}, which is known already"
            )
        try:
            return spread(self.step, times, rows.values, after=self.time)
        except ValueError as error:
            raise ValueError(f"series {self.name!r}: {error}") from None

    def after(self, reader: Reader, times: "pd.Index[Any]", values: Values) -> "Track":
        """The track after values at the times that follow."""
        filled = carried_forward(values, before=self.value)
        memory = self.memory.copy()
        x = reader.values(self.scale.apply(filled))
        memory.absorb(reader.model, x, reader.calendar([times]))
        return replace(self, memory=memory, time=times[-1], value=float(filled[-1]))


def begin(reader: Reader, record: Record, scale: Scale, length: int | None = None) -> Track:
    """The track of a series after its first `length` values, or all."""
    start = Track(record.name, record.step, scale, reader.memory(), None, record.values[0])
    return start.after(reader, record.times[:length], record.values[:length])


def long_format(
    label: str,
    tracks: Sequence[Track],
    times: Sequence["pd.Index[Any]"],
    scaled: NDArray[np.float64],
    shifts: dict[float, NDArray[np.float64]],
    dtype: Any,
) -> "pd.DataFrame":
    """Forecasts [tracks, horizon] as rows: unique_id, ds, `label`, and one column for each shift.

    A shift [horizon] is what to add for a quantile, in units of the scale like the forecasts.
    """
    pandas = need_pandas()
    names = [track.name for track in tracks for _ in range(scaled.shape[1])]
    columns: dict[str, Any] = {
        ID: pandas.Series(names, dtype=dtype),
        TIME: np.concatenate([index.to_numpy() for index in times]),
    }
    labels = {label: 0.0} | {f"{label}-q{100 * q:g}": shift for q, shift in shifts.items()}
    for name, shift in labels.items():
        rows = zip(tracks, scaled + shift, strict=True)
        columns[name] = np.concatenate([track.scale.undo(row) for track, row in rows])
    return pandas.DataFrame(columns)


def go_on(
    reader: Reader, tracks: Sequence[Track], horizon: int
) -> tuple[list["pd.Index[Any]"], NDArray[np.float64]]:
    """The next times of each track, and the forecasts for them, in units of the scale."""
    times = [track.step.after(track.time, horizon) for track in tracks]
    readings = [track.memory.reading(reader.model) for track in tracks]
    return times, reader.forecast(readings, times)
