"""Score of NAB: points computed by hand, and a published score reproduced."""

import json
import math

import numpy as np
import pytest
from forecasting_helpers import needs_data

from paper.forecasting import anomalies, nab
from paper.forecasting.files import data_file
from paper.forecasting.nab import PROFILES, Series

ONE = Series(np.zeros(100), [(40, 49)], 15, 24)


def points(position: float) -> float:
    return 2 / (1 + math.exp(5 * position)) - 1


def alarms(*rows: int) -> np.ndarray:
    scores = np.zeros(100)
    scores[list(rows)] = 1.0
    return scores


def test_the_first_row_of_a_window_earns_all_points():
    assert nab.score([ONE], [alarms(40)]) == pytest.approx(dict.fromkeys(PROFILES, 100.0))
    assert nab.score([ONE], [alarms()]) == pytest.approx(dict.fromkeys(PROFILES, 0.0))


def test_a_later_alarm_earns_less_and_false_alarms_cost():
    found = nab.score([ONE], [alarms(20, 45, 47, 52)])
    earned = points(-5 / 10) / points(-1)
    costs = -1 + points(3 / 9)  # one before the window, one right after it
    for name, (false_alarm, missed) in PROFILES.items():
        expected = 100 * (earned + missed + false_alarm * costs) / (1 + missed)
        assert found[name] == pytest.approx(expected)


def test_the_best_threshold_is_shared_by_all_files():
    first, second = alarms(40), alarms(60, 80)
    first[40], second[40] = 0.9, 0.4
    # 0.4 finds both windows at the price of two false alarms; 0.9 finds one at the same price.
    costs = 0.11 * (points(11 / 9) - 1)
    found = nab.score([ONE, ONE], [first, second])["standard"]
    assert found == pytest.approx(100 * (4 + costs) / 4)


def test_the_first_rows_are_not_scored():
    assert nab.score([ONE], [alarms(3, 14, 40)])["standard"] == pytest.approx(100)
    assert nab.score([ONE], [alarms(15, 40)])["standard"] == pytest.approx(100 - 5.5)


def test_scores_agree_with_a_literal_computation():
    rng = np.random.default_rng(0)
    files = [
        Series(np.zeros(60), [(12, 18), (30, 35)], 9, 24),
        Series(np.zeros(37), [], 5, 24),
        ONE,
    ]
    scores = [np.round(rng.random(len(file.values)), 1) for file in files]
    for name, (false_alarm, missed) in PROFILES.items():
        totals = [literal(files, scores, t, false_alarm, missed) for t in np.arange(0, 1.2, 0.1)]
        null, perfect = -3 * missed, 3.0
        expected = 100 * (max(totals) - null) / (perfect - null)
        assert nab.score(files, scores)[name] == pytest.approx(expected)


def literal(files, scores, threshold, false_alarm, missed):
    total = 0.0
    for file, given in zip(files, scores, strict=True):
        found = dict.fromkeys(file.windows, -missed)
        for row in range(file.unscored, len(given)):
            if given[row] < threshold - 1e-9:
                continue
            window = next((w for w in file.windows if w[0] <= row <= w[1]), None)
            if window is not None:
                width = window[1] - window[0] + 1
                gain = points((row - window[1] - 1) / width) / points(-1)
                found[window] = max(found[window], gain)
                continue
            before = [w for w in file.windows if w[1] < row]
            position = (row - before[-1][1]) / (before[-1][1] - before[-1][0]) if before else 9.0
            total += false_alarm * (-1 if position > 3 else points(position))
        total += sum(found.values())
    return total


def test_wrong_inputs_raise():
    with pytest.raises(ValueError, match="100 rows must have as many scores, got 3"):
        nab.score([ONE], [np.zeros(3)])
    with pytest.raises(ValueError, match="no labelled windows"):
        nab.score([ONE._replace(windows=[])], [np.zeros(100)])


@pytest.mark.usefixtures("small_data")
def test_files_have_windows_rows_in_a_day_and_unscored_rows():
    assert len(nab.names()) == 3
    found = nab.load("realTweets/jump.csv")
    assert found.windows == [(148, 158)]
    assert (found.unscored, found.day, len(found.values)) == (36, 24, 240)


@needs_data
@pytest.mark.slow
def test_windowed_gaussian_reproduces_the_published_score():
    files = [nab.load(name) for name in nab.names()]
    assert (len(files), sum(len(file.windows) for file in files)) == (58, 116)
    found = nab.score(files, [anomalies.windowed_gaussian(file) for file in files])
    stored = json.loads(data_file("anomaly", "NAB", "final_results.json").read_text())
    for name, field in zip(
        PROFILES, ("standard", "reward_low_FP_rate", "reward_low_FN_rate"), strict=True
    ):
        assert found[name] == pytest.approx(stored["windowedGaussian"][field], abs=1e-6)
