"""Inputs of a forecaster: tokens of the past, and features of each step ahead.

Features come from the rows of `tracking`. Differences are divided by the scale of the series, so
that level and unit do not matter. `rows` holds the rows of several series one after the other,
`at` the positions of times in it, and `first` that of the first row of their series.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eattn.timeseries.tracking import (
    DRIFT,
    FAST,
    MOVE,
    SCALE,
    SEASONAL,
    SLOPE,
    SLOW,
    VALUE,
    Rows,
    level_column,
    profile_column,
)

Index = NDArray[np.int64]
Features = NDArray[np.float32]
PLAIN_RULES = ("last", "drift", "trend", "fast level", "slow level")
SEASON_RULES = ("season", "season before", "profile", "shifted season", "scaled season")
TOKEN_FEATURES, SEASON_FEATURES = 6, 3  # of a token, and of each season in it
STEP_FEATURES = 4  # functions of the step ahead
FARTHEST = 1e4  # larger differences are clipped, in scales
LONGEST_TREND = 200  # steps


def rule_names(seasons: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the simple forecasts; the first one is the seasonal naive forecast."""
    seasonal = tuple(f"{name} {m}" for m in seasons for name in SEASON_RULES)
    return (*seasonal, *PLAIN_RULES)


def rows_kept(seasons: Sequence[int], horizon: int) -> int:
    """Return the number of rows from which a stream goes on."""
    return 2 * max(seasons, default=1) + horizon


def read_tokens(rows: Rows, at: Index, first: Index, seasons: Sequence[int]) -> Features:
    """Return what a forecaster reads at these times: [..., features]."""
    now, values = rows[at], rows[:, VALUE]
    value = now[..., VALUE]
    x = np.empty((*at.shape, TOKEN_FEATURES + SEASON_FEATURES * len(seasons)))
    x[..., 0] = value - values[np.maximum(at - 1, first)]
    x[..., 1] = value - now[..., FAST]
    x[..., 2] = value - now[..., SLOW]
    x[..., 3] = 4 * now[..., SLOPE]
    x[..., 4] = 0.1 * now[..., SLOW]
    x[..., 5] = now[..., MOVE]
    for season, m in enumerate(seasons):
        start = TOKEN_FEATURES + SEASON_FEATURES * season
        x[..., start] = value - values[np.maximum(at - m, first)]
        x[..., start + 1] = values[np.maximum(at - m + 1, first)] - value
        level, profile = now[..., level_column(season)], now[..., profile_column(season)]
        x[..., start + 2] = value - level - profile
    x /= now[..., SCALE, None]
    return np.arcsinh(x).astype(np.float32)


def look_ahead(rows: Rows, at: Index, first: Index, steps: Index, seasons: Sequence[int]) -> Rows:
    """Return the simple forecasts [..., H, rules] for steps ahead [..., H].

    They are differences from the last value in scales; a season that a series has not completed
    yet is replaced by the last value.
    """
    now, at, first = rows[at][..., None, :], at[..., None], first[..., None]
    value = now[..., VALUE]
    shape = np.broadcast_shapes(at.shape, steps.shape)
    x = np.empty((*shape, len(SEASON_RULES) * len(seasons) + len(PLAIN_RULES)))
    if seasons:
        own = _season_rules(rows, now, at[..., None], first[..., None], steps, np.array(seasons))
        x[..., : -len(PLAIN_RULES)] = own.reshape(*shape, -1)
    own = x[..., -len(PLAIN_RULES) :]
    own[..., 0] = value
    own[..., 1] = value + now[..., DRIFT] * steps
    own[..., 2] = value + now[..., SLOPE] * np.minimum(steps, LONGEST_TREND)
    own[..., 3] = now[..., FAST]
    own[..., 4] = now[..., SLOW]
    x -= value[..., None]
    x /= now[..., SCALE, None]
    np.maximum(np.minimum(x, FARTHEST, out=x), -FARTHEST, out=x)  # faster than np.clip
    return x


def _season_rules(
    rows: Rows, now: Rows, at: Index, first: Index, steps: Index, lengths: Index
) -> Rows:
    """Return the forecasts from earlier seasons: [..., H, seasons, rules]."""
    back = at + phase(lengths, steps[..., None])  # [..., H, seasons]
    known, once_at = back >= first, np.maximum(back, first)
    columns = SEASONAL + 2 * np.arange(len(lengths))  # of levels; profiles follow
    once, level_then = rows[once_at, VALUE], rows[once_at, columns]
    level = now[..., SEASONAL::2]
    x = np.empty((*back.shape, len(SEASON_RULES)))
    x[..., 0] = once
    x[..., 1] = rows[np.where(back - lengths >= first, back - lengths, once_at), VALUE]
    x[..., 2] = level + rows[once_at, columns + 1]
    x[..., 3] = shifted = once + level - level_then
    positive = (level_then > 0) & (level > 0)
    x[..., 4] = np.where(positive, once * level / np.where(positive, level_then, 1), shifted)
    if not known.all():
        x[~known] = np.broadcast_to(now[..., VALUE, None], back.shape)[~known, None]
    return x


def step_features(steps: Index) -> Features:
    """Return functions of steps ahead: [..., features]."""
    h = steps.astype(np.float32)
    x = np.empty((*h.shape, STEP_FEATURES), np.float32)
    x[..., 0], x[..., 1], x[..., 2], x[..., 3] = 1.0, 0.3 * np.log(h), 1 / h, np.sqrt(h / 100)
    return x


def phase(season: Any, steps: Index) -> Index:
    """Return the offsets of the last values that are whole seasons before the steps ahead."""
    offsets: Index = steps - season * -(-steps // season)
    return offsets
