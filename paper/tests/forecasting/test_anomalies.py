"""Anomalies: detectors that see no later rows, and settings chosen on some files."""

import numpy as np
import pytest
from forecasting_helpers import OPTIONS

from paper.forecasting import anomalies, nab
from paper.forecasting.anomalies import GAUSSIAN, alarms, best, windowed_gaussian
from paper.forecasting.plan import OURS, Plan

KEY = {"model": GAUSSIAN, "first": None, "options": None, "files": "all", "setting": "default"}


def test_a_rest_keeps_only_higher_scores():
    scores = np.array([0.2, 0.9, 0.9, 0.5, 0.95, 0.1, 0.1, 0.3])
    assert alarms(scores, 0) is scores
    assert alarms(scores, 2).tolist() == [0.2, 0.9, 0, 0, 0.95, 0, 0, 0.3]
    assert alarms(scores, 7).tolist() == [0.2, 0.9, 0, 0, 0.95, 0, 0, 0]


def test_the_windowed_gaussian_scores_from_earlier_values():
    values = np.random.default_rng(0).normal(size=300)
    values[200] = 9.0
    series = nab.Series(values, [], 45, 24)
    found = windowed_gaussian(series)
    assert found[45:].argmax() == 155 and 0 <= found.min() <= found.max() <= 1
    again = windowed_gaussian(series._replace(values=np.append(values[:150], np.zeros(150))))
    assert (again[:150] == found[:150]).all()


def test_a_full_window_slides_in_steps(monkeypatch):
    monkeypatch.setattr(anomalies, "WINDOW", 4)
    monkeypatch.setattr(anomalies, "STEP", 2)
    values = np.array([0.0, 2.0, 0.0, 2.0, 1.0, 5.0, 5.0])
    found = windowed_gaussian(nab.Series(values, [], 1, 24))
    assert found[4] == 0.5  # equals the mean of 0, 2, 0, 2
    assert found[5] == pytest.approx(0.9999683288)  # four deviations from that mean
    assert found[6] == pytest.approx(0.9456, abs=1e-4)  # 3 from the mean 2 of 0, 2, 1, 5


@pytest.mark.usefixtures("small_data")
def test_a_row_has_the_scores_of_all_profiles():
    row = anomalies.measure(KEY | {"rest": 25})
    assert list(row["scores"]) == ["0", "25"]
    assert 50 < row["others"] <= 100
    assert list(row["scores"]["0"]) == list(nab.PROFILES)
    assert 50 < row["scores"]["0"]["standard"] <= 100  # the jump is easy
    assert (row["count"], row["rows"]) == (3, 720)
    some = anomalies.measure(KEY | {"files": "some"})
    assert list(map(int, some["scores"])) == list(anomalies.RESTS)
    assert some["count"] == 2


@pytest.mark.usefixtures("small_data")
def test_ours_scores_all_rows_after_the_unscored_ones():
    series = nab.load("realTweets/jump.csv")
    found = anomalies.anomaly_scores(series, OPTIONS)
    assert found.shape == series.values.shape
    assert (found[: series.unscored] == 0).all()
    assert found.min() >= 0 and found.max() <= 1
    assert found[150] == found.max()
    key = KEY | {"model": OURS, "options": OPTIONS, "setting": "horizon=1+random_state=3"}
    assert anomalies.measure(key | {"files": "some"})["count"] == 2


@pytest.mark.usefixtures("small_data")
def test_a_constant_start_needs_no_model():
    series = nab.load("artificialNoAnomaly/flat.csv")
    assert not anomalies.anomaly_scores(series, ()).any()
    series.values[100] = 9.0
    assert anomalies.anomaly_scores(series, ()).nonzero()[0].tolist() == [100]


def run(files: str, setting: str, **rests: float):
    key = {"what": "anomalies", "model": OURS, "files": files, "setting": setting, "seconds": 9.0}
    scores = {rest: dict.fromkeys(nab.PROFILES, value) for rest, value in rests.items()}
    return key | {"scores": scores}


def test_all_files_are_scored_once_settings_are_chosen():
    plan = Plan(settings=("default", "horizon=1"), detectors=(OURS,))
    assert [key["files"] for key in anomalies.keys(plan)] == ["some", "some"]
    rows = [run("some", "default", **{"0": 30.0, "50": 41.0})]
    assert len(list(anomalies.keys(plan, rows))) == 2
    rows += [run("some", "horizon=1", **{"0": 40.0, "50": 33.0})]
    *_, last = anomalies.keys(plan, rows)
    assert (last["files"], last["setting"], last["rest"]) == ("all", "default", 50)
    assert best(rows) == ("default", 50)
    dev = Plan(settings=plan.settings, split="dev")
    rows = [row | {"split": "dev"} for row in rows]
    assert {key["files"] for key in anomalies.keys(dev, rows)} == {"some"}
    with pytest.raises(ValueError, match="detectors must be of EAForecaster, WindowedGaussian"):
        list(anomalies.keys(Plan(detectors=("HTM",))))


@pytest.mark.usefixtures("small_data")
def test_tables_show_the_scoreboard_and_the_settings():
    rows = [key | row for key, row in anomalies.published()]
    assert list(anomalies.tables(rows)) == list(anomalies.losses(rows)) == []
    rows += [run("some", "default", **{"0": 30.0, "50": 41.0})]
    rows += [run("all", "default", **{"0": 9.0, "50": 60.0}) | {"rest": 50, "others": 44.0}]
    whole, settings = anomalies.tables(rows)
    assert [line[0] for line in whole.lines] == [
        *("Numenta HTM", OURS, "Random", f"{OURS}, rest 0")
    ]
    assert whole.lines[0][1:] == ["70.5-69.7", "62.6-61.7", "75.2-74.2", "", "published"]
    assert whole.lines[1][1:] == ["60.0", "60.0", "60.0", "44.0", "measured"]
    assert whole.notes[1] == "EAForecaster: default, rest 50, 9 s."
    assert settings.lines == [[OURS, "default", "30.0", "41.0"]]
    assert list(anomalies.losses(rows)) == [
        "NAB, standard score: Numenta HTM 70.5-69.7 (published); EAForecaster 60.0."
    ]
    assert anomalies.TARGETS[0].value(rows) == 60
    (panel,) = anomalies.panels(rows)
    assert list(panel.looks) == ["Numenta HTM", OURS, "Random"]
