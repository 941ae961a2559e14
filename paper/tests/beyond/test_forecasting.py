"""Forecasting: a plan that is resumed, variants that are kept apart, tables and targets."""

from dataclasses import replace

import pytest
from forecasting_helpers import OPTIONS

from paper.beyond import forecasting
from paper.forecasting.gift import TASKS
from paper.forecasting.plan import OURS, Plan
from paper.harness.experiment import change, load, result
from paper.harness.runlog import RunLog, matches
from paper.harness.target import judge

TINY = Plan(
    models=(OURS,),
    parts=("gift", "mixers", "anomalies", "coverage"),
    tasks=("ett1/D/short",),
    mixers=("gru",),
    seeds=1,
    detectors=("WindowedGaussian",),
    streams=("ett1/D",),
    rows=20,
    options=OPTIONS,
    jobs=1,
)


@pytest.mark.usefixtures("small_data")
def test_a_plan_is_measured_once_and_resumed(tmp_path):
    log = RunLog(tmp_path / "forecasting.jsonl", "forecasting")
    found = list(forecasting.rows(TINY, log))
    assert [row["what"] for row in found if row["what"] != "published"] == [
        *("scoreboard", "gift", "gift", "anomalies", "anomalies", "coverage")
    ]
    before = log.path.read_bytes()
    again = RunLog(log.path, "forecasting")
    assert list(forecasting.rows(TINY, again)) == found
    assert log.path.read_bytes() == before
    longer = replace(TINY, parts=("gift",), split="dev")
    (more,) = [row for row in forecasting.rows(longer, again) if row["what"] == "gift"]
    assert more["split"] == "dev"
    assert log.path.read_bytes().startswith(before)
    titles = [table.title for table in forecasting.tables(again.rows)]
    assert len(titles) == len(set(titles))
    assert sum("split dev" in title for title in titles) == 2
    assert forecasting.draw(found).panels
    assert judge(forecasting.TARGETS, again.rows) == []


def test_every_part_and_model_can_run_alone():
    plan = change(forecasting.plan(quick=False), {"parts": "classics", "models": "AutoARIMA"})
    keys = forecasting.keys(change(plan, {"sets": "tourism"}), [])
    assert {(key["what"], key["set"], key["model"]) for key in keys} == {
        ("classics", "tourism", "AutoARIMA")
    }
    plan = change(forecasting.plan(quick=False), {"split": "dev", "options": "lr=1e-3,mixer=sa"})
    assert plan.options == ("lr=1e-3", "mixer=sa")
    with pytest.raises(ValueError, match="split must be one of test, dev, got 'train'"):
        change(plan, {"split": "train"})
    with pytest.raises(ValueError, match=r"parts must be of gift, .*, got 'm5'"):
        change(plan, {"parts": "m5"})
    with pytest.raises(ValueError, match=r"models must be of EAForecaster, .*, got 'Prophet'"):
        change(plan, {"models": "Prophet"})


def test_keys_are_distinct_and_of_known_parts():
    for quick in (False, True):
        keys = forecasting.keys(forecasting.plan(quick), [])
        assert {key["what"] for key in keys} <= set(forecasting.MEASURE)
        for key in keys:
            stored = {name: value for name, value in key.items() if value is not None}
            assert sum(matches(stored, other) for other in keys) == 1
    assert load("forecasting") is forecasting


@pytest.mark.usefixtures("small_data")
def test_missing_packages_and_data_are_reported_before_the_work(monkeypatch):
    log = RunLog(None, "forecasting")
    monkeypatch.setattr(forecasting, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"LightGBM needs lightgbm: pip .*eattn\[study\]"):
        list(forecasting.rows(Plan(parts=("classics",)), log))
    monkeypatch.delenv("EATTN_DATA", raising=False)
    with pytest.raises(ValueError, match="from the folder EATTN_DATA, which is not set"):
        list(forecasting.rows(Plan(parts=("gift",)), log))


def test_a_missing_dataset_names_its_path(tmp_path, monkeypatch):
    monkeypatch.setenv("EATTN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="forecasting is missing; EATTN_DATA must"):
        list(forecasting.rows(Plan(parts=("gift",)), RunLog(None, "forecasting")))


def classic(model: str, mase: float, **changes: object):
    key = {"what": "classics", "set": "tourism", "group": "yearly", "model": model}
    return key | {"mase": mase, "series": 5, "seconds": 1.0, "failures": 0} | changes


def test_variants_share_competitors_and_targets_use_the_default():
    rows = [
        classic("AutoETS", 1.0),
        classic("AutoTheta", 1.1),
        classic("AutoETS", 7.0, split="dev"),
        classic(OURS, 0.9),
        classic(OURS, 0.8, options=["lr=1e-3"]),
        classic(OURS, 0.7, split="dev"),
    ]
    found = forecasting.variants(rows)
    assert list(found) == ["", "options lr=1e-3", "split dev"]
    scores = {name: [row["mase"] for row in own] for name, own in found.items()}
    assert scores[""] == [1.0, 1.1, 0.9]
    assert scores["options lr=1e-3"] == [1.0, 1.1, 0.8]
    assert scores["split dev"] == [7.0, 0.7]
    (verdict,) = judge(forecasting.TARGETS, rows)
    assert verdict.value == pytest.approx(0.9) and verdict.met
    assert judge(forecasting.TARGETS, rows[4:]) == []
    assert list(forecasting.losses(rows)) == []


def test_published_rows_belong_to_the_full_plan():
    rows = result("forecasting").rows
    keys = forecasting.keys(forecasting.plan(quick=False), rows)
    known = ("published", "scoreboard")
    assert all(any(matches(row, key) for key in keys) for row in rows if row["what"] not in known)
    assert len(TASKS) == 25
