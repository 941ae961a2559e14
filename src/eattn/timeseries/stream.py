"""Rows of text in, a forecast out for each of them: memory does not grow with their number."""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from eattn.timeseries.forecaster import NAME, EAForecaster
from eattn.timeseries.inputs import ID, LARGEST, TIME, VALUE, Rows, need_pandas
from eattn.timeseries.settings import plain
from eattn.timeseries.tracks import Track

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
        self.names = {str(name): name for name in forecaster.tracks_}
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
                [track] = self.forecaster._absorb([self._row(cells)])
            except (ValueError, csv.Error) as error:
                raise ValueError(f"line {number}: {error}") from None
            yield from self._answer(track)

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

    def _row(self, cells: list[str]) -> Rows:
        assert self.places is not None
        if len(cells) != self.width:
            raise ValueError(f"{len(cells)} cells, rows have {self.width}")
        found = {name: cells[i].strip() for name, i in self.places.items()}
        name = found.get(ID)
        if name is not None and name not in self.names:
            self.forecaster._track(name)  # which says what is known
        track = self.forecaster._track(None if name is None else self.names[name])
        return Rows(track.name, _time(found[TIME], track), np.array([_value(found[VALUE])]))

    def _answer(self, track: Track) -> Iterator[str]:
        table = self.forecaster._table([track], self.horizon)
        columns = [name for name in table.columns if name.startswith(NAME)]
        if self.form == "json":
            told = {ID: track.name, "cutoff": plain(track.time), TIME: table[TIME].tolist()}
            told |= {name: table[name].tolist() for name in columns}
            yield json.dumps(told, ensure_ascii=False, default=str)  # which writes times
            return
        if not self.headed:
            self.headed = True
            steps = range(1, self.horizon + 1)
            yield _cells([ID, TIME, *(f"{name}+{h}" for name in columns for h in steps)])
        yield _cells([track.name, track.time, *table[columns].to_numpy().T.ravel()])


def _time(text: str, track: Track) -> Any:
    pandas = need_pandas()
    if isinstance(track.step.freq, int):
        try:
            return pandas.Index([int(text)])
        except ValueError:
            raise ValueError(f"{TIME} must be an integer, got {text!r}") from None
    try:
        time = pandas.to_datetime(text, format="ISO8601", utc=True)
    except ValueError:
        raise ValueError(f"{TIME} must be a time as 2024-01-31 12:00, got {text!r}") from None
    return pandas.DatetimeIndex([time.tz_localize(None)]).as_unit("ns")


def _value(text: str) -> float:
    """NaN where nothing was measured."""
    if text.lower() in ("", "nan", "na", "null"):
        return np.nan
    try:
        value = float(text)
    except ValueError:
        value = np.inf
    if not abs(value) <= LARGEST:
        raise ValueError(f"{VALUE} must be a finite number, got {text!r}")
    return value


def _cells(values: Iterable[Any]) -> str:
    """A line of CSV, quoted where it must be."""
    written: list[str] = []

    class Line:
        write = staticmethod(written.append)

    csv.writer(Line(), lineterminator="").writerow(values)
    return "".join(written)
