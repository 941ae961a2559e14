"""Classic datasets: EAForecaster next to statistical models and LightGBM.

The models get the values and the length of the season, but no dates, which m1, m3 and tourism do
not have. EAForecaster and LightGBM are trained once on all series of a frequency of m1, m3 and
tourism, and on each series of `classics` alone. The pretrained weights of EAForecaster forecast
without training, and after FINETUNE_STEPS steps.
"""

import csv
import gzip
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import fmean, geometric_mean
from time import perf_counter

import numpy as np
import pandas as pd

from eattn.timeseries.metrics import mase, seasonal_scale
from paper.forecasting.files import data_file
from paper.forecasting.ours import FINETUNE_STEPS, Array, forecaster, long_frame, quantiles
from paper.forecasting.plan import (
    FINE_TUNED,
    LOOKS,
    OURS,
    OWN,
    STATISTICAL,
    ZERO_SHOT,
    Plan,
)
from paper.forecasting.rolling import MEDIAN
from paper.forecasting.statistical import LAST, SECONDS, Forecasts, Worker, forecast_all
from paper.forecasting.trees import Trees
from paper.harness.chart import Panel, Point, dots
from paper.harness.runlog import Key, Row, find_row, group, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

CLASSICS = "classics"
SEASONS = {"yearly": 1, "quarterly": 4, "monthly": 12, "other": 1}
GROUPS = {
    "m1": ("yearly", "quarterly", "monthly"),
    "m3": tuple(SEASONS),
    "tourism": ("yearly", "quarterly", "monthly"),
    CLASSICS: ("all",),
}
LEAST, MOST = 8, 48  # values that are forecast of a series of `classics`
TIME_COLUMNS = {"rownames", "time", "date", "YEAR", "year", "quarter"}
# Series of `classics` whose column `time` is missing or counts years or weeks.
NAMED_SEASONS = {
    "EuStockMarkets": 1,
    "calls": 169,
    "co2_statsmodels": 52,
    "elecdemand": 48,
    "elnino_statsmodels": 12,
    "macrodata_statsmodels": 4,
    "sunspots_statsmodels": 1,
    "taylor": 48,
}


@dataclass(frozen=True)
class Group:
    """Series that are forecast by one model: known values, and those to forecast."""

    names: list[str]
    past: list[Array]
    future: list[Array]
    season: int
    horizon: int


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the keys of every dataset, frequency and model."""
    for data in plan.sets:
        if data not in GROUPS:
            raise ValueError(f"sets must be of {', '.join(GROUPS)}, got {data!r}")
        for part in GROUPS[data]:
            for model in plan.models:
                yield {"what": "classics", "set": data, "group": part} | plan.common(model)


def measure(key: Key) -> Row:
    """Forecast all series with one model; return the mean MASE, seconds and failures.

    A series whose past is constant has no MASE and is left out of the mean. The rows of `classics`
    also hold the MASE of every series.
    """
    errors: dict[str, float] = {}
    seconds, failures = 0.0, 0
    with ExitStack() as stack:
        worker = stack.enter_context(Worker()) if key["model"] in STATISTICAL else None
        for each in load(key["set"], key["group"], key["split"] or "test", key["first"]):
            found = forecast(each, key, worker)
            seconds, failures = seconds + found.seconds, failures + found.failures
            for name, past, y, values in zip(
                each.names, each.past, each.future, found.values, strict=True
            ):
                errors[name] = mase(y, values, seasonal_scale(past, each.season))
    row: Row = {"mase": float(np.nanmean(list(errors.values()))), "series": len(errors)}
    row |= {"seconds": seconds, "failures": failures}
    if key["set"] == CLASSICS:
        row["by_series"] = {n: None if np.isnan(error) else error for n, error in errors.items()}
    return row


def forecast(group: Group, key: Key, worker: Worker | None = None) -> Forecasts:
    """Forecast a group with the model of a key; a statistical model runs in a worker."""
    if worker is not None:
        return forecast_all(worker, key["model"], group.past, group.horizon, group.season)
    began = perf_counter()
    if key["model"] in OWN:
        times = [np.arange(len(values)) for values in group.past]
        given = {"model": key["model"], "season_length": group.season}
        model = forecaster(group.horizon, key["options"], **given)
        model.fit(long_frame(times, group.past))
        found = quantiles(model.predict(), group.horizon)[:, MEDIAN]
    else:
        found = Trees(group.horizon, [group.season]).fit(group.past).predict(group.past)
    return Forecasts(list(found), perf_counter() - began)


def load(data: str, group: str, split: str = "test", first: int | None = None) -> Iterator[Group]:
    """Yield the groups of a dataset that have a model each, with their first series or all.

    The split `dev` leaves out the values that are forecast and forecasts as many values before
    them, of all series that are left with at least as many.
    """
    found = list(_classics())[:first] if data == CLASSICS else [_competition(data, group)]
    for each in found:
        size = each.horizon
        parts = list(zip(each.names, each.past, each.future, strict=True))
        if split == "dev":
            parts = [(n, p[:-size], p[-size:]) for n, p, _ in parts if len(p) >= 2 * size]
        if parts:
            names, past, future = map(list, zip(*parts[:first], strict=True))
            yield Group(names, past, future, each.season, size)


def _competition(data: str, group: str) -> Group:
    """Read the official split of a frequency of m1, m3 or tourism."""
    parts: list[dict[str, Array]] = []
    for part in ("train", "test"):
        with gzip.open(data_file("forecasting", data, f"{data}-{part}.csv.gz"), "rt") as file:
            rows = [row for row in csv.reader(file) if row[1] == group]
        parts.append({row[0]: np.array([float(c) for c in row[4:] if c]) for row in rows})
    past, future = parts
    sizes = set(map(len, future.values()))
    if past.keys() != future.keys() or len(sizes) != 1:
        raise ValueError(f"{data}-train and {data}-test must have the same series of one horizon")
    values, targets = ([part[name] for name in past] for part in parts)
    return Group(list(past), values, targets, SEASONS[group], sizes.pop())


def _classics() -> Iterator[Group]:
    """Yield the first column of every file, without its last two seasons."""
    for path in sorted(data_file("forecasting", CLASSICS).glob("*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        table = pd.read_csv(path)
        columns = [column for column in table if column not in TIME_COLUMNS]
        series = table[columns].stack() if name.startswith("elnino") else table[columns[0]]
        values = np.asarray(series, np.float64)
        values = values[np.flatnonzero(np.isfinite(values))[0] :]
        season = NAMED_SEASONS.get(name) or round(1 / np.median(np.diff(table["time"])))
        horizon = min(max(2 * season, LEAST), MOST)
        yield Group([name], [values[:-horizon]], [values[-horizon:]], season, horizon)


def errors(rows: Rows) -> dict[str, dict[str, Row]]:
    """Return the rows by dataset and frequency, such as `m3 yearly`, and by model."""
    found: dict[str, dict[str, Row]] = {}
    for (data, part), own in group(rows_of(rows, "classics"), "set", "group").items():
        name = data if data == CLASSICS else f"{data} {part}"
        found[name] = {row["model"]: row for row in own}
    order = [data if data == CLASSICS else f"{data} {p}" for data in GROUPS for p in GROUPS[data]]
    return {name: found[name] for name in order if name in found}


def by_model(rows: Rows, data: str) -> dict[str, float]:
    """Return the mean MASE of each model, averaged over the frequencies of a dataset."""
    found = group([row for row in rows_of(rows, "classics") if row["set"] == data], "model")
    return {
        model: fmean(row["mase"] for row in own)
        for model, own in found.items()
        if len(own) == len(GROUPS[data])
    }


def _ratio(rows: Rows, model: str, data: str, part: str) -> float:
    """Return the mean MASE of a model over the lower one of AutoETS and AutoTheta."""
    at = {"what": "classics", "set": data, "group": part}
    ours, *others = (
        float(find_row(rows, **at, model=name)["mase"]) for name in (model, "AutoETS", "AutoTheta")
    )
    return ours / min(others)


def _targets() -> Iterator[Target]:
    for model, kind in ((OURS, ""), (FINE_TUNED, ", fine-tuned")):
        for data, bound, stretch in (("tourism", 1.0, None), ("m3", 1.03, 1.0)):
            for part in GROUPS[data]:
                name = f"{data} {part}{kind}: MASE / better of AutoETS and AutoTheta"
                value = partial(_ratio, model=model, data=data, part=part)
                yield Target(name, value, at_most=bound, stretch=stretch, unit="×")


def _mean_ratio(rows: Rows) -> float:
    """Return our zero-shot MASE over AutoETS's: the geometric mean over sets and frequencies."""
    ratios = []
    for data in ("m1", "m3", "tourism"):
        for part in GROUPS[data]:
            at = {"what": "classics", "set": data, "group": part}
            ours, other = (find_row(rows, **at, model=m)["mase"] for m in (ZERO_SHOT, "AutoETS"))
            ratios.append(ours / other)
    return geometric_mean(ratios)


TARGETS = (
    *_targets(),
    Target(
        "m1, m3 and tourism, zero-shot: MASE / AutoETS",
        _mean_ratio,
        at_most=1.05,
        stretch=1.0,
        unit="×",
    ),
)


def tables(rows: Rows) -> Iterator[Table]:
    """Yield MASE, and seconds with failures, of every model; then how `classics` compare."""
    found = errors(rows)
    models = [m for m in Plan.models if any(m in own for own in found.values())]
    if not models:
        return

    def body(cell: Callable[[Row], str]) -> list[list[str]]:
        return [
            [model, *(cell(own[model]) if model in own else "" for own in found.values())]
            for model in models
        ]

    sizes = (max(row["series"] for row in own.values()) for own in found.values())
    head = ["model", *(f"{name} ({size})" for name, size in zip(found, sizes, strict=True))]
    kinds = (
        "EAForecaster trains a new model. Fine-tuned: the pretrained weights after"
        f" {FINETUNE_STEPS} more steps; zero-shot: without training."
    )
    title = "Classics: mean MASE (number of series)"
    yield Table(title, head, body(lambda row: f"{row['mase']:.3f}"), [kinds])
    note = (
        f"Statistical models see the last {LAST} values and get {SECONDS:.0f} s per series. In"
        " brackets: series on which a model failed or took longer; its forecast is the last season."
    )
    title = "Classics: seconds to train and forecast, one thread"
    yield Table(title, ["model", *found], body(_cost), [note])
    scores = {model: row["by_series"] for model, row in found.get(CLASSICS, {}).items()}
    if OURS in scores and len(scores) > 1:
        lines = [[m, *map(str, _wins(scores[OURS], scores[m]))] for m in scores if m != OURS]
        title = f"Series of `{CLASSICS}` by MASE"
        yield Table(title, ["model", f"{OURS} is lower", f"{OURS} is higher"], lines)


def _cost(row: Row) -> str:
    return f"{row['seconds']:.3g}" + f" ({row['failures']})" * bool(row["failures"])


def _wins(ours: dict[str, float | None], others: dict[str, float | None]) -> tuple[int, int]:
    """Return the numbers of series with a lower and with a higher MASE than another model."""
    pairs = [(a, b) for a, b in ((ours[n], others.get(n)) for n in ours) if a and b]
    return sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)


def panels(rows: Rows) -> Iterator[Panel]:
    """Draw the mean MASE of all models by dataset and frequency."""
    points: list[Point] = [
        {"series": model, "x": name.replace(" ", "/"), "y": own[model]["mase"]}
        for name, own in errors(rows).items()
        for model in Plan.models
        if model in own
    ]
    if points:
        yield dots("Classics: mean MASE", points, y="MASE", log=True, looks=LOOKS, columns=6)


def losses(rows: Rows) -> Iterator[str]:
    """Yield datasets and frequencies on which other models have a lower MASE."""
    for name, own in errors(rows).items():
        if OURS not in own:
            continue
        ours = own[OURS]["mase"]
        others = {model: row["mase"] for model, row in own.items() if model not in OWN}
        better = [f"{model} {error:.3f}" for model, error in others.items() if error < ours]
        if better:
            yield f"{name}, mean MASE: {', '.join(better)}; {OURS} {ours:.3f}."
