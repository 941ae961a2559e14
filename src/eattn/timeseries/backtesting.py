"""Backtests: the cutoffs of a series and its states there."""

from collections.abc import Sequence
from itertools import pairwise

from eattn.data.freq import Times
from eattn.timeseries.inputs import TimeSeries
from eattn.timeseries.predictor import Predictor, SeriesState


def cutoffs(series: TimeSeries, *, windows: int, step: int, horizon: int) -> list[int]:
    """Return the lengths of the past of `windows` forecasts, the last `horizon` before the end."""
    found = [len(series) - horizon - step * i for i in reversed(range(windows))]
    if found[0] < 1:
        raise ValueError(
            f"series {series.unique_id!r} has {len(series)} values, but {windows} windows of"
            f" horizon {horizon} and step {step} need {len(series) - found[0] + 1}"
        )
    return found


def replay(
    predictor: Predictor, start: SeriesState, series: TimeSeries, lengths: Sequence[int]
) -> list[SeriesState]:
    """Return the states after these numbers of values, where `start` is the first of them.

    Every value is read once, and calibrates the intervals of later windows as in a stream.
    """
    states = [start]
    for before, length in pairwise(lengths):
        new = series.take(slice(before, length))
        states += [state for state, _ in predictor.advance(states[-1:], [new])]
    return states


def times_of(series: TimeSeries) -> Times:
    """Return the times of a regular series, which are always set."""
    assert series.ds is not None
    return series.ds
