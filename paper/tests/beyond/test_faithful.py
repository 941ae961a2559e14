"""Expansions against exact EA: errors, costs, training runs, and the answers on a quadrature."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from eattn.ops import Quadrature
from paper.beyond import faithful
from paper.beyond.faithful import Plan
from paper.harness.experiment import result
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = Plan(
    spreads=(0.5, 1.0),
    orders=(2, 6),
    nodes=(9, 25),
    wide=(Quadrature(65),),
    shape=(1, 64, 8),
    timed=(1, 4096, 32),
    rounds=7,
    mixers=("ea-6", "ea"),
    sets=("JapaneseVowels",),
    series=("Traffic",),
    seeds=1,
    epochs=1 / 30,
    jobs=2,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Iterator[RunLog]:
    out = tmp_path_factory.mktemp("faithful")
    pandas = pytest.importorskip("pandas")
    times = pandas.date_range("2024-01-01", periods=400, freq="h")
    wave = np.sin(np.arange(400) * np.pi / 12)
    pandas.DataFrame({"date": times, "OT": wave}).to_csv(out / "traffic.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EATTN_DATA", str(out))
        made = RunLog(out / "faithful.jsonl", "faithful")
        assert sorted(map(str, faithful.rows(TINY, made))) == sorted(map(str, made.rows))
        yield made


def test_errors_shrink_with_terms_and_grow_with_the_spread(log):
    error = {(r["expansion"], r["spread"]): r["error"] for r in log.rows if r["what"] == "error"}
    assert len(error) == 10
    for spread in TINY.spreads:
        assert error["ea-2", spread] > 1.2 * error["ea-6", spread]
    assert error["ea-6", 1.0] > 5 * error["ea-6", 0.5]
    assert error["ea-q25", 1.0] < 2e-4 < 0.1 < error["ea-6", 1.0]


def test_wide_grids_are_accurate_near_a_key():
    row = faithful.wide_error_row((1, 32, 8), 8.0, Quadrature(129))
    assert row["near_error"] < 2e-4 < row["far_error"]
    assert 0.01 < row["far_share"] < 0.5
    row = faithful.wide_error_row((1, 32, 8), 0.25, Quadrature(129))
    assert row["near_error"] == row["error"] < 2e-4
    assert row["far_share"] == 0
    assert "far_error" not in row


def test_only_keys_up_to_the_query_count_as_near(monkeypatch):
    q, k = torch.zeros(1, 3, 1), torch.tensor([9.0, 1.0, 9.0]).reshape(1, 3, 1)
    monkeypatch.setattr(faithful, "_exact", lambda *_: [q, k, None, None])
    faithful._near.cache_clear()
    assert faithful._near((1, 3, 1), 1.0).flatten().tolist() == [False, True, True]
    faithful._near.cache_clear()


def test_centring_helps_keys_away_from_0(log):
    error = {(r["expansion"], r["centred"]): r["error"] for r in log.rows if r["what"] == "center"}
    assert error["ea-6", True] < error["ea-6", False] / 5


def test_every_expansion_has_its_time_and_state(log):
    times = {row["expansion"]: row for row in log.rows if row["what"] == "time"}
    assert set(times) == {"ea-2", "ea-6", "ea-q9", "ea-q25", "ea-q65"}
    assert all(row[what] > 0 for row in times.values() for what in ("training", "forward"))
    assert times["ea-q25"]["state_bytes"] == 32 * (2 * 25 + 1) * 4


def test_weights_of_exact_ea_answer_the_same_on_a_quadrature(log):
    runs = {row["mixer"]: row for row in log.rows if row["what"] == "run"}
    swapped = runs["ea"]["swapped"]["ea-q25"]
    assert swapped["agreement"] >= 0.999
    assert abs(swapped["accuracy"] - runs["ea"]["accuracy"]) < 0.002
    assert "swapped" not in runs["ea-6"]
    runs = {row["mixer"]: row for row in log.rows if row["what"] == "forecast"}
    swapped = runs["ea"]["swapped"]["ea-q25"]
    assert swapped["mae"] == pytest.approx(runs["ea"]["mae"], rel=1e-3)
    assert swapped["moved"] < 1e-3 * runs["ea"]["mae"]


def test_a_finished_run_measures_nothing(log):
    before = log.path.read_bytes()
    again = list(faithful.rows(TINY, RunLog(log.path, "faithful")))
    assert len(again) == len(log.rows)
    assert log.path.read_bytes() == before


def test_tables_targets_and_chart_show_the_rows(log):
    titles = [table.title for table in faithful.tables(log.rows)]
    assert len(titles) == 6
    assert "Weights of exact EA with other expansions" in titles
    assert len(judge(faithful.TARGETS, log.rows)) == 2  # a spread of 1.5 was not measured
    assert [panel.title[:3] for panel in faithful.draw(log.rows).panels] == ["(a)", "(b)"]
    assert len(list(faithful.losses(log.rows))) == 1


def test_a_new_expansion_keeps_the_times_of_the_others(tmp_path):
    log = RunLog(tmp_path / "faithful.jsonl", "faithful")
    small = replace(TINY, orders=(2,), nodes=(), wide=(), timed=(1, 64, 8), rounds=1)
    more = replace(small, orders=(2, 6))
    for plan in (small, more):
        keys = list(plan.times().values())
        found = log.measure_together(keys, partial(faithful.time_rows, plan))
        assert [row["expansion"] for row in found] == [key["expansion"] for key in keys]
    assert len(log.path.read_text().splitlines()) == 2


def test_the_largest_error_near_a_key_is_judged():
    rows = [
        {"what": "error", "expansion": "ea-q129", "spread": s, "error": 1.0, "near_error": s * 1e-4}
        for s in (0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0)
    ]
    (verdict,) = judge(faithful.TARGETS, rows)
    assert (verdict.value, verdict.words) == (4e-4, "missed")
    assert judge(faithful.TARGETS, rows[1:]) == []


def test_published_rows_belong_to_the_full_plan():
    log = RunLog(None, "faithful")
    log.rows = result("faithful").rows
    full = faithful.plan(quick=False)
    keys = [*(key for key, _ in full.groups()), *full.times().values(), *full.runs()]
    assert all(log.has(key) for key in keys)
    assert sum(len(log.find(key)) for key in keys) == len(log.rows)


@pytest.mark.parametrize(("agreement", "words"), [(1.0, "met"), (0.998, "missed")])
def test_the_least_agreement_of_a_dataset_is_judged(agreement, words):
    def trained(data: str, value: float):
        swapped = {"ea-q25": {"agreement": value, "accuracy": 0.9}}
        return {"what": "run", "data": data, "mixer": "ea", "seed": 0, "swapped": swapped}

    rows = [trained("JapaneseVowels", 1.0), trained("UWaveGestureLibrary", agreement)]
    (verdict,) = judge(faithful.TARGETS, rows)
    assert (verdict.value, verdict.words) == (agreement, words)
