"""Follow a batch of series by one step: `timeseries.tracking` and `timeseries.features` as tensors.

The results equal those of the library, but there are no branches, so that a graph can hold them.
All numbers are in float64: a value may be a million times as large as the scale of its series.
Axes: B series, R rows with the newest last, C columns.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eattn.timeseries.features import FARTHEST, LONGEST_TREND, phase
from eattn.timeseries.tracking import (
    FAST,
    FAST_HALF_LIFE,
    MOVE,
    MOVE_HALF_LIFE,
    PROFILE_RATE,
    SCALE,
    SCALE_HALF_LIFE,
    SEASONAL,
    SLOPE,
    SLOW,
    SLOW_HALF_LIFE,
    SPIKE,
    VALUE,
    WARMUP,
    level_column,
    profile_column,
    rate_of,
    smallest_scale,
)


class Track(NamedTuple):
    """Last rows and counters of each series; see `eattn.timeseries.tracking.Track`."""

    rows: Tensor  # [B, R, C]
    steps: Tensor  # [B]; fewer than R rows are filled before that many steps
    known: Tensor  # [B]
    first: Tensor  # [B]
    spikes: Tensor  # [B]
    held: Tensor  # [B], 0 or 1: onnxruntime cannot select between booleans


def rows_needed(seasons: Sequence[int]) -> int:
    """Return the number of rows R that one more step and its forecasts depend on."""
    return 2 * max(seasons, default=1)


def empty(seasons: Sequence[int]) -> Track:
    """Return the track of one series without values."""
    zero, count = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    rows = zero.new_zeros(1, rows_needed(seasons), SEASONAL + 2 * len(seasons))
    return Track(rows, count, count, zero, count, count)


def follow(y: Tensor, before: Track, seasons: Sequence[int]) -> Track:
    """Return the track after one value [B] of each series, NaN if missing."""
    rows, steps, known, first, spikes, held = before
    fresh, missing = steps == 0, y.isnan()
    first = torch.where(fresh, y, first)
    levels = [level_column(season) for season in range(len(seasons))]
    start = _constant(column in (VALUE, FAST, SLOW, *levels) for column in range(rows.shape[2]))
    last = torch.where(fresh.unsqueeze(1), first.unsqueeze(1) * start, rows[:, -1])
    value, nearest = last[:, VALUE], seasons[0] if seasons else 1
    usual = torch.where(steps >= nearest, rows[:, -nearest, VALUE], value)
    y = torch.where(missing, value, y)
    change, unusual = y - value, (y - usual).abs()
    limit = SPIKE * last[:, SCALE] * torch.pow(10.0, spikes.to(y.dtype))
    judged = ~missing & (known >= WARMUP)
    outside = judged & (torch.minimum(change.abs(), unusual) > limit) & (held == 0)
    outside &= (spikes == 0) | (last[:, SCALE] > smallest_scale(last[:, SLOW]))
    missing, held = missing | outside, torch.where(judged, outside.long(), held)
    spikes, steps, known = spikes + outside.long(), steps + 1, known + (~missing).long()

    error = torch.maximum(unusual, 0.1 * (y - last[:, SLOW]).abs())
    slow_half_life = max(SLOW_HALF_LIFE, float(seasons[0]) if seasons else 0.0)
    scale_half_life = max(SCALE_HALF_LIFE, 4.0 * max(seasons, default=1))
    # Running means: target, half-life, first known value that counts, and factor of the rate.
    means = {
        FAST: (y, FAST_HALF_LIFE, 0, 1.0),
        SLOW: (y, slow_half_life, 0, 1.0),
        SCALE: (error, scale_half_life, 1, 1.0),
        SLOPE: (change, MOVE_HALF_LIFE, 0, 0.5),
        MOVE: (change.abs(), MOVE_HALF_LIFE, 1, 1.0),
    }
    for column, m in zip(levels, seasons, strict=True):
        means[column] = (y, max(SLOW_HALF_LIFE, float(m)), 0, 1.0)
    targets, half_lives, skipped, factors = zip(*means.values(), strict=True)
    counted = (known.unsqueeze(1) - torch.tensor(skipped)).clamp(min=1)
    rate = torch.maximum(1.0 / counted.to(y.dtype), _constant(map(rate_of, half_lives)))
    rate = torch.where(missing.unsqueeze(1), 0.0, rate * _constant(factors))
    mean = last[:, list(means)]
    mean = mean + rate * (torch.stack(targets, 1) - mean)

    value = torch.where(missing, value, y)
    fast, slow, scale, slope, move = mean[:, : len(means) - len(levels)].unbind(1)
    scale = torch.maximum(scale, smallest_scale(slow))
    count = steps.to(y.dtype).unsqueeze(1)
    drift = (value - first) / (count[:, 0] - 1).clamp(min=1)
    row = torch.stack([value, fast, slow, scale, slope, move, drift], 1)
    if seasons:
        lengths, level = _constant(seasons), mean[:, -len(seasons) :]
        columns = [profile_column(season) for season in range(len(seasons))]
        complete = count > lengths
        profile = torch.where(complete, rows[:, [-m for m in seasons], columns], 0.0)
        rate = torch.where(complete, (lengths / count).clamp(min=PROFILE_RATE), 1.0)
        rate = torch.where(missing.unsqueeze(1), 0.0, rate)
        profile = profile + rate * (y.unsqueeze(1) - level - profile)
        row = torch.cat([row, torch.stack([level, profile], 2).flatten(1)], 1)
    return Track(torch.cat([rows[:, 1:], row.unsqueeze(1)], 1), steps, known, first, spikes, held)


def read_tokens(track: Track, seasons: Sequence[int]) -> Tensor:
    """Return what a forecaster reads after the last step: [B, features], in float32."""
    values, newest = track.rows[..., VALUE], track.rows.shape[1] - 1
    now = track.rows[:, -1].unbind(1)
    lags = torch.tensor([1, *(lag for m in seasons for lag in (m, m - 1))])
    ago = values.gather(1, torch.maximum(newest - lags, _oldest(track))).unbind(1)
    value = now[VALUE]
    x = [value - ago[0], value - now[FAST], value - now[SLOW]]
    x += [4 * now[SLOPE], 0.1 * now[SLOW], now[MOVE]]
    for season in range(len(seasons)):
        before, following = ago[1 + 2 * season], ago[2 + 2 * season]
        expected = now[level_column(season)] + now[profile_column(season)]
        x += [value - before, following - value, value - expected]
    # onnxruntime has no asinh for float64.
    return torch.asinh((torch.stack(x, 1) / now[SCALE].unsqueeze(1)).float())


def look_ahead(track: Track, horizon: int, seasons: Sequence[int]) -> Tensor:
    """Return the simple forecasts as differences in scales: [B, H, rules], in float32."""
    newest, oldest = track.rows.shape[1] - 1, _oldest(track)
    now = track.rows[:, -1:]
    value, fast, slow, scale, slope, _, drift = now[..., :SEASONAL].unbind(2)  # each [B, 1]
    steps, x = np.arange(1, horizon + 1), []
    for season, m in enumerate(seasons):
        columns = (VALUE, level_column(season), profile_column(season))
        values, levels, profiles = (track.rows[..., column] for column in columns)
        back = newest + torch.from_numpy(phase(m, steps))  # [H]
        at = torch.maximum(back, oldest)  # [B, H]
        once, level_then, level = values.gather(1, at), levels.gather(1, at), levels[:, -1:]
        shifted, positive = once + level - level_then, (level_then > 0) & (level > 0)
        own = [
            once,
            values.gather(1, torch.where(back - m >= oldest, back - m, at)),
            level + profiles.gather(1, at),
            shifted,
            torch.where(positive, once * level / torch.where(positive, level_then, 1.0), shifted),
        ]
        unknown = (back < oldest).unsqueeze(2)
        x.append(torch.where(unknown, value.unsqueeze(2), torch.stack(own, 2)))
    h = _constant(steps)
    plain = [value, value + drift * h, value + slope * h.clamp(max=LONGEST_TREND), fast, slow]
    x.append(torch.stack([each.expand(-1, horizon) for each in plain], 2))
    apart = (torch.cat(x, 2) - value.unsqueeze(2)) / scale.unsqueeze(2)
    return apart.clamp(-FARTHEST, FARTHEST).float()


def _constant(numbers: Iterable[float]) -> Tensor:
    return torch.tensor([float(x) for x in numbers], dtype=torch.float64)


def _oldest(track: Track) -> Tensor:
    """Return the position of the oldest row of each series: [B, 1]."""
    R = track.rows.shape[1]
    return (R - track.steps).clamp(min=0).unsqueeze(1)
