"""Backtests: the cutoffs of a series and its states there."""

from collections.abc import Sequence
from itertools import pairwise

from eattn.data.freq import Times
from eattn.timeseries.inputs import TimeSeries
from eattn.timeseries.predictor import Predictor, SeriesState
from eattn.timeseries.scaling import Scaler


def cutoffs(
    series: TimeSeries, *, windows: int, step: int, horizon: int, min_past: int
) -> list[int]:
    """Return the lengths of the past of `windows` forecasts, the last `horizon` before the end."""
    found = [len(series) - horizon - step * i for i in reversed(range(windows))]
    if found[0] < min_past:
        raise ValueError(
            f"series {series.unique_id!r} has {len(series)} values, but {windows} windows of"
            f" horizon {horizon} and step {step} need {len(series) - found[0] + min_past}"
        )
    return found


def replay(
    predictor: Predictor, series: TimeSeries, scaler: Scaler, lengths: Sequence[int]
) -> list[SeriesState]:
    """Return the states after these numbers of values; every value is read once."""
    times = times_of(series)
    states = [predictor.start(series, scaler, lengths[0])]
    for before, length in pairwise(lengths):
        new = slice(before, length)
        states.append(predictor.advance(states[-1], times[new], series.y[new]))
    return states


def times_of(series: TimeSeries) -> Times:
    """Return the times of a regular series, which are always set."""
    assert series.ds is not None
    return series.ds
