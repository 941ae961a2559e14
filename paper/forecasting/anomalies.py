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
DEFAULT = "default"  # setting without parameters
RESTS = (0, 10, 25, 50, 100, 200)  # rows


def keys(plan: Plan, rows: Rows = ()) -> Iterator[Key]:
    """Yield the keys of all settings, then that of all files if `rows` have the choice."""
    for detector in plan.detectors:
        if detector not in Plan.detectors:
            names = ", ".join(Plan.detectors)
            raise ValueError(f"detectors must be of {names}, got {detector!r}")
        key = {"what": "anomalies"} | plan.common(detector)
        settings = plan.settings if detector == OURS else (DEFAULT,)
        tried = [key | {"files": "some", "setting": setting} for setting in settings]
        yield from tried
        found = [row for each in tried for row in rows if matches(row, each)]
        if plan.split == "test" and len(found) == len(tried):
            setting, rest = best(found)
            yield key | {"files": "all", "setting": setting, "rest": rest}


def best(rows: Rows) -> tuple[str, int]:
    """Return the setting and the rest with the highest standard score; the first wins a tie."""
    row = max(rows, key=lambda row: max(each["standard"] for each in row["scores"].values()))
    rest = max(row["scores"], key=lambda rest: row["scores"][rest]["standard"])
    return row["setting"], int(rest)


def measure(key: Key) -> Row:
    """Score the files of a key.

    Files that settings are chosen on have a score for each rest, all files for no rest and for the
    chosen one. `others` is the standard score of the files that nothing was chosen on.
    """
    names = [name for name in nab.names() if key["files"] == "all" or _chosen_on(name)]
    if key["first"]:  # of all folders alike
        names = names[:: max(1, len(names) // key["first"])][: key["first"]]
    series, score_rows = [nab.load(name) for name in names], detector(key)
    began = perf_counter()
    scores = [score_rows(each) for each in series]
    row: Row = {"seconds": perf_counter() - began, "count": len(series)}
    row["rows"] = sum(len(each.values) for each in series)
    final = key["files"] == "all"
    for rest in (0, key["rest"]) if final else RESTS:
        found = [alarms(each, rest) for each in scores]
        row.setdefault("scores", {})[str(rest)] = nab.score(series, found)
    other = [n for n, name in enumerate(names) if not _chosen_on(name)]
    if any(series[n].windows for n in other):
        row["others"] = nab.score([series[n] for n in other], [found[n] for n in other])["standard"]
    return row


def _chosen_on(name: str) -> bool:
    return name.partition("/")[0] in nab.CHOSEN_ON


def detector(key: Key) -> Callable[[nab.Series], Array]:
    """Return the function that scores the rows of a file."""
    if key["model"] == GAUSSIAN:
        return windowed_gaussian
    options = [*(key["options"] or ())]
    if key["setting"] != DEFAULT:
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
        for rest, scores in row["scores"].items():
            last = int(rest) == row["rest"]
            cells = [f"{scores[profile]:.1f}" for profile in nab.PROFILES]
            name = model if last else f"{model}, rest {rest}"
            lines.append(
                [
                    name,
                    *cells,
                    f"{row['others']:.1f}" if last and "others" in row else "",
                    "measured",
                ]
            )
    if lines:
        for name, of in scoreboard(rows).items():
            lines.append([name, *(of[profile] for profile in nab.PROFILES), "", "published"])
        lines.sort(key=lambda line: -_number(line[1]))
        head = ["detector", "standard", "reward low FP", "reward low FN"]
        head += ["standard, other folders", "source"]
        notes = [
            f"{model}: {row['setting']}, rest {row['rest']}, {row['seconds']:,.0f} s."
            for model, row in whole(rows).items()
        ]
        note = (
            f"Settings are chosen on {', '.join(nab.CHOSEN_ON)}; the other folders were not used."
        )
        yield Table("NAB: scores of all files", head, lines, [note, " ".join(notes)])
    tried = [row for row in rows_of(rows, "anomalies") if row["files"] == "some"]
    if tried:
        rests = list(tried[0]["scores"])
        body = [
            [row["model"], row["setting"]]
            + [f"{row['scores'][rest]['standard']:.1f}" for rest in rests]
            for row in tried
        ]
        note = (
            "A rest is the number of rows after an alarm in which only a higher score is an alarm."
        )
        head = ["detector", "parameters", *(f"rest {rest}" for rest in rests)]
        title = "NAB: standard score of the files that settings are chosen on"
        yield Table(title, head, body, [note])


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
