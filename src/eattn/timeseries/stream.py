"""Streaming: read rows of text and return a forecast after each, in constant memory."""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from eattn.timeseries.forecaster import NAME, EAForecaster
from eattn.timeseries.inputs import ID, MAX_VALUE, TIME, VALUE, TimeSeries
from eattn.timeseries.predictor import SeriesState
from eattn.timeseries.training import plain

FORMATS = ("json", "csv")


class Stream:
    """CSV lines `ds,y` or `unique_id,ds,y`, and what the forecaster says after each.

    A first line that names columns may put them in any order, and others beside them. Each answer
    is one line: a JSON object with the times and values of the forecast, or cells of CSV.
    """

    def __init__(self, forecaster: EAForecaster, *, horizon: int | None, form: str) -> None:
        if form not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
        self.forecaster, self.form = forecaster, form
        self.horizon = forecaster.horizon if horizon is None else horizon
        self.names = {str(name): name for name in forecaster.states_}
        given = getattr(forecaster, "columns_", None) or {}
        self.aliases = {given[what]: what for what in (ID, TIME, VALUE) if given.get(what)}
        self.places: dict[str, int] | None = None  # of columns, once they are known
        self.width = 0  # cells of a row
        self.headed = form == "json"  # whether the columns of answers were named

    def answers(self, lines: Iterable[str]) -> Iterator[str]:
        """One for each row, as soon as it is read."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                cells = next(csv.reader([line]))
                if self.places is None and self._is_header(cells):
                    continue
                [state] = self.forecaster._update([self._row(cells)])
            except (ValueError, csv.Error) as error:
                raise ValueError(f"line {number}: {error}") from None
            yield from self._answer(state)

    def _is_header(self, cells: list[str]) -> bool:
        """Take note of where each column is; False for a first row that has values already."""
        names = [self.aliases.get(cell.strip(), cell.strip()) for cell in cells]
        if TIME in names and VALUE in names:
            self.places = {name: i for i, name in enumerate(names) if name in (ID, TIME, VALUE)}
            self.width = len(cells)
            return True
        if TIME in names or VALUE in names:
            have, lack = (TIME, VALUE) if TIME in names else (VALUE, TIME)
            called = {what: name for name, what in self.aliases.items()}.get(lack, lack)
            raise ValueError(f"{', '.join(cells)} names {have} and no {lack}: call it {called!r}")
        order = {2: (TIME, VALUE), 3: (ID, TIME, VALUE)}.get(len(cells))
        if order is None:
            raise ValueError(f"a row must be ds,y or unique_id,ds,y, got {len(cells)} cells")
        self.places, self.width = {name: i for i, name in enumerate(order)}, len(order)
        return False

    def _row(self, cells: list[str]) -> TimeSeries:
        assert self.places is not None
        if len(cells) != self.width:
            raise ValueError(f"{len(cells)} cells, rows have {self.width}")
        found = {name: cells[i].strip() for name, i in self.places.items()}
        name = found.get(ID)
        if name is not None and name not in self.names:
            self.forecaster._state(name)  # which says what is known
        state = self.forecaster._state(None if name is None else self.names[name])
        return TimeSeries(
            state.unique_id, _time(found[TIME], state), np.array([_value(found[VALUE])])
        )

    def _answer(self, state: SeriesState) -> Iterator[str]:
        table = self.forecaster._table([state], self.horizon)
        columns = [name for name in table.columns if name.startswith(NAME)]
        if self.form == "json":
            told = {ID: state.unique_id, "cutoff": plain(state.ds), TIME: table[TIME].tolist()}
            told |= {name: table[name].tolist() for name in columns}
            yield json.dumps(told, ensure_ascii=False, default=str)  # which writes times
            return
        if not self.headed:
            self.headed = True
            steps = range(1, self.horizon + 1)
            yield _cells([ID, TIME, *(f"{name}+{h}" for name in columns for h in steps)])
        yield _cells([state.unique_id, state.ds, *table[columns].to_numpy().T.ravel()])


def _time(text: str, state: SeriesState) -> Any:
    if isinstance(state.freq, int):
        try:
            return pd.Index([int(text)])
        except ValueError:
            raise ValueError(f"{TIME} must be an integer, got {text!r}") from None
    try:
        time = pd.to_datetime(text, format="ISO8601", utc=True)
    except ValueError:
        raise ValueError(f"{TIME} must be a time as 2024-01-31 12:00, got {text!r}") from None
    return pd.DatetimeIndex([time.tz_localize(None)]).as_unit("ns")


def _value(text: str) -> float:
    """NaN where nothing was measured."""
    if text.lower() in ("", "nan", "na", "null"):
        return np.nan
    try:
        value = float(text)
    except ValueError:
        value = np.inf
    if not abs(value) <= MAX_VALUE:
        raise ValueError(f"{VALUE} must be a finite number, got {text!r}")
    return value


def _cells(values: Iterable[Any]) -> str:
    """A line of CSV, quoted where it must be."""
    written: list[str] = []

    class Line:
        write = staticmethod(written.append)

    csv.writer(Line(), lineterminator="").writerow(values)
    return "".join(written)
