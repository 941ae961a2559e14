"""Windows of scaled series, split into training and validation parts."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from eattn.data.freq import Times, wall
from eattn.nn import calendar_fields
from eattn.timeseries.inputs import TimeSeries
from eattn.timeseries.scaling import Scaler, forward_fill

LIMIT = 1e9  # scaled values are clipped to this many standard deviations
CONTEXT = 512  # longest past if neither `window` nor `context` is set
HOUR, DAY = 3600.0, 86400.0  # seconds
CYCLES = {"minute": HOUR, "hour": DAY, "weekday": 7 * DAY, "day": 30.5 * DAY, "month": 365 * DAY}
MAX_HORIZONS = 50  # validate on at most this many horizons; recent values matter for training

WindowBatch = dict[str, Tensor]


class WindowDataset:
    """Windows of many series; a window is some past values and the `horizon` values after them.

    `train` and `validation` return the dataset restricted to the windows of one part. A batch is a
    dictionary of `x` [B, past + horizon, 1], `known` [B, past + horizon] (False for filled values)
    and, if needed, `calendar` [B, past + horizon, F] and `valid` [B, past + horizon] (False for
    padding before the first value).

    The past has `window` values, or up to `context` values if `window` is None. The last
    `validation_fraction` of each series is not trained on.
    """

    def __init__(
        self,
        series: Sequence[TimeSeries],
        *,
        window: int | None,
        context: int | None,
        horizon: int,
        validation_fraction: float,
    ) -> None:
        for s in series:
            check_length(s, window, horizon)
        self.lengths = [len(s) for s in series]
        longest = max(self.lengths)
        self.horizon = horizon
        self.window = window or max(1, min(context or CONTEXT, longest - horizon))
        self.padding = 0 if window else self.window
        self.min_past = window or 1
        # A state may see at most twice as many values as the longest series has.
        self.context = context and min(context, 2 * longest)
        self.fields = varying_fields(s.ds for s in series)
        self.validation_sizes = [
            self._validation_size(n, validation_fraction) for n in self.lengths
        ]
        self.scalers = [
            Scaler.fit(s.y[: len(s) - size], limit=LIMIT)
            for s, size in zip(series, self.validation_sizes, strict=True)
        ]
        parts = [self._columns(s, scaler) for s, scaler in zip(series, self.scalers, strict=True)]
        self.columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.starts = torch.empty(0, dtype=torch.int64)  # first row of each window
        self.vary: int | None = None  # seed of random past lengths; None: always `window` values

    def train(self, seed: int) -> Self:
        """Return all windows before the validation part.

        Without a fixed window, the length of the past is drawn log-uniformly from 1 to `window`
        for each batch, so that the model learns to forecast from a past of any length.
        """
        sizes = zip(self.lengths, self.validation_sizes, strict=True)
        origins = [range(self.min_past, n - size - self.horizon + 1) for n, size in sizes]
        return self._subset(origins, vary=seed if self.padding else None)

    def validation(self, limit: int) -> Self:
        """Return at most `limit` evenly spread windows that forecast the validation part."""
        sizes = zip(self.lengths, self.validation_sizes, strict=True)
        origins = [range(n - size, n - self.horizon + 1 if size else 0) for n, size in sizes]
        return self._subset(origins, limit=limit)

    def __len__(self) -> int:
        return len(self.starts)

    def collate(self, indices: list[int]) -> WindowBatch:
        return self.collate_share(indices, indices)

    def collate_share(self, indices: list[int], batch: list[int]) -> WindowBatch:
        """Collate the windows of one process; the past length depends on the whole batch."""
        rows = torch.arange(self.window - self._past(batch), self.window + self.horizon)
        rows = self.starts[indices].unsqueeze(1) + rows
        return {name: column[rows] for name, column in self.columns.items()}

    def _past(self, batch: list[int]) -> int:
        """Draw the past length from the batch itself, so that a resumed run draws the same."""
        if self.vary is None:
            return self.window
        share = np.random.default_rng([self.vary, *batch]).random()
        return min(int((self.window + 1) ** share), self.window)

    def _validation_size(self, length: int, fraction: float) -> int:
        """Return the number of validation values; 0 if too few would remain for training."""
        size = min(max(int(fraction * length), self.horizon), MAX_HORIZONS * self.horizon)
        enough = length - size >= self.min_past + self.horizon
        return size if fraction and enough else 0

    def _columns(self, series: TimeSeries, scaler: Scaler) -> dict[str, Tensor]:
        """Return the columns of one series, with padding in front."""
        x = scaler.transform(series.y)
        known = torch.from_numpy(~np.isnan(x))
        filled = torch.from_numpy(forward_fill(x, x[0])).float().unsqueeze(1)
        columns = {"x": self._padded(filled), "known": self._padded(known, False)}
        if self.padding:
            columns["valid"] = self._padded(torch.ones_like(known), False)
        if self.fields:
            assert series.ds is not None
            times = calendar_fields(wall(series.ds).to_numpy(), self.fields)
            columns["calendar"] = self._padded(times)
        return columns

    def _padded(self, column: Tensor, fill: Any = None) -> Tensor:
        """Prepend `padding` copies of the first row, or of `fill`."""
        front = column[:1].expand(self.padding, *column.shape[1:])
        return torch.cat([front if fill is None else torch.full_like(front, fill), column])

    def _subset(
        self, origins: Sequence[range], *, vary: int | None = None, limit: int | None = None
    ) -> Self:
        """Return the windows whose forecasts start at these positions of each series."""
        starts, offset = [], 0
        for length, span in zip(self.lengths, origins, strict=True):
            starts.append(offset + self.padding - self.window + np.array(span, dtype=np.int64))
            offset += self.padding + length
        chosen = np.concatenate(starts)
        ahead = chosen[:, None] + self.window + np.arange(self.horizon)
        chosen = chosen[self.columns["known"].numpy()[ahead].any(1)]
        if limit is not None and len(chosen) > limit:
            chosen = chosen[np.linspace(0, len(chosen) - 1, limit).round().astype(np.int64)]
        subset = copy.copy(self)
        subset.starts, subset.vary = torch.from_numpy(chosen), vary
        return subset


def check_length(series: TimeSeries, window: int | None, horizon: int) -> None:
    """Raise unless a series is long enough for a window."""
    if window is not None and len(series) < window + horizon:
        needed = (
            f"window={window} and horizon={horizon} need" if horizon else f"window={window} needs"
        )
        raise ValueError(
            f"series {series.unique_id!r} has {len(series)} values, but"
            f" {needed} at least {window + horizon}"
        )


def check_varies(series: Sequence[TimeSeries]) -> None:
    """Raise if all series are constant."""
    for s in series:
        known = s.y[~np.isnan(s.y)]
        if (known != known[0]).any():
            return
    also = "" if len(series) == 1 else ", and so are all others"
    name, value = series[0].unique_id, series[0].y[0]
    raise ValueError(f"series {name!r} is constant ({value:g}){also}; there is nothing to learn")


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
