"""Numenta Anomaly Benchmark (NAB): its files, and its score.

A detector gives every row a score in [0, 1]; rows whose score reaches a threshold are alarms. A
labelled window earns up to 1 point for its first alarm, the more the earlier it comes, or costs
points if it has none. An alarm outside the windows costs points; right after a window it costs
less. The first rows of a file are not scored. One threshold for all files gives the most points.
The score is 100 with the points of a perfect detector and 0 with those of no alarm at all.
"""

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from paper.forecasting.files import data_file
from paper.forecasting.ours import Array

CHOSEN_ON = ("artificialNoAnomaly", "artificialWithAnomaly", "realTraffic", "realTweets")


class Profile(NamedTuple):
    """Points that a false alarm costs, and those that a missed window costs."""

    false_alarm: float
    missed: float


PROFILES = {
    "standard": Profile(0.11, 1.0),
    "low_FP": Profile(0.22, 1.0),
    "low_FN": Profile(0.11, 2.0),
}


class Series(NamedTuple):
    """Values of a file, the first and last row of each labelled window, and rows not scored."""

    values: Array
    windows: list[tuple[int, int]]
    unscored: int
    day: int  # rows in a day


def names() -> list[str]:
    """Return the names of all files, such as realTweets/Twitter_volume_AAPL.csv."""
    return sorted(_labels())


def load(name: str) -> Series:
    """Read a file and its labels."""
    table = pd.read_csv(data_file("anomaly", "NAB", "data", f"{name}.gz"))
    times = table["timestamp"].str[:19]
    first = {time: row for row, time in reversed(list(enumerate(times)))}
    windows = [(first[begin[:19]], first[end[:19]]) for begin, end in _labels()[name]]
    step = pd.to_datetime(times).diff().median()
    unscored = min(math.floor(0.15 * len(table)), 750)
    values = table["value"].to_numpy(np.float64)
    return Series(values, windows, unscored, round(pd.Timedelta("1D") / step))


def _labels() -> dict[str, list[tuple[str, str]]]:
    path = data_file("anomaly", "NAB", "labels", "combined_windows.json")
    found: dict[str, list[tuple[str, str]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def score(series: Sequence[Series], scores: Sequence[Array]) -> dict[str, float]:
    """Return the normalised score of each profile for files with a score per row."""
    return {name: _best(series, scores, profile) for name, profile in PROFILES.items()}


def _best(series: Sequence[Series], scores: Sequence[Array], profile: Profile) -> float:
    """Return the score of a profile with the best threshold."""
    found, changes, count = [], [], 0
    for own, given in zip(series, scores, strict=True):
        if len(given) != len(own.values):
            raise ValueError(f"{len(own.values)} rows must have as many scores, got {len(given)}")
        points, window = _points(own, profile)
        kept = np.arange(own.unscored, len(given))
        order = kept[np.argsort(-given[kept], kind="stable")]  # rows in the order of their alarms
        gain = points[order]
        for number in range(len(own.windows)):
            inside = window[order] == number
            best = np.maximum.accumulate(gain[inside])  # points of the window with more alarms
            gain[inside] = np.diff(best, prepend=-profile.missed)
        found.append(given[order])
        changes.append(gain)
        count += len(own.windows)
    if not count:
        raise ValueError("the files have no labelled windows, so there is nothing to detect")
    thresholds, change = np.concatenate(found), np.concatenate(changes)
    order = np.argsort(-thresholds, kind="stable")
    total = np.cumsum(change[order])  # relative to no alarm
    last = np.append(np.diff(thresholds[order]) != 0, True)  # rows of one score alarm together
    return 100 * max(0.0, float(total[last].max())) / (count * (1 + profile.missed))


def _points(series: Series, profile: Profile) -> tuple[Array, NDArray[np.int64]]:
    """Return the points of an alarm in each row, and the number of its window or -1."""
    rows = np.arange(len(series.values))
    points, window = np.full(len(rows), -profile.false_alarm), np.full(len(rows), -1)
    for begin, end in series.windows:
        after = rows[end + 1 :]
        points[after] = profile.false_alarm * _sigmoid((after - end) / (end - begin))
    for number, (begin, end) in enumerate(series.windows):
        inside = rows[begin : end + 1]
        points[inside] = _sigmoid((inside - end - 1) / (end - begin + 1)) / _sigmoid(-1.0)
        window[inside] = number
    return points, window


def _sigmoid(position: Array | float) -> Array:
    """Return points from 1 to -1 by the position relative to the end of a window, in widths."""
    return np.where(position > 3, -1.0, 2 / (1 + np.exp(5 * np.minimum(position, 3))) - 1)
