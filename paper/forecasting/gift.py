"""GIFT-Eval: EAForecaster trained on each of 25 tasks, next to published scores."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from paper.forecasting.files import data_file
from paper.forecasting.ours import Array, forecaster
from paper.forecasting.plan import LOOKS, MIXER, OURS, ZERO_SHOT, Plan
from paper.forecasting.rolling import Rolling, roll, scores, seasonal_naive
from paper.harness.chart import Panel, Point, bars, dots
from paper.harness.runlog import Key, Row, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

TERMS = {"short": 1, "medium": 10, "long": 15}  # factors of the horizon
ETT = ("ett1", "ett2")
TASKS = (
    *(f"{data}/{freq}/{term}" for data in ETT for freq in ("15T", "H") for term in TERMS),
    *(f"{data}/{freq}/short" for data in ETT for freq in ("D", "W")),
    *("m4_hourly/H/short", "m4_weekly/W/short", "hospital/M/short"),
    *(f"{data}/{freq}/short" for data in ("saugeen", "us_births") for freq in ("D", "W", "M")),
)
HORIZONS = {"15T": 48, "H": 48, "D": 30, "W": 8, "M": 12}
M4_HORIZONS = {"H": 48, "W": 13}
SEASONS = {"15T": 96, "H": 24, "D": 1, "W": 1, "M": 12}
BLOCKS = {"15T": 1, "H": 4, "D": 96, "W": 672}  # rows of ETT in a step
STEPS = {"15T": "15min", "H": "h", "D": "D", "W": "7D", "M": "MS"}  # pandas frequencies
M4_START = "2000-01-03"  # the true starts are not published with the values
NAIVE = "seasonal naive"
MODELS = (OURS, ZERO_SHOT)
PUBLISHED = {  # name in the file of results: name in the tables
    "seasonal_naive": NAIVE,
    "chronos-2": "Chronos-2",
    "TimesFM-2.5": "TimesFM-2.5",
    "TiRex": "TiRex",
    "TempoPFN": "TempoPFN",
    "Toto-2.0-4m": "Toto-2.0-4m",
    "chronos_bolt_small": "Chronos-Bolt small",
    "Reverso-Nano": "Reverso-Nano",
    "PatchTST": "PatchTST",
    "auto_arima": "AutoARIMA",
    "N-BEATS": "N-BEATS",
    "tft": "TFT",
    "DLinear": "DLinear",
    "auto_theta": "AutoTheta",
    "auto_ets": "AutoETS",
    "deepar": "DeepAR",
}
PRETRAINED = {  # millions of parameters
    ZERO_SHOT: "0.3",
    "Chronos-2": "120",
    "TimesFM-2.5": "200",
    "TiRex": "35",
    "TempoPFN": "38",
    "Toto-2.0-4m": "4",
    "Chronos-Bolt small": "48",
    "Reverso-Nano": "0.2",
}
POINT = ("N-BEATS", "DLinear", "Reverso-Nano")  # forecast no quantiles
BY_TASK = ("PatchTST", "AutoARIMA")  # published models in the table by task
AXIS = {"m4_hourly": "m4", "m4_weekly": "m4", "hospital": "hosp.", "saugeen": "saug."}
AXIS |= {"us_births": "birth"}  # names on an axis
WORSE = 1.05  # ratio to seasonal naive from which on a task is named


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the keys of every task: trained on it with the default mixer, and pretrained."""
    for model in plan.models:
        for task in plan.tasks or TASKS:
            if model in MODELS:
                yield key_of(plan, task, MIXER, 0, model)


def key_of(plan: Plan, task: str, mixer: str, seed: int, model: str = OURS) -> Row:
    if task not in TASKS:
        raise ValueError(f"tasks must be of {', '.join(TASKS)}, got {task!r}")
    key = {"what": "gift", "task": task, "mixer": mixer, "seed": seed}
    return key | plan.common(model)


def measure(key: Key) -> Row:
    """Forecast one task and return the scores, next to those of seasonal naive."""
    data = load(key["task"], key["split"] or "test", key["first"])
    given = {"mixer": key["mixer"], "random_state": key["seed"]} if key["model"] == OURS else {}
    model = forecaster(data.horizon, key["options"], model=key["model"], **given)
    forecasts, seconds = roll(data, model)
    naive = {f"naive_{name}": value for name, value in naive_scores(data).items()}
    sizes = {"horizon": data.horizon, "windows": data.windows, "series": len(data.values)}
    return scores(data, forecasts) | naive | seconds | sizes


def naive_scores(data: Rolling) -> Row:
    return scores(data, seasonal_naive(data))


def load(task: str, split: str = "test", first: int | None = None) -> Rolling:
    """Load a task such as `ett1/15T/short`, with its first series or all.

    The split `dev` leaves out the test windows; its windows are the last of the rest.
    """
    data, freq, term = task.split("/")
    times, values = read(data, freq)
    m4 = data.startswith("m4")
    horizon = (M4_HORIZONS if m4 else HORIZONS)[freq] * TERMS[term]

    def windows() -> int:
        least = min(map(len, values))
        return 1 if m4 else min(20, max(1, math.ceil(0.1 * least / horizon)))

    if split == "dev":
        tested = windows() * horizon
        times, values = [t[:-tested] for t in times], [v[:-tested] for v in values]
    count = windows()
    times, values = times[:first], values[:first]
    return Rolling(times, values, horizon, count, SEASONS[freq])


def read(data: str, freq: str) -> tuple[list[pd.DatetimeIndex], list[Array]]:
    """Return times and values of every series of a dataset, in float32 as GIFT-Eval has them."""
    if data in ETT:
        name = f"ETTm{data[-1]}"
        table = _table(name, f"{name}.csv.gz", parse_dates=True)
        start, series = table.index[0], list(_means(table.to_numpy(), BLOCKS[freq]).T)
    elif data.startswith("m4"):
        name = data.removeprefix("m4_").capitalize()
        train, test = (_table(data, f"{name}-{part}.csv.gz") for part in ("train", "test"))
        pairs = zip(train.to_numpy(), test.to_numpy(), strict=True)
        start = pd.Timestamp(M4_START)
        series = [np.concatenate([past[np.isfinite(past)], future]) for past, future in pairs]
    else:
        table = _table(data, f"{data}.csv.gz", parse_dates=True)
        start, values = table.index[0], table.to_numpy(np.float64)
        if data != "hospital" and freq == "W":
            values = _means(values, 7)
        elif data != "hospital" and freq == "M":
            months = table.resample("MS")
            values = (months.sum() if data == "us_births" else months.mean()).to_numpy(np.float64)
        series = list(values.T)
    series = [values.astype(np.float32).astype(np.float64) for values in series]
    return [pd.date_range(start, periods=len(v), freq=STEPS[freq]) for v in series], series


def _table(data: str, name: str, **options: Any) -> pd.DataFrame:
    return pd.read_csv(data_file("forecasting", data, name), index_col=0, **options)


def _means(values: Array, size: int) -> Array:
    """Return the means of blocks of rows; an incomplete last block is left out."""
    count = len(values) // size
    blocks = values[: count * size].reshape(count, size, -1)
    return np.nanmean(blocks, axis=1)


def published() -> Iterator[tuple[Key, Row]]:
    """Yield a key and a row with the published scores by task, for every published model."""
    table = pd.read_csv(data_file("forecasting", "gift_eval_results.csv"))
    for stored, name in PUBLISHED.items():
        own = table[table["model"] == stored].set_index("task")
        found = {field.lower(): own[field].to_dict() for field in ("MASE", "CRPS")}
        yield {"what": "published", "name": name}, found


def runs(rows: Rows, model: str = OURS) -> dict[str, Row]:
    """Return the rows of a model with our mixer and seed 0 by task, in the order of TASKS."""
    own = [row for row in rows_of(rows, "gift") if not row["seed"] and row["model"] == model]
    found = {row["task"]: row for row in own if row["mixer"] == MIXER}
    return {task: found[task] for task in TASKS if task in found}


def relative(rows: Rows, score: str, model: str = OURS) -> dict[str, float]:
    """Return a score (mase or crps) of each task, divided by that of seasonal naive."""
    return {task: row[score] / row[f"naive_{score}"] for task, row in runs(rows, model).items()}


def published_relative(rows: Rows, score: str) -> dict[str, dict[str, float]]:
    """Return published scores by model and by the tasks of `rows`, relative to seasonal naive."""
    found = {row["name"]: row[score] for row in rows_of(rows, "published")}
    naive: Mapping[str, float] = found.get(NAIVE, {})
    return {
        name: {task: own[task] / naive[task] for task in runs(rows)}
        for name, own in found.items()
        if name != NAIVE and not (score == "crps" and name in POINT)
    }


def mean(rows: Rows, score: str, model: str = OURS) -> float:
    """Return the geometric mean of a score relative to seasonal naive, over all tasks."""
    return geometric_mean(_complete(relative(rows, score, model)).values())


def _worst(rows: Rows) -> float:
    return max(_complete(relative(rows, "mase")).values())


def _longest(rows: Rows) -> float:
    return max(row["fit_seconds"] for row in _complete(runs(rows)).values()) / 60


def _hours(rows: Rows) -> float:
    return sum(map(_seconds, _complete(runs(rows)).values())) / 3600


def _seconds(row: Row) -> float:
    return float(row["fit_seconds"] + row["predict_seconds"])


def _complete(found: dict[str, Any]) -> dict[str, Any]:
    if len(found) < len(TASKS):
        raise LookupError(f"{len(TASKS)} tasks are needed, got {len(found)}")
    return found


_where = "GIFT-Eval, 25 tasks: "
TARGETS = (
    Target(f"{_where}MASE / naive", partial(mean, score="mase"), at_most=0.93, stretch=0.85),
    Target(f"{_where}CRPS / naive", partial(mean, score="crps"), at_most=0.75, stretch=0.68),
    Target(f"{_where}MASE / naive, worst task", _worst, at_most=1.1),
    Target(f"{_where}longest fit", _longest, at_most=6, unit=" min"),
    Target(f"{_where}all fits and forecasts", _hours, at_most=2.5, unit=" h"),
    Target(
        "GIFT-Eval, zero-shot: MASE / naive",
        partial(mean, score="mase", model=ZERO_SHOT),
        at_most=0.92,
        stretch=0.84,
    ),
    Target(
        "GIFT-Eval, zero-shot: CRPS / naive",
        partial(mean, score="crps", model=ZERO_SHOT),
        at_most=0.75,
        stretch=0.69,
    ),
)


def tables(rows: Rows) -> Iterator[Table]:
    """Yield the geometric means of all models, and the scores by task."""
    own, mase, crps = runs(rows), relative(rows, "mase"), relative(rows, "crps")
    if not own:
        return
    others, losses = published_relative(rows, "mase"), published_relative(rows, "crps")
    found: list[tuple[float, float | None, str, str]] = []
    for model in MODELS:
        scores = [relative(rows, score, model) for score in ("mase", "crps")]
        if scores[0].keys() == own.keys():
            a, b = (geometric_mean(of.values()) for of in scores)
            found.append((a, b, model, "measured"))
    for name, of in others.items():
        loss = geometric_mean(losses[name].values()) if name in losses else None
        found.append((geometric_mean(of.values()), loss, name, "published"))
    body = [
        [name, f"{a:.3f}", "" if b is None else f"{b:.3f}", PRETRAINED.get(name, ""), source]
        for a, b, name, source in sorted(found, key=lambda line: line[0])
    ]
    title = f"GIFT-Eval: geometric mean over {len(own)} tasks, relative to seasonal naive"
    note = "Models that are not pretrained are trained on each task. N-BEATS, DLinear and"
    note += " Reverso-Nano forecast no quantiles."
    head = ["model", "MASE", "CRPS", "pretrained, millions of parameters", "source"]
    yield Table(title, head, body, [note] if others else [])
    shown = [name for name in BY_TASK if name in others]
    for model in MODELS:
        own = runs(rows, model)
        mase, crps = relative(rows, "mase", model), relative(rows, "crps", model)
        body = [
            [
                task,
                *(f"{row[field]:.3f}" for field in ("mase", "crps")),
                *(f"{ratios[task]:.3f}" for ratios in (mase, crps)),
                *(f"{others[name][task]:.3f}" for name in shown),
                *(f"{row[field]:.0f}" for field in ("fit_seconds", "predict_seconds")),
            ]
            for task, row in own.items()
        ]
        head = ["task", "MASE", "CRPS", "MASE / naive", "CRPS / naive"]
        head += [f"{name}: MASE / naive" for name in shown] + ["fit, s", "forecasts, s"]
        if body:
            yield Table(f"GIFT-Eval: {model} by task", head, body)


def panels(rows: Rows) -> Iterator[Panel]:
    """Draw MASE by task, and the geometric means of CRPS."""
    mase, crps = relative(rows, "mase"), relative(rows, "crps")
    if not mase:
        return
    others, losses = published_relative(rows, "mase"), published_relative(rows, "crps")
    ours = [(model, relative(rows, "mase", model)) for model in MODELS]
    points: list[Point] = [
        {"series": name, "x": _label(task), "y": ratio}
        for name, of in (*ours, *((name, others.get(name, {})) for name in BY_TASK))
        for task, ratio in of.items()
    ]
    title = "GIFT-Eval: MASE relative to seasonal naive, others as published"
    yield dots(title, points, y="MASE / naive", log=True, looks=LOOKS, columns=6)
    own = {model: relative(rows, "crps", model) for model in MODELS}
    means = {m: geometric_mean(of.values()) for m, of in own.items() if of.keys() == crps.keys()}
    means |= {name: geometric_mean(of.values()) for name, of in losses.items()}
    points = [
        {"series": name, "y": means[name], "text": f"{means[name]:.3f}"}
        for name in sorted(means, key=means.__getitem__)
    ]
    title = f"GIFT-Eval: CRPS relative to seasonal naive, {len(crps)} tasks"
    yield bars(title, points, x="geometric mean of CRPS / naive", looks=LOOKS)


def _label(task: str) -> str:
    """Return a short name of a task for an axis, such as ett1/15T or ett1/15T/long."""
    data, freq, term = task.split("/")
    words = [AXIS.get(data, data), freq, {"short": "", "medium": "med."}.get(term, term)]
    return "/".join(filter(None, words))


def losses(rows: Rows) -> Iterator[str]:
    """Yield published models that are better, and tasks on which seasonal naive is."""
    for score in ("mase", "crps"):
        own = relative(rows, score)
        if not own:
            continue
        ours = geometric_mean(own.values())
        means = {
            n: geometric_mean(of.values()) for n, of in published_relative(rows, score).items()
        }
        better = [
            f"{n} {means[n]:.3f}" for n in sorted(means, key=means.__getitem__) if means[n] < ours
        ]
        if better:
            what = f"geometric mean of {score.upper()} / naive over {len(own)} tasks"
            yield f"GIFT-Eval, {what}: {', '.join(better)} (published); {OURS} {ours:.3f}."
    for task, ratio in relative(rows, "mase").items():
        if ratio > WORSE:
            yield f"GIFT-Eval, {task}: MASE of {OURS} is {ratio:.3f} times that of seasonal naive."
