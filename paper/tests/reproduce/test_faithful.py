"""Errors, costs and trainings of expansions: measured for real, and judged as they should be."""

import json

import numpy as np
import pytest
from rich.console import Console

from paper.bench.target import judge
from paper.report import faithful as report
from paper.reproduce import faithful
from paper.reproduce.faithful import PROMISES, Plan

TINY = Plan(
    spreads=(0.5, 1.0),
    powers=(2, 6),
    nodes=(9, 25),
    shape=(1, 64, 8),
    timed=(1, 64, 16),
    rounds=2,
    mixers=("ea-6", "ea"),
    sets=("JapaneseVowels",),
    series=("Traffic",),
    seeds=1,
    epochs=1 / 30,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("faithful")
    pandas = pytest.importorskip("pandas")
    times = pandas.date_range("2024-01-01", periods=400, freq="h")
    wave = np.sin(np.arange(400) * np.pi / 12)
    pandas.DataFrame({"date": times, "OT": wave}).to_csv(out / "traffic.csv", index=False)
    files = faithful.run(TINY, Console(quiet=True), out, data_dir=out)
    return [json.loads(line) for line in files[0].read_text().splitlines()], files


def test_errors_shrink_with_terms_and_grow_with_the_spread(measured):
    rows, _ = measured
    error = {(r["expansion"], r["spread"]): r["error"] for r in rows if r["what"] == "error"}
    assert len(error) == 8
    for spread in TINY.spreads:
        assert error["ea-2", spread] > 1.2 * error["ea-6", spread]
    assert error["ea-6", 1.0] > 5 * error["ea-6", 0.5]
    assert error["ea-q25", 1.0] < 2e-4 < 0.1 < error["ea-6", 1.0]


def test_centring_helps_keys_that_lie_apart_from_0(measured):
    rows, _ = measured
    error = {(r["expansion"], r["centred"]): r["error"] for r in rows if r["what"] == "center"}
    assert error["ea-6", True] < error["ea-6", False] / 5


def test_every_expansion_has_its_time_and_its_state(measured):
    rows, _ = measured
    times = {row["expansion"]: row for row in rows if row["what"] == "time"}
    assert set(times) == {"ea-2", "ea-6", "ea-q9", "ea-q25"}
    assert all(row["training"] > row["forward"] > 0 for row in times.values())
    assert times["ea-q25"]["state_bytes"] == 16 * (2 * 25 + 1) * 4


def test_weights_of_exact_attention_answer_the_same_on_a_quadrature(measured):
    rows, _ = measured
    (exact,) = (row for row in rows if row["what"] == "run" and row["mixer"] == "ea")
    assert exact["swapped"]["ea-q25"]["agreement"] >= 0.999
    assert abs(exact["swapped"]["ea-q25"]["accuracy"] - exact["accuracy"]) < 0.002
    assert exact["swapped"]["ea-6"]["agreement"] <= 1
    (series,) = (row for row in rows if row["what"] == "run" and row["mixer"] == "ea-6")
    assert "swapped" not in series


def test_forecasts_of_exact_attention_stay_where_they_are_on_a_quadrature(measured):
    rows, _ = measured
    runs = {row["mixer"]: row for row in rows if row["what"] == "forecast"}
    assert set(runs) == {"ea-6", "ea"}
    swapped = runs["ea"]["swapped"]["ea-q25"]
    assert swapped["mae"] == pytest.approx(runs["ea"]["mae"], rel=1e-3)
    assert swapped["moved"] < 1e-3 * runs["ea"]["mae"]


def test_all_promises_are_judged_and_the_tables_and_the_picture_are_there(measured):
    rows, files = measured
    judged = {row["name"] for row in rows if row["what"] == "ratio"}
    assert len(judged) == 2  # a spread of 1.5 was not asked for
    assert [path.suffix for path in files] == [".jsonl", ".png", ".svg"]
    assert all(path.stat().st_size > 5_000 for path in files)
    text = report.markdown(rows)
    assert "| ea-q25 |" in text
    assert "weights of exact EA, used with" in text


@pytest.mark.parametrize(("agreement", "verdict"), [(1.0, "must"), (0.998, "miss")])
def test_the_least_agreement_of_a_set_is_judged(agreement, verdict):
    def trained(data, value):
        swapped = {"ea-q25": {"agreement": value, "accuracy": 0.9}}
        return {"what": "run", "data": data, "mixer": "ea", "seed": 0, "swapped": swapped}

    rows = [trained("JapaneseVowels", 1.0), trained("UWaveGestureLibrary", agreement)]
    (judged,) = judge(rows, PROMISES)
    assert judged["value"] == agreement
    assert judged["verdict"] == verdict
