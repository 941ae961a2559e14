"""Forecast a series with the exported model: python example.py"""

import math
from datetime import datetime

from graphs import ABOUT, array, open_graph


def forecast(values, times, series):
    """Forecast the values after `values`, at the remaining `times`, for one of the series."""
    mean, std = series["mean"], series["std"]
    roll_out = roll_out_steps if "step" in ABOUT["graphs"] else roll_out_whole
    found = roll_out([(value - mean) / std for value in values], times)
    return [value * std + mean for value in found]


def roll_out_steps(values, times):
    """Read all values at once, then take one step per forecast."""
    out, step = open_graph("sequence")(sequence_inputs(values, times)), open_graph("step")
    found = [out["expected"][0, -1, 0].item()]
    for i in range(len(values), len(times) - 1):
        inputs = {name[5:]: x for name, x in out.items() if name.startswith("next.")}
        inputs["x"] = array([[found[-1]]], "float32")
        if ABOUT["calendar"]:
            inputs["calendar"] = array(calendar([times[i]]), "int64")
        out = step(inputs)
        found.append(out["expected"][0, 0].item())
    return found


def roll_out_whole(values, times):
    """Read all values again for each forecast, because this model has no step."""
    sequence, known = open_graph("sequence"), list(values)
    while len(known) < len(times):
        known.append(sequence(sequence_inputs(known, times))["expected"][0, -1, 0].item())
    return known[len(values) :]


def sequence_inputs(values, times):
    """Return the inputs of the sequence graph for one series."""
    inputs = {
        "x": array([[[value] for value in values]], "float32"),
        "key_mask": array([[True] * len(values)], "bool"),
    }
    if ABOUT["calendar"]:
        inputs["calendar"] = array([calendar(times[: len(values)])], "int64")
    return inputs


def calendar(times):
    """Return the calendar fields of ISO times; Monday is 0."""
    rows = []
    for time in map(datetime.fromisoformat, times):
        known = {"weekday": time.weekday()}
        rows.append([known.get(name, getattr(time, name)) for name in ABOUT["calendar"]])
    return rows


if __name__ == "__main__":
    # Example: a sine wave on the scale of the first series. Replace it with your own values.
    series, known, times = ABOUT["series"][0], ABOUT["example"]["values"], ABOUT["example"]["times"]
    wave = [series["mean"] + series["std"] * math.sin(i / 3) for i in range(known)]
    for time, value in zip(times[known:], forecast(wave, times, series), strict=True):
        print(time, value)
