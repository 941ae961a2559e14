"""Training windows of the forecaster: scaled series, split into training and validation parts."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from eattn.nn import calendar_fields
from eattn.timeseries.freq import varying_fields
from eattn.timeseries.inputs import TimeSeries
from eattn.timeseries.scaling import Scaler, forward_fill

LIMIT = 1e9  # standard deviations at which scaled values are clipped
CONTEXT = 512  # longest past where neither `window` nor `context` is set
MAX_HORIZONS = (
    50  # validate on at most this many horizons: the latest values are the best to train on
)

WindowBatch = dict[str, Tensor]


class WindowDataset:
    """Windows of many series: some past, and the `horizon` values after it.

    `train` and `validation` return the dataset restricted to the windows of either part. A batch is
    a dictionary of `x` [B, past + horizon, 1], `known` [B, past + horizon] (False for values that
    were filled in), and where needed `calendar` [B, past + horizon, F] and `valid` [B, past +
    horizon] (False for padding before the first value).

    The past has `window` values; None: up to `context`, and fewer at the start of a series. The
    last `validation_fraction` of each series is not trained on.
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
        # A state may see twice the values that there are to train on, but no more.
        self.context = context and min(context, 2 * longest)
        self.fields = varying_fields(s.ds for s in series)
        self.held_out = [self._validation_size(n, validation_fraction) for n in self.lengths]
        self.scalers = [
            Scaler.fit(s.y[: len(s) - held], limit=LIMIT)
            for s, held in zip(series, self.held_out, strict=True)
        ]
        parts = [self._columns(s, scaler) for s, scaler in zip(series, self.scalers, strict=True)]
        self.columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        self.starts = torch.empty(0, dtype=torch.int64)  # first row of each window
        self.vary: int | None = None  # seed of the lengths of pasts; None: all have `window` values

    def train(self, seed: int) -> Self:
        """Return all windows before the validation part.

        Without a fixed window the past of each batch has between 1 and `window` values, short pasts
        as often as long ones (log-uniform), so that a model learns to continue from any of them.
        """
        sizes = zip(self.lengths, self.held_out, strict=True)
        origins = [range(self.min_past, n - held - self.horizon + 1) for n, held in sizes]
        return self._subset(origins, vary=seed if self.padding else None)

    def validation(self, limit: int) -> Self:
        """Return at most `limit` evenly spread windows that forecast the validation part."""
        sizes = zip(self.lengths, self.held_out, strict=True)
        origins = [range(n - held, n - self.horizon + 1 if held else 0) for n, held in sizes]
        return self._subset(origins, limit=limit)

    def __len__(self) -> int:
        return len(self.starts)

    def collate(self, indices: list[int]) -> WindowBatch:
        return self.collate_share(indices, indices)

    def collate_share(self, indices: list[int], batch: list[int]) -> WindowBatch:
        """Collate the windows of one process; all processes need the past of the whole batch."""
        rows = torch.arange(self.window - self._past(batch), self.window + self.horizon)
        rows = self.starts[indices].unsqueeze(1) + rows
        return {name: column[rows] for name, column in self.columns.items()}

    def _past(self, batch: list[int]) -> int:
        """Draw the length from the batch itself: a resumed run must draw the same one."""
        if self.vary is None:
            return self.window
        share = np.random.default_rng([self.vary, *batch]).random()
        return min(int((self.window + 1) ** share), self.window)

    def _validation_size(self, length: int, fraction: float) -> int:
        """Return how many of the last values are not trained on; 0 if nothing would be left."""
        held = min(max(int(fraction * length), self.horizon), MAX_HORIZONS * self.horizon)
        enough = length - held >= self.min_past + self.horizon
        return held if fraction and enough else 0

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
            times = calendar_fields(series.ds.to_numpy(), self.fields)
            columns["calendar"] = self._padded(times)
        return columns

    def _padded(self, column: Tensor, fill: Any = None) -> Tensor:
        """Repeat the first row, or `fill`, in front."""
        front = column[:1].expand(self.padding, *column.shape[1:])
        return torch.cat([front if fill is None else torch.full_like(front, fill), column])

    def _subset(
        self, origins: Sequence[range], *, vary: int | None = None, limit: int | None = None
    ) -> Self:
        """Return the windows whose forecast starts at these values of each series."""
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
        also = f" and horizon = {horizon} need {window + horizon}" if horizon else " needs as many"
        raise ValueError(
            f"series {series.unique_id!r} has {len(series)} values, window = {window}{also}"
        )


def check_varies(series: Sequence[TimeSeries]) -> None:
    """Raise if all series are constant; some of many may be."""
    for s in series:
        known = s.y[~np.isnan(s.y)]
        if (known != known[0]).any():
            return
    also = "" if len(series) == 1 else ", and all others are constant too"
    name, value = series[0].unique_id, series[0].y[0]
    raise ValueError(f"series {name!r} is {value:g} throughout{also}: there is nothing to learn")
