"""Streaming forecasts: read rows of text and yield a forecast after each, in constant memory."""

import contextlib
import csv
import io
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import pandas as pd

from eattn.data.parse_numbers import MISSING, choose_marks, parse_numbers
from eattn.data.parse_times import ISO, parse_times
from eattn.data.read_csv import find_separator
from eattn.timeseries.forecaster import EAForecaster
from eattn.timeseries.inputs import ID, TIME, VALUE, check_series
from eattn.timeseries.predictor import SeriesState
from eattn.timeseries.store import plain

FORMATS = ("json", "csv")
EMPTY = ("", "nan", "na", "n/a", "#n/a", "null", "none", *MISSING)


@dataclass(frozen=True)
class RowFormat:
    """Format of rows: options that are None are found from each row, or else as in training."""

    sep: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    date_format: str | None = None


def stream(
    forecaster: EAForecaster,
    lines: Iterable[str],
    *,
    horizon: int | None,
    form: str,
    rows: RowFormat | None = None,
    skip: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Read CSV rows `ds,y` or `unique_id,ds,y` and yield the forecast after each row.

    The first line may name the columns in another order; unknown columns are ignored with a
    warning. A forecast is a JSON object, or CSV rows `unique_id,cutoff,ds,EAForecaster` below a
    header; `cutoff` is the time of the row, and `ds` are the times of the forecast. An invalid row
    raises, or is passed to `skip` as a message.
    """
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    horizon = forecaster.horizon if horizon is None else horizon
    given = getattr(forecaster, "columns_", None) or {}
    reader = _RowReader(forecaster, rows or RowFormat(), given)
    header = form == "csv"
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if not reader.columns and reader.read_header(line):
                continue
            state = reader.read(line)
        except (ValueError, csv.Error) as error:
            message = f"line {number}: {error}"
            if skip is None or not reader.columns:
                raise ValueError(message) from None
            skip(message)
            continue
        table = forecaster._table([state], horizon)
        if form == "json":
            answer = {ID: state.unique_id, "cutoff": plain(state.ds)}
            answer |= {name: table[name].tolist() for name in table.columns[1:]}
            yield json.dumps(answer, ensure_ascii=False, default=str)  # str() of timestamps
            continue
        table.insert(1, "cutoff", [state.ds] * len(table))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([table.columns] if header else [])
        writer.writerows(table.itertuples(index=False))
        yield text.getvalue().removesuffix("\n")
        header = False


class _RowReader:
    """Reads lines into the states of a forecaster."""

    def __init__(self, forecaster: EAForecaster, rows: RowFormat, given: Mapping[str, Any]) -> None:
        self.forecaster, self.rows = forecaster, rows
        self.names = {str(name): name for name in forecaster.states_}
        known = forecaster._columns(None, None, None).names()
        self.aliases = dict(zip(known, (ID, TIME, VALUE), strict=True))
        self.aliases |= {given[name]: name for name in (ID, TIME, VALUE) if given.get(name)}
        self.like: Mapping[str, str] = given.get("format") or {}
        self.sep = rows.sep
        self.columns: list[str] = []

    def read_header(self, line: str) -> bool:
        """Set the separator and the columns; return whether the first line names the columns."""
        line = line.removeprefix("\ufeff")
        usual = self.like.get("sep", ",")
        self.sep = self.sep or (usual if usual in line else find_separator([line]))
        cells = self._cells(line)
        names = [self.aliases.get(cell, cell) for cell in cells]
        if TIME in names and VALUE in names:
            self.columns = names
            if unused := [name for name in names if name not in (ID, TIME, VALUE)]:
                warnings.warn(f"columns that are not used: {', '.join(unused)}", stacklevel=3)
            return True
        if TIME in names or VALUE in names:
            have, lack = (TIME, VALUE) if TIME in names else (VALUE, TIME)
            alias = next((old for old, new in reversed(self.aliases.items()) if new == lack), lack)
            raise ValueError(
                f"the header {', '.join(cells)} names {have} but not {lack}; name the column"
                f" {alias!r}"
            )
        if len(cells) not in (2, 3):
            raise ValueError(f"rows must be ds,y or unique_id,ds,y, got {len(cells)} cells")
        self.columns = [ID, TIME, VALUE][-len(cells) :]
        return False

    def read(self, line: str) -> SeriesState:
        """Update the state of a series with a row, and return the state."""
        cells = self._cells(line)
        if len(cells) != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} cells, got {len(cells)}")
        row = dict(zip(self.columns, cells, strict=True))
        state = self.forecaster._state(self.names.get(row.get(ID, ""), row.get(ID)))
        time = self._time(row[TIME], state)
        new = check_series(state.unique_id, time, self._value(row[VALUE]))
        [after] = self.forecaster._update([new])
        return after

    def _cells(self, line: str) -> list[str]:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=self.sep or ","))]

    def _value(self, text: str) -> "pd.Series[Any]":
        if text.lower() in EMPTY:
            return pd.Series([float("nan")])
        cell, rows = pd.Series([text]), self.rows
        if (rows.decimal or self.like.get("decimal", ".")) == "." and rows.thousands != ".":
            with contextlib.suppress(ValueError):  # a number with signs or separators
                float(text)
                return cell
        marks = choose_marks([cell], rows.decimal, rows.thousands, self.like.get("decimal"))
        numbers = parse_numbers(cell, marks)
        return numbers if numbers.notna().all() else cell

    def _time(self, text: str, state: SeriesState) -> Any:
        def fail(row: int, problem: str, hint: str = "") -> NoReturn:
            raise ValueError(f"{TIME} {problem}, got {text!r}{hint}")

        if isinstance(state.freq, int):
            try:
                return pd.Index([int(text)])
            except ValueError:
                fail(0, "must be an integer")
        style = self.rows.date_format
        if style is None:
            try:
                return pd.DatetimeIndex([pd.to_datetime(text, format=ISO)]).as_unit("ns")
            except ValueError:  # another format than ISO 8601
                pass
        like = self.like.get("date_format")
        times, _ = parse_times(pd.Series([text]), fail, date_format=style, like=like)
        if times.dtype.kind != "M":
            fail(0, "must be a time such as 2024-01-31 12:00")
        return pd.DatetimeIndex(times)
