"""Covariates: EAForecaster with and without them, next to LightGBM with the same features.

The load of the next day is forecast on each of the last 56 days. Temperature and holidays of that
day are known; the temperature is the one that was measured, so it is a perfect weather forecast.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.holiday import USFederalHolidayCalendar

from paper.forecasting.files import data_file
from paper.forecasting.ours import LEVELS, Array, forecaster
from paper.forecasting.plan import OURS, TREES, Plan
from paper.forecasting.rolling import Rolling, roll, scores, seasonal_naive
from paper.forecasting.trees import Trees
from paper.harness.runlog import Key, Row, group, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows

DAYS = 56
WEEK = 7  # days, the second season of LightGBM
SETS = ("gefcom2012_load", "vic_elec")


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the keys of every dataset, with and without covariates, for both models."""
    for data in plan.covariates:
        if data not in SETS:
            raise ValueError(f"covariates must be of {', '.join(SETS)}, got {data!r}")
        for model in plan.models:
            for used in (False, True):
                if model in (OURS, TREES):
                    key = {"what": "covariates", "set": data, "covariates": used}
                    yield key | plan.common(model)


def measure(key: Key) -> Row:
    """Forecast all windows with one model; return its scores, and those of seasonal naive.

    LightGBM has no CRPS, because it predicts only the median.
    """
    data = load(key["set"], key["split"] or "test", key["first"])
    if not key["covariates"]:
        data = replace(data, known={})
    naive = {f"naive_{name}": value for name, value in scores(data, seasonal_naive(data)).items()}
    naive |= {"series": len(data.values), "columns": list(data.known)}
    if key["model"] == OURS:
        model = forecaster(data.horizon, key["options"], futr_exog_list=tuple(data.known))
        forecasts, seconds = roll(data, model)
        return scores(data, forecasts) | naive | seconds
    forecasts, seconds = roll_trees(data)
    return {"mase": scores(data, forecasts)["mase"]} | naive | seconds


def roll_trees(data: Rolling) -> tuple[Array, Row]:
    """Fit LightGBM and forecast all windows, as `rolling.roll` does; all quantiles are equal."""
    known = [
        np.column_stack([*calendar(times), *columns])
        for times, *columns in zip(data.times, *data.known.values(), strict=True)
    ]

    def past(window: int) -> list[Array]:
        return [values[: data.start(n, window)] for n, values in enumerate(data.values)]

    began = perf_counter()
    trees = Trees(data.horizon, [data.season, WEEK * data.season]).fit(past(0), known)
    fitted = perf_counter()
    found = np.stack([trees.predict(past(window), known) for window in range(data.windows)])
    seconds = {"fit_seconds": fitted - began, "predict_seconds": perf_counter() - fitted}
    return np.repeat(found[:, :, None], len(LEVELS), axis=2), seconds


def calendar(times: pd.DatetimeIndex) -> list[Any]:
    """Return hour, weekday and day of the year, which EAForecaster reads from the times."""
    return [times.hour + times.minute / 60, times.weekday, times.dayofyear]


def load(data: str, split: str = "test", first: int | None = None) -> Rolling:
    """Load a dataset with its covariates; `dev` leaves out the last 56 days."""
    times, values, known = (_gefcom if data == "gefcom2012_load" else _vic)()
    season = round(pd.Timedelta("1D") / (times[1] - times[0]))
    cut = slice(None, -DAYS * season if split == "dev" else None)
    values = [series[cut] for series in values[:first]]
    repeated = {name: [column[cut]] * len(values) for name, column in known.items()}
    return Rolling([times[cut]] * len(values), values, season, DAYS, season, repeated)


Loaded = tuple[pd.DatetimeIndex, Sequence[Array], Mapping[str, Array]]


def _gefcom() -> Loaded:
    """Read the hourly loads of 20 zones; the file has no temperatures."""
    path = data_file("forecasting", "gefcom2012_load", "gefcom2012_load.csv.gz")
    table = pd.read_csv(path, header=None).to_numpy(np.float64)
    values = list(table[:, 3:])  # after zone, rows in a year, and first year
    times = pd.date_range(f"{table[0, 2]:.0f}-01-01", periods=len(values[0]), freq="h")
    free = USFederalHolidayCalendar().holidays(times[0], times[-1])
    return times, values, {"holiday": times.normalize().isin(free).astype(np.float64)}


def _vic() -> Loaded:
    """Read the half-hourly demand of Victoria, with its local time."""
    path = data_file("forecasting", "vic_elec", "vic_elec.csv.gz")
    table = pd.read_csv(path, index_col="time_utc", parse_dates=True)
    times = table.index.tz_localize("UTC").tz_convert("Australia/Melbourne")
    columns = {name: table[name].to_numpy(np.float64) for name in ("temperature", "holiday")}
    return times, [table["demand"].to_numpy(np.float64)], columns


def tables(rows: Rows) -> Iterator[Table]:
    """Yield MASE and CRPS of both models with and without covariates."""
    body = []
    for (data, model), own in group(rows_of(rows, "covariates"), "set", "model").items():
        found = {row["covariates"]: row for row in own}
        cells = [data, model]
        for score in ("mase", "crps"):
            values = [found[used].get(score) if used in found else None for used in (False, True)]
            cells += ["" if value is None else f"{value:.3f}" for value in values]
        columns = ", ".join(found[True]["columns"]) if True in found else ""
        naive = own[0]["naive_mase"]
        body.append([*cells, f"{naive:.3f}", columns, f"{_seconds(own):.0f}"])
    if not body:
        return
    head = ["dataset", "model", "MASE without", "MASE with", "CRPS without", "CRPS with"]
    head += ["MASE of seasonal naive", "covariates", "seconds"]
    note = (
        f"The next day on each of the last {DAYS} days, fitted once before them. The temperature is"
        " the measured one. `gefcom2012_load` comes without temperatures, so its covariate is the"
        " holidays of the USA. LightGBM predicts the median only."
    )
    yield Table("Covariates: forecasts with and without them", head, body, [note])


def _seconds(rows: Rows) -> float:
    return sum(row["fit_seconds"] + row["predict_seconds"] for row in rows)


def losses(rows: Rows) -> Iterator[str]:
    """Yield where covariates do not help, and where LightGBM is better."""
    for data, own in group(rows_of(rows, "covariates"), "set").items():
        mase = {(row["model"], row["covariates"]): row["mase"] for row in own}
        ours, without = mase.get((OURS, True)), mase.get((OURS, False))
        if ours is not None and without is not None and ours >= without:
            yield f"{data}: covariates raise MASE of {OURS} from {without:.3f} to {ours:.3f}."
        for used, words in ((False, "without"), (True, "with")):
            ours, other = mase.get((OURS, used)), mase.get((TREES, used))
            if ours is not None and other is not None and other < ours:
                yield f"{data} {words} covariates, MASE: {TREES} {other:.3f}; {OURS} {ours:.3f}."
