"""Forecast from a state: read values into a model, roll it out, and keep a state per series.

A token holds the last `lags` values of a series, newest first, because element-wise attention by
itself does not know which tokens are near. A model with `lags` channels thus reads a series of one
channel, and its state keeps these values as the last token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn.data.freq import Freq, Time, Times, times_after, times_until, wall
from eattn.models import Forecaster, ForecasterState
from eattn.nn import EncoderState, calendar_fields
from eattn.nn.decoding_state import parts, rebuilt
from eattn.timeseries.inputs import TimeSeries, Values, check_step, fill_gaps
from eattn.timeseries.scaling import Scaler, forward_fill

CHUNK = 4096  # values read at once, which bounds memory for long histories
OWN = ("seen", "last", "expected")  # tensors of a ForecasterState outside its encoder
Named = dict[str, Tensor]


def read(
    model: Forecaster,
    x: Tensor,
    *,
    calendar: Tensor | None = None,
    key_mask: Tensor | None = None,
    before: ForecasterState | None = None,
) -> ForecasterState:
    """Read x [B, L, C] with calendar [B, L, F] and key_mask [B, L] in one parallel pass.

    Lags before the first value repeat it. Padding must come first and repeat the first valid
    value.
    """
    B, _, C = x.shape
    lags = model.channels // C
    earlier = x[:, :1].expand(-1, lags - 1, -1)
    if before is not None:
        earlier = before.last.view(B, lags, C)[:, : lags - 1].flip(1)
    windows = torch.cat([earlier, x], 1).unfold(1, lags, 1)  # [B, L, C, lags], oldest first
    tokens = windows.transpose(2, 3).flip(2).flatten(2)
    given: Any = dict(calendar=calendar, key_mask=key_mask, state=before, return_state=True)
    state: ForecasterState = model(tokens, **given)[1]
    return state


def roll_out(
    model: Forecaster,
    state: ForecasterState,
    horizon: int,
    *,
    channels: int = 1,
    calendar: Tensor | None = None,
) -> Tensor:
    """Forecast [B, horizon, channels], each value from the forecasts before it.

    `calendar` has shape [B, horizon, F].
    """
    forecast = [state.expected[:, :channels]]
    for i in range(horizon - 1):
        token = torch.cat([forecast[-1], state.last[:, :-channels]], 1)
        _, state = model.step(token, state, None if calendar is None else calendar[:, i])
        forecast.append(state.expected[:, :channels])
    return torch.stack(forecast, 1)


@dataclass(frozen=True)
class SeriesState:
    """State of one series after its last value; immutable and of constant size."""

    unique_id: Any
    freq: Freq
    scaler: Scaler
    ds: Time  # time of the last row
    y: float  # last known value
    count: int = 0  # number of values read
    states: tuple[ForecasterState, ...] = ()  # oldest first; empty with a window
    window: Named = field(default_factory=dict)  # last x [1, n, 1] and calendar [1, n, F]

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        own = sum(x.numel() * x.element_size() for x in self.window.values())
        return own + sum(state.nbytes for state in self.states)

    def next_times(self, count: int) -> Times:
        """Return the next `count` times."""
        return times_after(self.freq, self.ds, count)

    def recent(self) -> tuple[Times, Values]:
        """Return the times and values that the state still holds."""
        if self.states:
            x = self.states[0].last[0, : self.count].flip(0)
        else:
            x = self.window["x"][0, :, 0]
        values = self.scaler.inverse_transform(x.double().cpu().numpy())
        return times_until(self.freq, self.ds, len(values)), values

    def following(self, series: TimeSeries) -> TimeSeries:
        """Return the rows of a series after the last row."""
        if series.ds is None:
            return series
        times = self._in_zone(series.ds)
        new = times > self.ds
        return replace(series, ds=times[new], y=series.y[new])

    def new_rows(self, series: TimeSeries) -> tuple[Times, Values]:
        """Return new rows with gaps filled; raise unless they follow the last row."""
        times, name = series.ds, self.unique_id
        if times is None:
            return self.next_times(len(series)), series.y
        times = self._in_zone(times)
        if times[0] == self.ds:
            raise ValueError(f"series {name!r}: {times[0]} is already known")
        if times[0] < self.ds:
            raise ValueError(
                f"series {name!r}: {times[0]} is before {self.ds}, the last known time"
            )
        try:
            filled = fill_gaps(self.freq, times, series.y, after=self.ds, count=self.count)
        except ValueError as error:
            raise ValueError(f"series {name!r}: {error}") from None
        check_step(name, times, self.freq)
        return filled

    def _in_zone(self, times: Times) -> Times:
        """Return times in the zone of the series; raise if they cannot be compared with it."""
        if isinstance(self.freq, int) != (times.dtype.kind == "i"):
            kind = "an integer" if isinstance(self.freq, int) else "a time"
            raise ValueError(f"series {self.unique_id!r}: ds must be {kind}, got {times[0]}")
        if isinstance(self.freq, int) or (times.tz is None and self.ds.tz is None):
            return times
        if times.tz is None or self.ds.tz is None:
            zones = (self.ds.tz, times.tz)
            have, new = (f"the time zone {tz}" if tz else "no time zone" for tz in zones)
            raise ValueError(
                f"series {self.unique_id!r}: the history has {have}, but {times[0]} has {new};"
                " use a zone for both or for neither"
            )
        return times.tz_convert(self.ds.tz)

    def tensors(self) -> list[Named]:
        """Return the tensors of every state, or of the window, by name."""
        return [to_named(state) for state in self.states] or [self.window]


@dataclass(frozen=True)
class Predictor:
    """Trained model that reads series through decoding states or from a window.

    A state that has seen more values than the model was trained on forecasts worse. With a
    `context`, a new state therefore starts every context / 2 values and replaces the older one
    after `context` values. Forecasts come from a state of the last context / 2 to context values,
    or of all values if there are fewer.
    """

    model: Forecaster
    fields: tuple[str, ...]  # calendar fields that the model reads
    window: int | None  # number of values to forecast from; None: the whole history
    context: int | None  # number of values that a state may see; None: no limit

    def start(self, series: TimeSeries, scaler: Scaler, length: int | None = None) -> SeriesState:
        """Return the state of a series after its first `length` values, by default all."""
        assert series.ds is not None and series.freq is not None
        empty = SeriesState(series.unique_id, series.freq, scaler, None, float(series.y[0]))
        return self.advance(empty, series.ds[:length], series.y[:length])

    def advance(self, state: SeriesState, times: Times, values: Values) -> SeriesState:
        """Return the state after further values."""
        filled = forward_fill(values, before=state.y)
        like = next(self.model.parameters())
        scaled = torch.from_numpy(state.scaler.transform(filled))
        x = scaled.to(like.device, like.dtype).reshape(1, -1, 1)
        calendar = self._calendar([times])
        after = replace(state, ds=times[-1], y=float(filled[-1]), count=state.count + len(values))
        if self.window is None:
            return replace(after, states=self._read_states(state, x, calendar))
        new = {"x": x} if calendar is None else {"x": x, "calendar": calendar}
        if state.window:
            new = {name: torch.cat([state.window[name], v], 1) for name, v in new.items()}
        # A view would keep the whole history in memory.
        last = {name: v[:, -self.window :].clone() for name, v in new.items()}
        return replace(after, window=last)

    def forecast(
        self, states: Sequence[SeriesState], horizon: int
    ) -> tuple[list[Times], NDArray[np.float64]]:
        """Return the next times of each series and their scaled forecasts [series, horizon]."""
        times = [state.next_times(horizon) for state in states]
        calendar = self._calendar(times)
        result: list[Tensor] = [torch.empty(0)] * len(states)
        with torch.no_grad():
            starts = [self._start_of(state) for state in states]
            for rows, batch in stack_alike([to_named(start) for start in starts]):
                together = from_named(starts[rows[0]], batch)
                ahead = None if calendar is None else calendar[rows]
                y = roll_out(self.model, together, horizon, calendar=ahead)
                for row, forecast in zip(rows, y, strict=True):
                    result[row] = forecast
        scaled: NDArray[np.float64] = torch.stack(result).squeeze(-1).double().cpu().numpy()
        return times, scaled

    def restore(self, state: SeriesState, tensors: Sequence[Named]) -> SeriesState:
        """Restore the tensors of a state from the result of `SeriesState.tensors`."""
        if self.window is not None:
            return replace(state, window=tensors[0])
        like = next(self.model.parameters())
        shape = (1, 1, len(self.fields))
        calendar = torch.ones(shape, dtype=torch.int64, device=like.device) if self.fields else None
        example = self._read(like.new_zeros(1, 1, 1), calendar, None)
        return replace(state, states=tuple(from_named(example, named) for named in tensors))

    def _start_of(self, state: SeriesState) -> ForecasterState:
        """Return the decoding state that a forecast starts from."""
        if self.window is None:
            return state.states[0]
        return read(self.model, state.window["x"], calendar=state.window.get("calendar"))

    def _read_states(
        self, before: SeriesState, x: Tensor, calendar: Tensor | None
    ) -> tuple[ForecasterState, ...]:
        known = dict(zip(self._state_starts(before.count), before.states, strict=False))
        starts = self._state_starts(before.count + x.shape[1])
        after = {}
        for start in dict.fromkeys(starts):
            skipped = max(start - before.count, 0)
            times = None if calendar is None else calendar[:, skipped:]
            after[start] = self._read(x[:, skipped:], times, known.get(start))
        return tuple(after[start] for start in starts)

    def _state_starts(self, count: int) -> tuple[int, ...]:
        """Return the positions at which the states in use after `count` values started."""
        if self.context is None:
            return (0,)
        half = -(-self.context // 2)
        young = (count - 1) // half * half
        return max(young - half, 0), young

    @torch.no_grad()
    def _read(
        self, x: Tensor, calendar: Tensor | None, state: ForecasterState | None
    ) -> ForecasterState:
        """Read x [1, n, 1] in chunks."""
        for start in range(0, x.shape[1], CHUNK):
            chunk = slice(start, start + CHUNK)
            times = None if calendar is None else calendar[:, chunk]
            state = read(self.model, x[:, chunk], calendar=times, before=state)
        assert state is not None
        return state

    def _calendar(self, times: Sequence[Times]) -> Tensor | None:
        """Return the calendar fields [series, n, F] at n times of each series."""
        if not self.fields:
            return None
        device = next(self.model.parameters()).device
        read = [calendar_fields(wall(each).to_numpy(), self.fields) for each in times]
        return torch.stack(read).to(device)


def to_named(state: ForecasterState) -> Named:
    """Return the tensors of a decoding state by name."""
    named = {f"state.{name}": getattr(state, name) for name in OWN}
    for number, layer in enumerate(state.encoder.layers):
        named |= {f"{number}.{name}": x for name, x in parts(layer).items()}
    return named


def from_named(example: ForecasterState, named: Named) -> ForecasterState:
    """Return a decoding state with the structure of `example` and these tensors."""
    layers = []
    for number, layer in enumerate(example.encoder.layers):
        own = {n.partition(".")[2]: x for n, x in named.items() if n.startswith(f"{number}.")}
        layers.append(rebuilt(layer, own))
    return ForecasterState(
        EncoderState(tuple(layers)), **{name: named[f"state.{name}"] for name in OWN}
    )


def stack_alike(items: Sequence[Named]) -> Iterable[tuple[list[int], Named]]:
    """Yield the indices of items with equal names and shapes, and their tensors as a batch."""

    def shapes(number: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(x.shape)) for name, x in items[number].items()]

    for _, group in groupby(sorted(range(len(items)), key=shapes), key=shapes):
        rows = list(group)
        yield rows, {name: torch.cat([items[i][name] for i in rows]) for name in items[rows[0]]}
