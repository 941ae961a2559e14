"""Streaming forecasts: read rows of text and yield a forecast after each, in constant memory."""

import contextlib
import csv
import io
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from eattn.data.parse_numbers import MISSING, choose_marks, parse_numbers
from eattn.data.parse_times import ISO, parse_times
from eattn.data.read_csv import find_separator
from eattn.timeseries.covariates import TRUTH, Encoder, Numbers
from eattn.timeseries.forecaster import SCORE, EAForecaster
from eattn.timeseries.inputs import ID, MAX_VALUE, TIME, VALUE, RawValues, TimeSeries
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
    anomalies: bool = False,
    skip: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Read CSV rows `ds,y` or `unique_id,ds,y` and yield the forecast after each row.

    The first line may name the columns in another order, and must do so if the forecaster has
    covariates; unknown columns are ignored with a warning. A forecast is a JSON object, or CSV rows
    `unique_id,cutoff,ds,EAForecaster` below a header; `cutoff` is the time of the row, and `ds` are
    the times of the forecast. With `anomalies`, the answer is instead `unique_id,ds,y,score`. An
    invalid row raises, or is passed to `skip` as a message.
    """
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    if forecaster.futr_exog_list and not anomalies:
        raise ValueError(
            "a stream has no future values of"
            f" {', '.join(forecaster.futr_exog_list)}: use predict, or --anomalies"
        )
    if anomalies and horizon is not None:
        raise ValueError("horizon cannot be combined with anomalies: there is no forecast")
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
            read, score = reader.read(line)
        except (ValueError, csv.Error) as error:
            message = f"line {number}: {error}"
            if skip is None or not reader.columns:
                raise ValueError(message) from None
            skip(message)
            continue
        state = forecaster.states_[read.unique_id]
        if anomalies:
            y = float(read.y[-1])
            own: dict[str, Any] = {TIME: plain(state.ds), VALUE: None if y != y else y}
            answer, columns = {ID: state.unique_id} | own | {SCORE: score}, {}
        else:
            predictor = forecaster.predictor_
            times = predictor.ahead.times(state.freq, state.ds, horizon)
            futr = predictor.covariates.encode_future(None, {None: times})
            found = forecaster._forecasts([state], [times], list(futr.values()))
            answer = {ID: state.unique_id, "cutoff": plain(state.ds)}
            columns = {TIME: predictor.ahead.labels(state.freq, state.ds, horizon)}
            columns |= {name: x[0].tolist() for name, x in found.items()}
        if form == "json":
            # str() of timestamps
            yield json.dumps(answer | columns, ensure_ascii=False, default=str)
            continue
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([[*answer, *columns]] if header else [])
        table = zip(*columns.values(), strict=True) if columns else [()]
        writer.writerows([*answer.values(), *row] for row in table)
        yield text.getvalue().removesuffix("\n")
        header = False


class _RowReader:
    """Reads lines into the states of a forecaster."""

    def __init__(self, forecaster: EAForecaster, rows: RowFormat, given: Mapping[str, Any]) -> None:
        self.forecaster, self.rows = forecaster, rows
        self.names = {str(name): name for name in forecaster.states_}
        known = forecaster._columns().names()
        self.aliases = dict(zip(known, (ID, TIME, VALUE), strict=True))
        self.aliases |= {given[name]: name for name in (ID, TIME, VALUE) if given.get(name)}
        self.like: Mapping[str, str] = given.get("format") or {}
        self.sep = rows.sep
        self.columns: list[str] = []
        covariates = forecaster.predictor_.covariates
        self.exog = {each.name: each for each in (*covariates.futr, *covariates.hist)}

    def read_header(self, line: str) -> bool:
        """Set the separator and the columns; return whether the first line names the columns."""
        line = line.removeprefix("\ufeff")
        usual = self.like.get("sep", ",")
        self.sep = self.sep or (usual if usual in line else find_separator([line]))
        cells = self._cells(line)
        names = [self.aliases.get(cell, cell) for cell in cells]
        if TIME in names and VALUE in names:
            self.columns = names
            if lacking := [name for name in self.exog if name not in names]:
                raise ValueError(f"the header {', '.join(cells)} lacks the column {lacking[0]!r}")
            known = (ID, TIME, VALUE, *self.exog, *(self.forecaster.stat_exog_list or ()))
            if unused := [name for name in names if name not in known]:
                warnings.warn(f"columns that are not used: {', '.join(unused)}", stacklevel=3)
            return True
        if TIME in names or VALUE in names:
            have, lack = (TIME, VALUE) if TIME in names else (VALUE, TIME)
            alias = next((old for old, new in reversed(self.aliases.items()) if new == lack), lack)
            raise ValueError(
                f"the header {', '.join(cells)} names {have} but not {lack}; name the column"
                f" {alias!r}"
            )
        if self.exog:
            raise ValueError(f"a header must name the columns, among them {', '.join(self.exog)}")
        if len(cells) not in (2, 3):
            raise ValueError(f"rows must be ds,y or unique_id,ds,y, got {len(cells)} cells")
        self.columns = [ID, TIME, VALUE][-len(cells) :]
        return False

    def read(self, line: str) -> tuple[TimeSeries, float]:
        """Update the state of a series with a row; return the row and its anomaly score."""
        cells = self._cells(line)
        if len(cells) != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} cells, got {len(cells)}")
        row = dict(zip(self.columns, cells, strict=True))
        state = self.forecaster._state(self.names.get(row.get(ID, ""), row.get(ID)))
        time, value = self._time(row[TIME], state), self._number(VALUE, row[VALUE])
        exog = {name: self._covariate(encoder, row[name]) for name, encoder in self.exog.items()}
        new = TimeSeries(state.unique_id, time, np.array([value]), exog=exog)
        [(read, scores)] = self.forecaster._update([new])
        return read, scores[-1]

    def _cells(self, line: str) -> list[str]:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=self.sep or ","))]

    def _covariate(self, encoder: Encoder, text: str) -> RawValues:
        """Return the cell of a covariate as an array of one value."""
        if isinstance(encoder, Numbers) and text.lower() not in TRUTH:
            return np.array([self._number(encoder.name, text)])
        return np.array([None if text.lower() in EMPTY else text], dtype=object)

    def _number(self, name: str, text: str) -> float:
        """Return the number in a cell, or NaN if it is missing."""
        if text.lower() in EMPTY:
            return float("nan")
        number = self._parse(text)
        if not abs(number) <= MAX_VALUE:
            raise ValueError(f"{name} must be a finite number, got {text!r}")
        return number

    def _parse(self, text: str) -> float:
        rows = self.rows
        if (rows.decimal or self.like.get("decimal", ".")) == "." and rows.thousands != ".":
            with contextlib.suppress(ValueError):  # a number with signs or separators
                return float(text)
        cell = pd.Series([text])
        marks = choose_marks([cell], rows.decimal, rows.thousands, self.like.get("decimal"))
        return float(parse_numbers(cell, marks).iloc[0])

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
            ahead = self.forecaster.predictor_.ahead
            if [text] == ahead.labels(state.freq, state.ds, 1):  # the usual case needs no parser
                return ahead.times(state.freq, state.ds, 1)
            with contextlib.suppress(ValueError):  # another format than ISO 8601
                if (found := datetime.fromisoformat(text)).tzinfo is None:
                    return pd.DatetimeIndex(np.array([found], "M8[ns]"))
            with contextlib.suppress(ValueError):
                return pd.DatetimeIndex([pd.to_datetime(text, format=ISO)]).as_unit("ns")
        like = self.like.get("date_format")
        times, _ = parse_times(pd.Series([text]), fail, date_format=style, like=like)
        if times.dtype.kind != "M":
            fail(0, "must be a time such as 2024-01-31 12:00")
        return pd.DatetimeIndex(times)
