"""Forecasts from earlier moments of a series, and how good they were."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from eattn.timeseries.inputs import ID, VALUE, need_pandas
from eattn.timeseries.regularize import Record
from eattn.timeseries.scaling import Scale
from eattn.timeseries.tracks import Reader, Track, begin

if TYPE_CHECKING:
    import pandas as pd


def replay(
    reader: Reader, record: Record, scale: Scale, *, windows: int, step: int, horizon: int
) -> list[Track]:
    """Where a series stood at `windows` moments, `step` apart, the last a horizon before its end.

    From one to the next through the state: every value is read once.
    """
    origins = [len(record) - horizon - step * i for i in reversed(range(windows))]
    least = reader.window or 1
    if origins[0] < least:
        raise ValueError(
            f"series {record.name!r} has {len(record)} values, {windows} windows of"
            f" horizon {horizon} and step {step} need {len(record) - origins[0] + least}"
        )
    tracks = [begin(reader, record, scale, origins[0])]
    for origin in origins[1:]:
        since = slice(origin - step, origin)
        tracks.append(tracks[-1].after(reader, record.times[since], record.values[since]))
    return tracks


def with_truth(table: "pd.DataFrame", moments: Sequence[tuple[Record, Track]]) -> "pd.DataFrame":
    """Forecasts from these moments with columns `cutoff`, the last time known then, and y."""
    horizon = len(table) // len(moments)
    places = [(record, track.memory.count) for record, track in moments]
    cutoffs = np.array([record.times.to_numpy()[place - 1] for record, place in places])
    values = [record.values[place : place + horizon] for record, place in places]
    table.insert(1, "cutoff", cutoffs.repeat(horizon))
    table.insert(3, VALUE, np.concatenate(values))
    return table


def scores(backtest: "pd.DataFrame", column: str = "EAForecaster") -> "pd.DataFrame":
    """MAE and RMSE of each series, and of `all` values together; missing ones do not count.

    `backtest` has unique_id, y and the column of forecasts, as `EAForecaster.backtest` gives it.
    """
    error = backtest[column] - backtest[VALUE]

    def row(error: "pd.Series[float]") -> dict[str, float]:
        return {"MAE": error.abs().mean(), "RMSE": float(np.sqrt(error.pow(2).mean()))}

    groups = error.groupby(backtest[ID], sort=False, observed=True)
    found = {name: row(group) for name, group in groups} | {"all": row(error)}
    return need_pandas().DataFrame.from_dict(found, orient="index").rename_axis(ID)
