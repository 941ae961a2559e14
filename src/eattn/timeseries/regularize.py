"""Series on a regular grid of times, with a place for every row that is missing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eattn.timeseries.freq import Step, Time, check_freq, infer_step
from eattn.timeseries.inputs import ALONE, TIME, Rows, Values, need_pandas

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Record:
    """One series from its first known value on, with every step of its time, NaN where missing."""

    name: Any
    step: Step
    times: "pd.Index[Any]"
    values: Values

    def __len__(self) -> int:
        return len(self.values)


def records(
    rows: Sequence[Rows], freq: str | int | None = None, *, usual: Step | None = None
) -> list[Record]:
    """Each series on the grid of its own step, which is inferred unless `freq` says it.

    One too short to tell has the step of most others, or else the `usual` one.
    """
    pandas = need_pandas()
    timed = []
    for row in rows:
        times = pandas.Index(np.arange(len(row.values))) if row.times is None else row.times
        timed.append(Rows(ALONE if row.name is None else row.name, times, row.values))
    return [
        _on_grid(row, step) for row, step in zip(timed, _steps(timed, freq, usual), strict=True)
    ]


def _steps(rows: Sequence[Rows], freq: str | int | None, usual: Step | None) -> list[Step]:
    if freq is not None:
        return [check_freq(freq)] * len(rows)
    own = [_own_step(row, least=3) for row in rows]
    told = Counter(step for step in own if step is not None)
    common = told.most_common(1)[0][0] if told else usual
    return [step or _short_step(row, common) for row, step in zip(rows, own, strict=True)]


def _own_step(row: Rows, *, least: int) -> Step | None:
    assert row.times is not None
    if len(row.times) < least:
        return None
    try:
        return infer_step(row.times)
    except ValueError as error:
        raise ValueError(f"series {row.name!r}: {error}") from None


def _short_step(row: Rows, common: Step | None) -> Step:
    assert row.times is not None
    if common is not None and (common.places(row.times) >= 0).all():
        return common
    step = _own_step(row, least=2)
    if step is None:
        raise ValueError(
            f"series {row.name!r} has one row only, which does not tell how far apart its times"
            " are: give more, or freq"
        )
    return step


def _on_grid(row: Rows, step: Step) -> Record:
    assert row.times is not None
    if isinstance(step.freq, int) != (row.times.dtype.kind == "i"):
        kind = "times" if isinstance(step.freq, int) else "integers"
        raise ValueError(f"freq = {step.freq!r} does not go with {TIME} that are {kind}")
    known = ~np.isnan(row.values)
    if not known.any():
        raise ValueError(f"series {row.name!r}: every value is missing")
    first = int(known.argmax())
    times, values = row.times[first:], row.values[first:]
    try:
        times, values = spread(step, times, values)
    except ValueError as error:
        raise ValueError(f"series {row.name!r}: {error}") from None
    return Record(row.name, step, times, values)


def spread(
    step: Step, times: "pd.Index[Any]", values: Values, *, after: Time | None = None
) -> tuple["pd.Index[Any]", Values]:
    """Every step from the first time, or the one after `after`, to the last; NaN between rows."""
    pandas = need_pandas()
    anchored = times if after is None else times.insert(0, after)
    places = step.places(anchored)
    if (places < 0).any():
        wrong = anchored[int((places < 0).argmax())]
        raise ValueError(f"{wrong} is no whole number of steps ({step}) after {anchored[0]}")
    full = np.full(int(places[-1]) + 1, np.nan)
    full[places[len(anchored) - len(times) :]] = values
    if after is not None:
        return step.after(after, len(full) - 1), full[1:]
    following = step.after(times[0], len(full) - 1)
    return pandas.Index(times[:1]).append(following), full
