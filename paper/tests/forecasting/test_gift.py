"""GIFT-Eval: its tasks as they are defined, and the published scores of seasonal naive."""

import numpy as np
import pytest
from forecasting_helpers import OPTIONS, needs_data

from paper.forecasting import gift, mixers
from paper.forecasting.plan import MIXER, OURS, ZERO_SHOT, Plan

KEY = {"task": "hospital/M/short", "mixer": "ea-6", "model": OURS, "seed": 0, "first": None}


@pytest.mark.usefixtures("small_data")
def test_horizon_windows_and_season_follow_from_the_task():
    found = {
        task: (data.horizon, data.windows, data.season, len(data.values))
        for task in ("ett1/15T/short", "ett1/15T/long", "ett1/H/medium", "ett1/D/short")
        for data in [gift.load(task)]
    }
    assert found == {
        "ett1/15T/short": (48, 20, 96, 2),
        "ett1/15T/long": (720, 3, 96, 2),
        "ett1/H/medium": (480, 2, 24, 2),
        "ett1/D/short": (30, 1, 1, 2),
    }
    hospital = gift.load("hospital/M/short")
    assert (hospital.horizon, hospital.windows, hospital.season) == (12, 1, 12)
    assert str(hospital.times[0][1])[:10] == "2000-02-01"
    assert len(gift.load("hospital/M/short", first=2).values) == 2


@pytest.mark.usefixtures("small_data")
def test_longer_steps_are_means_of_quarter_hours():
    quarters, days = gift.load("ett1/15T/short").values[1], gift.load("ett1/D/short")
    assert len(days.values[1]) == len(quarters) // 96
    assert days.values[1] == pytest.approx(quarters.reshape(-1, 96).mean(1), rel=1e-6)
    assert (days.times[1][3] - days.times[1][0]).days == 3


@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("task", ["ett1/H/medium", "hospital/M/short"])
def test_dev_ends_before_the_first_test_window(task):
    test, dev = gift.load(task), gift.load(task, "dev")
    for number in range(len(test.values)):
        assert len(dev.values[number]) == len(dev.times[number]) == test.start(number, 0)
        assert (dev.values[number] == test.values[number][: len(dev.values[number])]).all()


@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("split", [None, "dev"])
def test_a_row_has_our_scores_and_those_of_seasonal_naive(split):
    row = gift.measure(KEY | {"split": split, "options": OPTIONS})
    naive = gift.naive_scores(gift.load(KEY["task"], split or "test"))
    assert row["naive_mase"] == naive["mase"] and row["naive_crps"] == naive["crps"]
    assert 0 < row["mase"] < 100 and 0 < row["crps"] < 10
    assert row["fit_seconds"] > row["predict_seconds"] > 0
    assert (row["horizon"], row["windows"], row["series"]) == (12, 1, 3)


def test_all_tasks_are_planned_and_mixers_share_their_rows():
    keys = list(gift.keys(Plan()))
    assert len(keys) == 2 * len(set(gift.TASKS)) == 50  # trained, and zero-shot
    more = list(mixers.keys(Plan(seeds=2)))
    assert len(more) == 2 * 3 * 8
    assert sum(key in keys for key in more) == 8
    few = Plan(tasks=("ett1/D/short", "hospital/M/short"), seeds=1)
    assert [key["task"] for key in mixers.keys(few)] == ["ett1/D/short"] * 3
    with pytest.raises(ValueError, match=r"tasks must be of ett1/15T/short, .*, got 'ett1'"):
        list(gift.keys(Plan(tasks=("ett1",))))


def run(task: str, ratio: float, *, mixer: str | None = None, seed: int = 0, **changes: object):
    mixer = mixer or MIXER
    key = {"what": "gift", "model": OURS, "task": task, "mixer": mixer, "seed": seed}
    scores = {"mase": 2 * ratio, "naive_mase": 2.0, "crps": ratio / 4, "naive_crps": 0.5}
    return key | scores | {"fit_seconds": 60.0, "predict_seconds": 12.0} | changes


def test_means_are_geometric_and_relative_to_seasonal_naive():
    rows = [run(task, 0.5 if n else 1.2) for n, task in enumerate(gift.TASKS)]
    shot = [run(task, 0.6, model=ZERO_SHOT) for task in gift.TASKS]
    assert gift.mean(rows, "mase") == pytest.approx((1.2 * 0.5**24) ** (1 / 25))
    values = {target.name.partition(": ")[2]: target.value(rows + shot) for target in gift.TARGETS}
    assert gift.mean(shot, "mase", ZERO_SHOT) == pytest.approx(0.6)
    assert values["MASE / naive, worst task"] == pytest.approx(1.2)
    assert values["longest fit"] == 1.0
    assert values["all fits and forecasts"] == pytest.approx(25 * 72 / 3600)
    assert list(gift.losses(rows)) == [
        f"GIFT-Eval, {gift.TASKS[0]}: MASE of EAForecaster is 1.200 times that of seasonal naive."
    ]
    with pytest.raises(LookupError, match="25 tasks are needed, got 0"):
        gift.mean(rows, "mase", ZERO_SHOT)
    for target in gift.TARGETS:
        with pytest.raises(LookupError, match="25 tasks are needed, got 24"):
            target.value(rows[1:] + shot[1:])


@pytest.mark.usefixtures("small_data")
def test_published_models_are_marked_and_compared_on_the_same_tasks():
    published = [key | row for key, row in gift.published()]
    rows = [run("ett1/D/short", 1.25), run("ett1/W/short", 0.8), *published]
    means, tasks = gift.tables(rows)
    lines = {line[0]: line[1:] for line in means.lines}
    assert lines[OURS] == ["1.000", "0.500", "", "measured"]
    assert lines["Chronos-2"] == ["1.100", "1.100", "120", "published"]
    assert lines["N-BEATS"][1:] == ["", "", "published"]
    assert "over 2 tasks" in means.title
    assert [line[0] for line in tasks.lines] == ["ett1/D/short", "ett1/W/short"]
    assert [panel.title.partition(":")[0] for panel in gift.panels(rows)] == ["GIFT-Eval"] * 2
    assert not [line for line in gift.losses(rows) if "CRPS" in line]


def test_mixers_are_compared_over_seeds():
    rows = [run("ett1/D/short", 0.5, seed=seed) for seed in range(2)]
    rows += [run("ett1/D/short", ratio, mixer="sa") for ratio in (0.4,)]
    assert list(mixers.tables(rows[:2])) == []
    mase, crps = mixers.tables(rows)
    assert [line[0] for line in mase.lines] == [rows[0]["mixer"], "sa"]
    assert mase.lines[0][1:] == ["0.500 ± 0.000", "0.500"]
    assert list(mixers.losses(rows)) == [
        "Short ETT tasks, MASE / naive: `sa` 0.400 against 0.500.",
        "Short ETT tasks, CRPS / naive: `sa` 0.200 against 0.250.",
    ]
    assert crps.title == "Mixers: CRPS relative to seasonal naive"


@needs_data
@pytest.mark.parametrize("task", ["ett1/H/short", "m4_weekly/W/short", "us_births/M/short"])
def test_seasonal_naive_reproduces_the_published_scores(task):
    published = {key["name"]: row for key, row in gift.published()}[gift.NAIVE]
    found = gift.naive_scores(gift.load(task))
    assert found["mase"] == pytest.approx(published["mase"][task], rel=5e-5)
    assert found["crps"] == pytest.approx(published["crps"][task], rel=5e-5)


@pytest.mark.usefixtures("small_data")
def test_values_have_the_precision_of_float32():
    values = gift.load("ett1/15T/short").values[0]
    assert values.dtype == np.float64
    assert (values == values.astype(np.float32)).all()
