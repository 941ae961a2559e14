"""Forecast a series with the exported model: python example.py"""

import math
from datetime import date, datetime, timedelta

from graphs import ABOUT, array, empty_state, open_graph

HOLIDAYS = None if ABOUT["holidays"] is None else set(map(date.fromisoformat, ABOUT["holidays"]))


def forecast(history, future, series):
    """Return the quantiles [horizon][levels] at the times of `future`.

    `history` has a row for every step, oldest first: a dict with the time `ds`, the value `y` (NaN
    if missing) and the covariates. `future` has a row with the time and the known-future
    covariates for each step of the horizon.
    """
    step, state, values = open_graph("step"), empty_state("step"), {}
    rows = [known(row, series, values) + past(row, values) for row in history]
    ahead = [known(row, series, values) for row in future]
    lower = -math.inf if series["lower"] is None else series["lower"]
    constant = {
        "lower": array([lower], "float64"),
        "choice": array([series["choice"]], "int64"),
    }
    if ahead[0]:  # only the last forecast is used, so every row may get the same
        constant["ahead"] = array([ahead], "float32")
    for row, encoded in zip(history, rows, strict=True):
        inputs = {"y": array([row["y"]], "float64")} | constant | state
        if encoded:
            inputs["row"] = array([encoded], "float32")
        out = step(inputs)
        state = {name[5:]: x for name, x in out.items() if name.startswith("next.")}
    return out["quantiles"][0].tolist()


def known(row, series, values):
    """Return what is known in advance about a row: calendar, covariates, holidays, static."""
    future = [x for column in ABOUT["future"] for x in encode(column, row, values)]
    return calendar(row["ds"]) + future + holidays(row["ds"]) + series["static"]


def past(row, values):
    """Return the past-only covariates of a row."""
    return [x for column in ABOUT["past"] for x in encode(column, row, values)]


def encode(column, row, values):
    """Return the columns of a covariate; `values` holds the last ones, for missing values."""
    name, value = column["name"], row.get(column["name"])
    if "values" in column:  # categories
        if value is not None:
            found = [float(value == other) for other in column["values"]]
            values[name] = found + [1.0 - sum(found)] * column["other"]
        return values.get(name, [0.0] * (len(column["values"]) + column["other"]))
    if value is not None:
        scaled = (value - column["center"]) / column["scale"]
        values[name] = [min(max(scaled, -ABOUT["limit"]), ABOUT["limit"])]
    return values.get(name, [0.0])


def calendar(time):
    """Return sines and cosines of the calendar fields of an ISO time."""
    if not ABOUT["calendar"]:
        return []
    at = datetime.fromisoformat(time)
    seconds = 3600 * at.hour + 60 * at.minute + at.second
    phases = {
        "minute": seconds % 3600 / 3600,
        "hour": seconds / 86400,
        "weekday": at.weekday() / 7,
        "day": (at.day - 1) / 31,
        "month": (at.timetuple().tm_yday - 1) / 365.25,
    }
    angles = [
        2 * math.pi * harmonic * phases[name]
        for name, harmonics in ABOUT["calendar"].items()
        for harmonic in range(1, harmonics + 1)
    ]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def holidays(time):
    """Return whether it is a holiday, the day before one, and the day after one."""
    if HOLIDAYS is None:
        return []
    day = datetime.fromisoformat(time).date()
    return [float(day + timedelta(days) in HOLIDAYS) for days in (0, 1, -1)]


if __name__ == "__main__":
    # Example: a sine wave on the scale of the first series. Replace it with your own rows.
    history, future = ABOUT["example"]["history"], ABOUT["example"]["future"]
    print("ds", *ABOUT["levels"])
    for row, quantiles in zip(future, forecast(history, future, ABOUT["series"][0]), strict=True):
        print(row["ds"], *quantiles)
