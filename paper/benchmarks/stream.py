"""Speed of EAForecaster: one long stream, and many series at once.

A stream is one hourly series. Each row of text is read and answered by the quantiles of the next 12
hours as JSON, by one thread and with the default model. The memory of the process is read after
each part of the stream. `fit`, `predict` and `update` are timed for many series of 200 values with
all cores.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from eattn.timeseries import EAForecaster
from eattn.timeseries.stream import stream
from paper.harness.chart import BLUE, GREEN, SKY, Chart, Look, Point, lines
from paper.harness.measure import Candidate, Times, interleave, quantiles
from paper.harness.runlog import Row, RunLog, find_row, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TITLE = "Beyond the paper: streams and many series"
START = pd.Timestamp("2020-01-01")
HISTORY = 1000  # rows before the stream
WARMUP = 100  # rows that are read before the first is timed
LEVELS = (0.1, 0.9)
LINES = 1000  # rows of text made at once
MANY = ("fit", "predict", "update")
DRAWN = {"median": Look(BLUE), "p99": Look(SKY), "process": Look(GREEN)}


@dataclass(frozen=True)
class Plan:
    """Sizes of the stream and of the many series."""

    rows: int = 1_000_000
    part: int = 50_000  # rows of the stream per row of results
    horizon: int = 12
    series: int = 1000
    length: int = 200
    rounds: int = 9  # runs of predict and update


def plan(quick: bool) -> Plan:
    """Return the full plan, or a short stream and fewer series."""
    return Plan(rows=10_000, part=2000, series=100, rounds=3) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Time a stream in parts, then many series."""
    if plan.part < 2 or plan.rows % plan.part:
        got = f"rows = {plan.rows}, part = {plan.part}"
        raise ValueError(f"rows must be a multiple of a part of at least two, got {got}")
    key = {"what": "stream", "rows": plan.rows, "horizon": plan.horizon}
    parts = [key | {"last": last} for last in range(plan.part, plan.rows + 1, plan.part)]
    log.expect(parts)
    if not all(map(log.has, parts)):
        log.add(key, *follow(plan))
    yield from log.find(key)
    sizes = {"series": plan.series, "length": plan.length, "horizon": plan.horizon}
    for name in MANY:
        if not log.has({"what": name} | sizes):
            for each, row in many(plan).items():
                log.add({"what": each} | sizes, row)
        yield from log.find({"what": name} | sizes)


def values(count: int, seed: int) -> NDArray[np.float64]:
    """Return a daily pattern of hourly values with noise."""
    rng = np.random.default_rng(seed)
    return 50 + 10 * np.sin(np.arange(count) * np.pi / 12) + rng.normal(size=count)


def text(count: int) -> Iterator[str]:
    """Yield the rows of a stream that follows HISTORY."""
    for first in range(0, count, LINES):
        times = pd.date_range(START + pd.Timedelta(hours=HISTORY + first), periods=LINES, freq="h")
        numbers = values(LINES, seed=first + 1).tolist()
        yield from (f"{at},{y:.4f}" for at, y in zip(times, numbers, strict=True))


def follow(plan: Plan) -> Iterator[Row]:
    """Read a stream with one thread; yield times per row and the memory after each part."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        hours = pd.date_range(START, periods=HISTORY, freq="h")
        model = EAForecaster(plan.horizon, quantiles=LEVELS)
        model.fit(pd.DataFrame({"ds": hours, "y": values(HISTORY, seed=0)}))
        answers = stream(model, text(plan.rows + WARMUP), horizon=None, form="json")
        for _ in islice(answers, WARMUP):
            pass
        for last in range(plan.part, plan.rows + 1, plan.part):
            seconds = []
            for _ in range(plan.part):
                began = time.perf_counter()
                next(answers)
                seconds.append(time.perf_counter() - began)
            tail = float(np.quantile(seconds, 0.99))
            sizes = {"resident": resident(), "state": model.state_nbytes}
            yield {"last": last} | vars(quantiles(seconds)) | {"p99": tail} | sizes
    finally:
        torch.set_num_threads(before)


def resident() -> int | None:
    """Return the memory of this process in bytes; None where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else None


def many(plan: Plan) -> dict[str, Row]:
    """Time `fit`, `predict` and one new row of `update` for many series, with all cores."""
    hours = pd.date_range(START, periods=plan.length + plan.rounds + 1, freq="h")
    table = pd.DataFrame({n: values(len(hours), seed=n) for n in range(plan.series)})
    whole = table.assign(ds=hours).melt("ds", var_name="unique_id", value_name="y")
    model = EAForecaster(plan.horizon, quantiles=LEVELS, pretrained=None)
    began = time.perf_counter()
    model.fit(whole[whole["ds"] < hours[plan.length]])
    seconds = time.perf_counter() - began
    new = iter([whole[whole["ds"] == hour] for hour in hours[plan.length :]])
    candidates = {
        "predict": Candidate(model.predict),
        "update": Candidate(lambda: model.update(next(new))),
    }
    found = {"fit": Times.single(seconds)} | interleave(candidates, rounds=plan.rounds)
    return {name: vars(row) | {"threads": torch.get_num_threads()} for name, row in found.items()}


def _rate(rows: Rows) -> float:
    """Return the rows per second of the whole stream, from the medians of its parts."""
    return 1 / float(np.median([row["p50"] for row in _parts(rows)]))


def _tail(rows: Rows) -> float:
    return 1000 * float(np.median([row["p99"] for row in _parts(rows)]))


def _growth(rows: Rows) -> float:
    first, *_, last = _parts(rows)
    return float(last["resident"] / first["resident"])


def _parts(rows: Rows) -> list[Row]:
    found = rows_of(rows, "stream")
    if not found:
        raise LookupError("there is no stream")
    return found


def _seconds(rows: Rows, name: str) -> float:
    return float(find_row(rows, what=name)["p50"])


TARGETS = (
    Target("stream: rows per second", _rate, at_least=1000),
    Target("stream: p99 of a row", _tail, at_most=3, unit=" ms"),
    Target("stream: memory, last part / first part", _growth, at_most=1.05, unit="×"),
    Target("1,000 series: fit", partial(_seconds, name="fit"), at_most=30, unit=" s"),
    Target("1,000 series: predict", partial(_seconds, name="predict"), at_most=0.3, unit=" s"),
    Target("1,000 series: update", partial(_seconds, name="update"), at_most=0.3, unit=" s"),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the first and the last part of the stream, and the times of many series."""
    found = rows_of(rows, "stream")
    if found:
        first, last = found[0], found[-1]
        size = first["last"]
        body = [
            [
                f"{row['last'] - size + 1:,} to {row['last']:,}",
                *(f"{1000 * row[name]:.2f} ms" for name in ("p50", "p99")),
                "" if row["resident"] is None else f"{row['resident'] / 2**20:.0f} MiB",
                f"{row['state'] / 1000:.0f} kB",
            ]
            for row in (first, last)
        ]
        head = ["rows", "median", "p99", "process", "state of the series"]
        note = f"One row in, the quantiles of {first['horizon']} steps out; one thread."
        yield Table("One stream", head, body, [note])
    body = [
        [row["what"], f"{row['p50']:.2f} s", str(row["runs"])]
        for row in rows
        if row["what"] in MANY
    ]
    if body:
        row = find_row(rows, what=MANY[0])
        note = f"{row['threads']} threads; `update` reads one new value of each series."
        title = f"{row['series']:,} series of {row['length']} values, horizon {row['horizon']}"
        yield Table(title, ["call", "median", "runs"], body, [note])


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw the time per row and the memory along the stream."""
    found = rows_of(rows, "stream")
    times: list[Point] = [
        {"series": name, "x": row["last"], "y": 1000 * row[field]}
        for name, field in (("median", "p50"), ("p99", "p99"))
        for row in found
    ]
    memory: list[Point] = [
        {"series": "process", "x": row["last"], "y": row["resident"] / 2**20}
        for row in found
        if row["resident"] is not None
    ]
    if not found:
        return None
    panels = [lines("(a) Time per row", times, x="row", y="ms", looks=DRAWN)]
    panels += [lines("(b) Memory", memory, x="row", y="MiB", looks=DRAWN)] if memory else []
    return Chart(panels)
