"""Streaming forecasts: read rows of text and yield a forecast after each, in constant memory."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from eattn.timeseries.forecaster import NAME, EAForecaster
from eattn.timeseries.inputs import ID, TIME, VALUE, TimeSeries, check_series
from eattn.timeseries.predictor import SeriesState
from eattn.timeseries.store import plain

FORMATS = ("json", "csv")
MISSING = ("", "nan", "na", "null")


def stream(
    forecaster: EAForecaster, lines: Iterable[str], *, horizon: int | None, form: str
) -> Iterator[str]:
    """Read CSV rows `ds,y` or `unique_id,ds,y` and yield a line with the forecast after each row.

    The first line may name the columns in another order; unknown columns are ignored. A forecast
    is a JSON object with times and values, or a CSV row below a header.
    """
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    horizon = forecaster.horizon if horizon is None else horizon
    names = {str(name): name for name in forecaster.states_}
    columns: list[str] = []
    header = form == "csv"
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line]))]
            if not columns:
                columns, named = _columns(cells, getattr(forecaster, "columns_", None) or {})
                if named:
                    continue
            if len(cells) != len(columns):
                raise ValueError(f"expected {len(columns)} cells, got {len(cells)}")
            row = dict(zip(columns, cells, strict=True))
            state = forecaster._state(names.get(row.get(ID, ""), row.get(ID)))
            [state] = forecaster._update([_new_row(state, row)])
        except (ValueError, csv.Error) as error:
            raise ValueError(f"line {number}: {error}") from None
        table = forecaster._table([state], horizon)
        found = table.filter(regex=f"^{NAME}")
        if form == "json":
            answer = {ID: state.unique_id, "cutoff": plain(state.ds), TIME: table[TIME].tolist()}
            answer |= found.to_dict("list")
            yield json.dumps(answer, ensure_ascii=False, default=str)  # str() of timestamps
            continue
        if header:
            steps = range(1, horizon + 1)
            yield _csv_line([ID, TIME, *(f"{name}+{h}" for name in found for h in steps)])
            header = False
        yield _csv_line([state.unique_id, state.ds, *found.to_numpy().T.ravel()])


def _columns(cells: list[str], given: dict[str, str | None]) -> tuple[list[str], bool]:
    """Return the column names, and whether the first line is a header.

    `given` holds the names of unique_id, ds and y in the training data.
    """
    aliases = {given[name]: name for name in (ID, TIME, VALUE) if given.get(name)}
    names = [aliases.get(cell, cell) for cell in cells]
    if TIME in names and VALUE in names:
        return names, True
    if TIME in names or VALUE in names:
        have, lack = (TIME, VALUE) if TIME in names else (VALUE, TIME)
        raise ValueError(
            f"the header {', '.join(cells)} names {have} but not {lack}; name the column"
            f" {(given.get(lack) or lack)!r}"
        )
    if len(cells) not in (2, 3):
        raise ValueError(f"rows must be ds,y or unique_id,ds,y, got {len(cells)} cells")
    return [ID, TIME, VALUE][-len(cells) :], False


def _new_row(state: SeriesState, row: dict[str, str]) -> TimeSeries:
    value = None if row[VALUE].lower() in MISSING else row[VALUE]
    return check_series(state.unique_id, _time(row[TIME], state), pd.Series([value]))


def _time(text: str, state: SeriesState) -> Any:
    if isinstance(state.freq, int):
        try:
            return pd.Index([int(text)])
        except ValueError:
            raise ValueError(f"{TIME} must be an integer, got {text!r}") from None
    try:
        time = pd.to_datetime(text, format="ISO8601", utc=True)
    except ValueError:
        raise ValueError(f"{TIME} must be a time such as 2024-01-31 12:00, got {text!r}") from None
    return pd.DatetimeIndex([time.tz_localize(None)]).as_unit("ns")


def _csv_line(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
