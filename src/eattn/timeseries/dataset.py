"""Series as they are learnt from: scaled, one after another, and cut into windows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eattn.nn import calendar_fields
from eattn.timeseries.freq import varying_fields
from eattn.timeseries.regularize import Record
from eattn.timeseries.scaling import Scale, carried_forward
from eattn.timeseries.settings import digest
from eattn.timeseries.windows import WindowCases

CONTEXT = 512  # values of a past to learn from, where neither `window` nor `context` says how many
HORIZONS = 50  # held out at the most: the latest values are needed to learn from


def check_length(record: Record, window: int | None, horizon: int) -> None:
    """That a series is long enough for a window."""
    if window is not None and len(record) < window + horizon:
        also = f" and horizon = {horizon} need {window + horizon}" if horizon else " needs as many"
        raise ValueError(
            f"series {record.name!r} has {len(record)} values, window = {window}{also}"
        )


def check_varies(records: Sequence[Record]) -> None:
    """That there is something to learn: one of many may be constant, not all."""
    for record in records:
        known = record.values[~np.isnan(record.values)]
        if (known != known[0]).any():
            return
    also = "" if len(records) == 1 else ", and all others are constant too"
    name, value = records[0].name, records[0].values[0]
    raise ValueError(f"series {name!r} is {value:g} throughout{also}: there is nothing to learn")


class Material:
    """Windows to learn from, and windows of the last part of each series, which are held out.

    A window reads `window` values; None: up to `context`, and fewer where a series has only just
    begun. `fraction` is the share of each series that is held out.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        window: int | None,
        context: int | None,
        horizon: int,
        fraction: float,
    ) -> None:
        for record in records:
            check_length(record, window, horizon)
        self.lengths = [len(record) for record in records]
        longest = max(self.lengths)
        self.horizon = horizon
        self.window = window or max(1, min(context or CONTEXT, longest - horizon))
        self.padding = 0 if window else self.window
        self.least = window or 1  # past values of a window
        # States of twice what there is to learn from are not too far beyond it.
        self.context = context and min(context, 2 * longest)
        self.fields = varying_fields(record.times for record in records)
        self.held = [self._held(length, fraction) for length in self.lengths]
        self.scales = [
            Scale.of(record.values[: len(record) - held])
            for record, held in zip(records, self.held, strict=True)
        ]
        parts = [self._columns(r, s) for r, s in zip(records, self.scales, strict=True)]
        x, known, real, *calendar = (np.concatenate(c) for c in zip(*parts, strict=True))
        self.x = torch.from_numpy(x).float().unsqueeze(1)
        self.known, self.real = torch.from_numpy(known), torch.from_numpy(real)
        self.calendar = torch.from_numpy(calendar[0]) if calendar else None

    def digest(self) -> str:
        """What tells these series from others."""
        found = [self.x, self.known, self.real, self.calendar]
        return digest([x for x in found if x is not None])

    def _held(self, length: int, fraction: float) -> int:
        """How many of the last values are not learnt from; none where that would leave nothing."""
        held = min(max(int(fraction * length), self.horizon), HORIZONS * self.horizon)
        enough = length - held >= self.least + self.horizon
        return held if fraction and enough else 0

    def _columns(self, record: Record, scale: Scale) -> tuple[NDArray[Any], ...]:
        """Values, whether they are known and real, and their calendar, with padding in front."""
        x = scale.apply(record.values)
        known = ~np.isnan(x)
        columns = [carried_forward(x, x[0]), known, np.ones_like(known)]
        if self.fields:
            columns.append(calendar_fields(record.times.to_numpy(), self.fields).numpy())
        padded = [np.concatenate([c[:1].repeat(self.padding, 0), c]) for c in columns]
        for mask in padded[1:3]:
            mask[: self.padding] = False
        return tuple(padded)

    def _cases(self, origins: Sequence[range], vary: int | None, limit: int | None) -> WindowCases:
        """Windows whose first values to foretell are these of each series."""
        starts, offset = [], 0
        for length, span in zip(self.lengths, origins, strict=True):
            starts.append(offset + self.padding - self.window + np.array(span, dtype=np.int64))
            offset += self.padding + length
        chosen = np.concatenate(starts)
        ahead = chosen[:, None] + self.window + np.arange(self.horizon)
        chosen = chosen[self.known.numpy()[ahead].any(1)]
        if limit is not None and len(chosen) > limit:
            chosen = chosen[np.linspace(0, len(chosen) - 1, limit).round().astype(np.int64)]
        real = self.real if self.padding else None
        return WindowCases(
            self.x,
            self.calendar,
            chosen,
            self.window,
            self.horizon,
            real=real,
            known=self.known,
            vary=vary,
        )

    def learnt(self, seed: int) -> WindowCases:
        """All windows that lie before what is held out."""
        spans = [
            range(self.least, length - held - self.horizon + 1)
            for length, held in zip(self.lengths, self.held, strict=True)
        ]
        return self._cases(spans, seed if self.padding else None, None)

    def held_out(self, limit: int) -> WindowCases:
        """Windows whose values to foretell are all held out, evenly spread."""
        spans = [
            range(length - held, length - self.horizon + 1 if held else 0)
            for length, held in zip(self.lengths, self.held, strict=True)
        ]
        return self._cases(spans, None, limit)
