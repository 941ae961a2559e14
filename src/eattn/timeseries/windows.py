"""Windows of many series, split into training and validation parts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn.timeseries.features import Index, look_ahead, read_tokens, step_features
from eattn.timeseries.inputs import TimeSeries
from eattn.timeseries.tracking import MOVE, SCALE, VALUE, Rows, Track, follow

PAST = 512  # number of tokens in a window
ORIGINS = 16  # times in a window from which the model forecasts
STEPS = 48  # steps ahead per time; more are drawn at random from a longer horizon
STRIDE = 8  # windows start this many times per length of a window
MIN_PAST = 4  # values before the first forecast of a window
SHARED = 32  # times that share a window
BATCH_TIMES = 256  # times in a batch
MAX_HORIZONS = 50  # validate on at most this many horizons; recent values matter for training

WindowBatch = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """Rows, tokens and known future of many series, one after the other."""

    seasons: tuple[int, ...]
    horizon: int
    rows: Rows  # [N, columns]
    tokens: NDArray[np.float32]  # [N, features]
    values: NDArray[np.float64]  # [N], NaN where a value is missing or taken for an error
    starts: Index  # first row of each series, and N
    known: NDArray[np.float32]  # [N + series * horizon, columns]: also for the steps after the end
    tracks: Sequence[Track]  # of the series after their last value

    @classmethod
    def of(
        cls,
        series: Sequence[TimeSeries],
        known: Sequence[NDArray[np.float32]],
        past: Sequence[NDArray[np.float32]],
        *,
        seasons: tuple[int, ...],
        horizon: int,
    ) -> Self:
        """Follow the series.

        `known` holds what is known in advance, also for `horizon` steps after the last row; `past`
        what is known of the past only.
        """
        tracks = [follow(s.y.tolist(), seasons)[1] for s in series]
        rows = np.concatenate([track.rows for track in tracks])
        starts = np.cumsum([0, *map(len, series)])
        first = np.repeat(starts[:-1], np.diff(starts))
        tokens = read_tokens(rows, np.arange(len(rows)), first, seasons)
        own = np.concatenate([each[: len(s)] for s, each in zip(series, known, strict=True)])
        values = np.concatenate([s.y for s in series])
        return cls(
            seasons,
            horizon,
            rows,
            np.concatenate([tokens, own, np.concatenate(past)], -1),
            np.where(rows[:, VALUE] == values, values, np.nan),
            starts,
            np.concatenate(known),
            tracks,
        )

    def batch(
        self, numbers: Index, origins: Index, begins: Index, past: int, steps: Index, ends: Index
    ) -> WindowBatch:
        """Return windows of `past` tokens and the steps ahead of times in them.

        Parameters
        ----------
        numbers : shape (B,)
            Series of each window.
        origins : shape (B, O)
            Times to forecast from, counted from the start of the series.
        begins : shape (B,)
            First token of each window, counted likewise.
        past : int
            Number of tokens.
        steps : shape (H,)
            Steps ahead.
        ends : shape (B,)
            First value of each series that must not be used.
        """
        start, after = self.starts[numbers], self.starts[numbers + 1]
        tokens = np.minimum(start[:, None] + begins[:, None] + np.arange(past), after[:, None] - 1)
        at = start[:, None] + origins
        first = np.broadcast_to(start[:, None], at.shape)
        rules = look_ahead(self.rows, at, first, steps, self.seasons)
        features = step_features(steps)
        ahead = origins[..., None] + steps
        known = self.known[(start + numbers * self.horizon)[:, None, None] + ahead]
        features = np.concatenate(
            [np.broadcast_to(features, (*at.shape, *features.shape)), known], -1
        )
        targets = start[:, None, None] + ahead
        values = self.values[np.minimum(targets, len(self.values) - 1)]
        counts = (ahead < ends[:, None, None]) & np.isfinite(values)
        now = self.rows[at][..., None, :]
        scaled = np.where(counts, (values - now[..., VALUE]) / now[..., SCALE], 0.0)
        return {
            "tokens": torch.from_numpy(self.tokens[tokens]),
            "origins": torch.from_numpy(origins - begins[:, None]),
            "rules": torch.from_numpy(rules.astype(np.float32)),
            "features": torch.from_numpy(features),
            "y": torch.from_numpy(scaled.astype(np.float32)),
            "counts": torch.from_numpy(counts),
            "move": torch.from_numpy((now[..., 0, MOVE] / now[..., 0, SCALE]).astype(np.float32)),
        }


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """Random windows before the validation part, for `eattn.train.Task`."""

    table: SeriesTable
    ends: Index  # number of values of each series to train on
    seed: int
    samples: Index = field(init=False)  # series of each window
    past: int = field(init=False)

    def __post_init__(self) -> None:
        past = int(min(PAST, self.ends.max()))
        counts = np.maximum(STRIDE * np.maximum(self.ends - past, 0) // past, 1)
        counts = np.where(self.ends > MIN_PAST, counts, 0)
        if 0 < counts.sum() < 32:
            counts *= -(-32 // int(counts.sum()))
        object.__setattr__(self, "past", past)
        object.__setattr__(self, "samples", np.repeat(np.arange(len(counts)), counts))

    def __len__(self) -> int:
        return len(self.samples)

    def collate(self, indices: list[int]) -> WindowBatch:
        return self.collate_share(indices, indices)

    def collate_share(self, indices: list[int], batch: list[int]) -> WindowBatch:
        """Draw the windows of a batch, and return those of one process."""
        # Drawn from the batch itself, so that a resumed run draws the same.
        rng = np.random.default_rng([self.seed, *batch])
        ends = self.ends[self.samples[batch]]
        begins = (rng.random(len(batch)) * (np.maximum(ends - self.past, 0) + 1)).astype(np.int64)
        low = begins + np.minimum(MIN_PAST, ends // 2) - 1
        high = np.minimum(begins + self.past, ends - 1)
        share = rng.random((len(batch), ORIGINS))
        origins = (low[:, None] + share * (high - low)[:, None]).astype(np.int64)
        steps = np.arange(1, self.table.horizon + 1)
        if len(steps) > STEPS:
            steps = np.sort(rng.choice(steps, STEPS, replace=False))
        own = np.isin(batch, indices)
        numbers = self.samples[batch][own]
        return self.table.batch(numbers, origins[own], begins[own], self.past, steps, ends[own])


@dataclass(frozen=True, eq=False)
class ForecastWindows:
    """Given times to forecast from, sorted by series and time, in batches of windows.

    Times near each other share a window, so each sees at least PAST tokens, or all.
    """

    table: SeriesTable
    numbers: Index  # series of each time
    origins: Index  # counted from the start of the series

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[WindowBatch]:
        """Yield batches of windows with all steps ahead; `given` [B, O] excludes padding."""
        steps = np.arange(1, self.table.horizon + 1)
        lengths = np.diff(self.table.starts)
        for starts, counts in self._batches():
            order = np.arange(counts.max())
            given = order < counts[:, None]
            origins = self.origins[starts[:, None] + np.minimum(order, counts[:, None] - 1)]
            numbers = self.numbers[starts]
            begins = np.maximum(origins[:, 0] - PAST + 1, 0)
            past = int((origins[:, -1] - begins).max()) + 1
            batch = self.table.batch(numbers, origins, begins, past, steps, lengths[numbers])
            yield batch | {"given": torch.from_numpy(given)}

    def _batches(self) -> Iterator[tuple[Index, Index]]:
        """Yield the first time and the number of times of the windows of each batch."""
        starts, counts, most = list[int](), list[int](), 0
        for at, (number, origin) in enumerate(zip(self.numbers, self.origins, strict=True)):
            first = starts[-1] if starts else at
            near = self.numbers[first] == number and origin - self.origins[first] < PAST
            if starts and near and counts[-1] < SHARED:
                counts[-1] += 1
            else:
                if (len(starts) + 1) * most > BATCH_TIMES:
                    yield np.array(starts), np.array(counts)
                    starts, counts, most = [], [], 0
                starts.append(at)
                counts.append(1)
            most = max(most, counts[-1])
        if starts:
            yield np.array(starts), np.array(counts)

    def some(self, limit: int) -> Self:
        """Return at most `limit` of the times, evenly spread."""
        if len(self) <= limit:
            return self
        chosen = np.linspace(0, len(self) - 1, limit).round().astype(np.int64)
        return replace(self, numbers=self.numbers[chosen], origins=self.origins[chosen])


def validation_sizes(lengths: Index, horizon: int, fraction: float) -> Index:
    """Return the number of last values of each series to validate on.

    It is 0 if fewer than a horizon would remain for training.
    """
    sizes = np.clip((fraction * lengths).astype(np.int64), horizon, MAX_HORIZONS * horizon)
    enough = lengths - sizes >= max(horizon, MIN_PAST + 1)
    return np.where(enough & (fraction > 0), sizes, 0)


def validation_windows(table: SeriesTable, sizes: Index, limit: int) -> ForecastWindows:
    """Return times whose forecasts lie in the validation part, at most `limit` per series."""
    numbers, origins = [], []
    for number, (length, size) in enumerate(zip(np.diff(table.starts), sizes, strict=True)):
        if size:
            last, count = length - table.horizon - 1, size - table.horizon + 1
            own = np.unique(np.linspace(last - count + 1, last, min(count, limit)).round())
            numbers.append(np.full(len(own), number))
            origins.append(own.astype(np.int64))
    if not numbers:
        return ForecastWindows(table, np.empty(0, np.int64), np.empty(0, np.int64))
    return ForecastWindows(table, np.concatenate(numbers), np.concatenate(origins))


def check_varies(series: Sequence[TimeSeries]) -> None:
    """Raise if all series are constant."""
    for s in series:
        known = s.y[~np.isnan(s.y)]
        if (known != known[0]).any():
            return
    also = "" if len(series) == 1 else ", and so are all others"
    name, value = series[0].unique_id, series[0].y[0]
    raise ValueError(f"series {name!r} is constant ({value:g}){also}; there is nothing to learn")
