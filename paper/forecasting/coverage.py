"""Coverage: how often the 80 % interval contains the value, while a stream goes on.

The forecaster is fitted on all rows before the stream. Then it forecasts 12 steps before each row,
and reads the row. The interval is the one between the quantiles 0.1 and 0.9.
"""

from collections.abc import Iterator
from time import perf_counter

import numpy as np

from paper.forecasting import gift
from paper.forecasting.ours import LEVELS, Array, forecaster, long_frame, quantiles
from paper.forecasting.plan import Plan
from paper.harness.runlog import Key, Row, rows_of
from paper.harness.table import Table, percent, seconds
from paper.harness.target import Rows, Target

HORIZON = 12
BOUNDS = (LEVELS.index(0.1), LEVELS.index(0.9))
STREAMS = tuple(f"{data}/{freq}" for data in gift.ETT for freq in ("15T", "H", "D"))


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the key of every stream."""
    for stream in plan.streams:
        if stream not in STREAMS:
            raise ValueError(f"streams must be of {', '.join(STREAMS)}, got {stream!r}")
        yield {"what": "coverage", "stream": stream, "rows": plan.rows} | plan.common()


def measure(key: Key) -> Row:
    """Stream the last rows of a dataset; return the coverage, also by step and by series."""
    data, freq = key["stream"].split("/")
    times, values = (parts[: key["first"]] for parts in gift.read(data, freq))
    rows = key["rows"]
    end = len(values[0]) - rows * (key["split"] == "dev")
    start = end - rows
    model = forecaster(HORIZON, key["options"])
    began = perf_counter()
    model.fit(long_frame([t[:start] for t in times], [v[:start] for v in values]))
    fitted, bounds = perf_counter(), []
    for row in range(start, end - HORIZON + 1):
        bounds.append(quantiles(model.predict(), HORIZON)[:, BOUNDS])
        now = slice(row, row + 1)
        model.update(long_frame([t[now] for t in times], [v[now] for v in values]))
    spent = perf_counter() - fitted
    inside = contained(np.stack(values)[:, start:end], np.stack(bounds))
    return {
        "coverage": float(inside.mean()),
        "by_step": inside.mean((0, 1)).tolist(),
        "by_series": inside.mean((0, 2)).tolist(),
        "fit_seconds": fitted - began,
        "seconds_per_row": spent / len(bounds),
    }


def contained(values: Array, bounds: Array) -> Array:
    """Return whether values [series, rows] lie in bounds [forecasts, series, 2, steps].

    The forecast with number n begins with row n. The result is [forecasts, series, steps].
    """
    steps = bounds.shape[-1]
    ahead = np.lib.stride_tricks.sliding_window_view(values, steps, axis=1).swapaxes(0, 1)
    low, high = bounds[:, :, 0], bounds[:, :, 1]
    return ((low <= ahead) & (ahead <= high)).astype(np.float64)


def _coverages(rows: Rows) -> list[float]:
    found = {row["stream"]: row["coverage"] for row in rows_of(rows, "coverage")}
    if missing := [stream for stream in Plan.streams if stream not in found]:
        raise LookupError(f"streams without rows: {', '.join(missing)}")
    return [found[stream] for stream in Plan.streams]


TARGETS = (
    Target("ETT streams: lowest coverage", lambda rows: min(_coverages(rows)), at_least=0.76),
    Target("ETT streams: highest coverage", lambda rows: max(_coverages(rows)), at_most=0.84),
)


def tables(rows: Rows) -> Iterator[Table]:
    """Yield the coverage of every stream, by step and over its series."""
    shown = (1, 6, HORIZON)
    body = [
        [
            row["stream"],
            percent(row["coverage"]),
            *(percent(row["by_step"][step - 1]) for step in shown),
            " – ".join(percent(f(row["by_series"])) for f in (min, max)),
            seconds(row["seconds_per_row"]),
        ]
        for row in rows_of(rows, "coverage")
    ]
    if body:
        head = [
            "stream",
            "all steps",
            *(f"step {step}" for step in shown),
            "series, lowest – highest",
        ]
        note = f"{HORIZON} steps are forecast before each of the last rows, for all series at once."
        title = "Coverage of the 80 % interval"
        yield Table(title, [*head, "forecast and update, all series"], body, [note])


def losses(rows: Rows) -> Iterator[str]:
    """Yield streams whose coverage is not within 76 to 84 %."""
    for row in rows_of(rows, "coverage"):
        if not 0.76 <= row["coverage"] <= 0.84:
            yield f"{row['stream']}: the 80 % interval covers {percent(row['coverage'])}."
