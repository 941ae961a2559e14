"""Anomalies: scores of EAForecaster on NAB, next to the published scores of other detectors.

Every file has its own forecaster. It is fitted on the first rows, which are not scored, and reads
the others as a stream. Times are numbers of rows, because many files skip or repeat times.

Settings are chosen on four of the seven folders, for the highest standard score; then all files are
scored once. One setting is applied to the scores: the number of rows after an alarm in which only
a higher score is an alarm again.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from paper.forecasting import nab
from paper.forecasting.files import data_file
from paper.forecasting.ours import Array, forecaster, long_frame
from paper.forecasting.plan import LOOKS, OURS, Plan
from paper.harness.chart import Panel, Point, bars
from paper.harness.runlog import Key, Row, find_row, matches, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target

GAUSSIAN = "WindowedGaussian"
WINDOW, STEP = 6400, 100  # values of the windowed Gaussian, and values between two updates of it
HORIZON = 12
RESTS = (0, 10, 25, 50, 100, 200)  # rows


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the keys of all settings, then that of all files if `rows` have the choice."""
    for detector in plan.detectors:
        if detector not in Plan.detectors:
            names = ", ".join(Plan.detectors)
            raise ValueError(f"detectors must be of {names}, got {detector!r}")
        key = {"what": "anomalies"} | plan.common(detector)
        final = {"files": "all", "setting": None, "rest": 0}
        if detector == OURS:
            tried = [key | {"files": "some", "setting": each} for each in plan.settings]
            yield from tried
            found = [row for each in tried for row in rows if matches(row, each)]
            if len(found) < len(tried):
                continue
            setting, rest = best(found)
            final |= {"setting": setting, "rest": rest}
        if plan.split == "test":
            yield key | final


def best(rows: Rows) -> tuple[str, int]:
    """Return the setting and the rest with the highest standard score; the first wins a tie."""
    row = max(rows, key=lambda row: max(each["standard"] for each in row["scores"].values()))
    rest = max(row["scores"], key=lambda rest: row["scores"][rest]["standard"])
    return row["setting"], int(rest)


def measure(key: Key) -> Row:
    """Score the files of a key; those that settings are chosen on have a score for each rest."""
    chosen = [
        name
        for name in nab.names()
        if key["files"] == "all" or name.partition("/")[0] in nab.CHOSEN_ON
    ]
    if key["first"]:  # of every folder alike
        chosen = chosen[:: max(1, len(chosen) // key["first"])][: key["first"]]
    series = [nab.load(name) for name in chosen]
    began = perf_counter()
    scores = [detector(key)(each) for each in series]
    rest = key.get("rest")
    found = {
        str(rows): nab.score(series, [alarms(each, rows) for each in scores])
        for rows in (RESTS if rest is None else (rest,))
    }
    sizes = {"count": len(series), "rows": sum(len(each.values) for each in series)}
    return {"scores": found, "seconds": perf_counter() - began} | sizes


def detector(key: Key) -> Callable[[nab.Series], Array]:
    """Return the function that scores the rows of a file."""
    if key["model"] == GAUSSIAN:
        return windowed_gaussian
    options = [*(key["options"] or ())]
    if key["setting"] != "default":
        options += key["setting"].split("+")
    return lambda series: anomaly_scores(series, options)


def anomaly_scores(series: nab.Series, options: Sequence[str]) -> Array:
    """Fit on the rows that are not scored, and return the scores of the others as a stream."""
    first, values = series.unscored, series.values
    found = np.zeros(len(values))
    if np.ptp(values[:first]) == 0:  # nothing to fit: any other value is an anomaly
        return (values != values[0]).astype(np.float64)
    rows = np.arange(len(values))
    season = series.day if 2 * series.day <= first else 1
    model = forecaster(HORIZON, options, season_length=season)
    model.fit(long_frame([rows[:first]], [values[:first]]))
    scores: Any = model.update(long_frame([rows[first:]], [values[first:]]), return_scores=True)
    found[first:] = scores.sort_values("ds")["score"].to_numpy(np.float64)
    return found


def alarms(scores: Array, rest: int) -> Array:
    """Set scores to 0 that are not higher than all scores in the `rest` rows before."""
    if not rest:
        return scores
    before = pd.Series(scores).shift(1, fill_value=0).rolling(rest, min_periods=1).max()
    return np.where(scores > before, scores, 0.0)


def windowed_gaussian(series: nab.Series) -> Array:
    """Score values by their tail probability under a normal distribution of the values before.

    This is a published detector of NAB. It sees all values up to WINDOW, then slides by STEP. The
    published score belongs to scores of 12 digits.
    """
    values, normal = series.values, NormalDist()
    found, begin, end = np.zeros(len(values)), 0, 0
    for row, value in enumerate(values):
        if end == 0:
            end = 1
        else:
            part = values[begin:end]
            z = abs(value - part.mean()) / (part.std() or 1e-6)
            found[row] = round(1 - normal.cdf(-z), 12)
            if end - begin < WINDOW:
                end = row + 1
            elif row + 1 - end == STEP:
                begin, end = begin + STEP, end + STEP
    return found


def published() -> Iterator[tuple[Key, Row]]:
    """Yield a key and a row with the scores of NAB's scoreboard."""
    table = pd.read_csv(data_file("anomaly", "NAB", "scoreboard.csv"), index_col="detector")
    scores = {
        str(name): {profile: str(row.iloc[n]) for n, profile in enumerate(nab.PROFILES)}
        for name, row in table.iterrows()
        if name not in ("Perfect", "Null")
    }
    yield {"what": "scoreboard"}, {"scores": scores}


def whole(rows: Rows) -> dict[str, Row]:
    """Return the rows of all files by detector."""
    return {row["model"]: row for row in rows_of(rows, "anomalies") if row["files"] == "all"}


def scoreboard(rows: Rows) -> dict[str, dict[str, str]]:
    """Return the published scores of detectors by profile."""
    found = rows_of(rows, "scoreboard")
    return found[0]["scores"] if found else {}


def _standard(rows: Rows) -> float:
    row = find_row(rows, what="anomalies", files="all", model=OURS)
    return float(row["scores"][str(row["rest"])]["standard"])


TARGETS = (Target("NAB: standard score", _standard, at_least=55, stretch=70),)


def tables(rows: Rows) -> Iterator[Table]:
    """Yield the scores of all files next to the scoreboard, and those of the settings."""
    lines = []
    for model, row in whole(rows).items():
        scores = row["scores"][str(row["rest"])]
        cells = [f"{scores[profile]:.1f}" for profile in nab.PROFILES]
        setting = f", {row['setting']}, rest {row['rest']}" if "setting" in row else ""
        lines.append([model, *cells, f"measured in {row['seconds']:.0f} s{setting}"])
    if lines:
        for name, of in scoreboard(rows).items():
            lines.append([name, *(of[profile] for profile in nab.PROFILES), "published"])
        lines.sort(key=lambda line: -_number(line[1]))
        head = ["detector", "standard", "reward low FP", "reward low FN", "source"]
        yield Table("NAB: scores of all files", head, lines)
    tried = [row for row in rows_of(rows, "anomalies") if row["files"] == "some"]
    if tried:
        rests = list(tried[0]["scores"])
        body = [
            [row["setting"], *(f"{row['scores'][rest]['standard']:.1f}" for rest in rests)]
            for row in tried
        ]
        note = f"Files in {', '.join(nab.CHOSEN_ON)}; the best cell is used for all files."
        head = ["parameters", *(f"rest {rest}" for rest in rests)]
        yield Table("NAB: standard score by setting", head, body, [note])


def _number(text: str) -> float:
    """Return a score of the scoreboard; the first one of a range such as 70.5-69.7."""
    return float(text.partition("-")[0])


def panels(rows: Rows) -> Iterator[Panel]:
    """Draw the standard scores."""
    scores = {name: _number(of["standard"]) for name, of in scoreboard(rows).items()}
    try:
        scores[OURS] = _standard(rows)
    except LookupError:
        return
    points: list[Point] = [
        {"series": name, "y": scores[name], "text": f"{scores[name]:.1f}"}
        for name in sorted(scores, key=scores.__getitem__, reverse=True)
    ]
    yield bars("NAB: standard score", points, x="score", looks=LOOKS)


def losses(rows: Rows) -> Iterator[str]:
    """Yield the published detectors with a higher standard score."""
    try:
        ours = _standard(rows)
    except LookupError:
        return
    better = [
        f"{name} {of['standard']}"
        for name, of in scoreboard(rows).items()
        if _number(of["standard"]) > ours
    ]
    if better:
        yield f"NAB, standard score: {', '.join(better)} (published); {OURS} {ours:.1f}."
