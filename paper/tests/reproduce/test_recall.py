"""Associative recall: learnt for real where it is easy, and told as it is."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')
pytest.importorskip("matplotlib")

from paper.bench.target import judge
from paper.report import recall as report
from paper.reproduce import recall
from paper.reproduce.recall import PROMISES, Draws, Plan

TINY = Plan(
    mixers=("ea-6", "la", "sa"),
    pairs=(2, 4),
    lrs=(1e-3, 1e-2),
    hidden=16,
    vocab=16,
    batch=8,
    steps=4,
    judged=40,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("recall")
    files = recall.run(TINY, Console(quiet=True), out, jobs=1)
    return [json.loads(line) for line in files[0].read_text().splitlines()], files


def test_every_mixer_and_rate_has_a_row_with_an_accuracy_for_each_number_of_pairs(measured):
    rows, _ = measured
    runs = [row for row in rows if row["what"] == "run"]
    assert {(row["mixer"], row["lr"]) for row in runs} == {
        (mixer, lr) for mixer in TINY.mixers for lr in TINY.lrs
    }
    assert all(set(row["accuracy"]) == {"2", "4"} for row in runs)
    assert all(0 <= value <= 1 for row in runs for value in row["accuracy"].values())
    held = {row["mixer"]: row["state_bytes"] for row in runs}
    # N (s and z) and a shift for each channel, and three inputs of the convolution
    assert held["ea-6"] == 2 * 16 * (2 * 7 + 1 + 3) * 4
    assert held["la"] == 2 * 16 * (16 + 1 + 3) * 4  # one head: as much as it can hold
    assert held["sa"] == 2 * 16 * (2 * 16 + 3) * 4
    assert len({row["parameters"] for row in runs}) == 1


def test_the_task_can_be_learnt():
    plan = replace(TINY, pairs=(2,), hidden=32, batch=32, steps=300)
    key = {"what": "run", "mixer": "sa", "lr": 1e-2, "seed": 0}
    row = recall.measure_run(key, plan=plan)
    assert row["accuracy"]["2"] > 0.9  # by chance it is one in eight


def test_a_batch_has_one_number_of_pairs_and_all_come():
    draws = Draws(TINY, seed=0)
    assert len(draws) == 32
    shapes = {draws.collate([first, 1, 2])[0].shape for first in range(8)}
    assert shapes == {(3, 8), (3, 16)}
    first, again, other = (draws.collate([n, 1])[0] for n in (4, 4, 6))
    assert (first == again).all()
    assert (first != other).any()


def test_the_table_and_the_picture_are_there(measured):
    rows, files = measured
    assert [path.suffix for path in files] == [".jsonl", ".png", ".svg"]
    assert all(path.stat().st_size > 2_000 for path in files)
    text = report.markdown(rows)
    assert text.startswith("| mixer | 2 pairs | 4 pairs | lr |")
    assert "| any value of the case | 0.500 | 0.250 |" in text
    assert [row["name"] for row in rows if row["what"] == "ratio"] == ["SA, fewest pairs: accuracy"]


def run(mixer: str, lr: float, seed: int, validation: float, **accuracy: float):
    found = {name.removeprefix("p"): value for name, value in accuracy.items()}
    key = {"what": "run", "mixer": mixer, "lr": lr, "seed": seed}
    return key | {"validation": validation, "accuracy": found}


def test_the_rate_is_chosen_on_validation_and_not_on_test():
    rows = [
        run("sa", 1e-3, 0, 0.8, p4=0.7, p16=0.5),
        run("sa", 1e-3, 1, 0.8, p4=0.9, p16=0.7),
        run("sa", 1e-2, 0, 0.1, p4=1.0, p16=1.0),
        run("sa", 1e-2, 1, 0.9, p4=1.0, p16=1.0),
    ]
    (chosen,) = report.chosen(rows).values()
    assert {row["lr"] for row in chosen} == {1e-3}
    assert report.accuracies(chosen) == pytest.approx({4: 0.8, 16: 0.6})
    (judged,) = judge(rows, PROMISES)
    assert judged["value"] == pytest.approx(0.8)
    assert judged["verdict"] == "miss"
    assert not list(judge([run("ea-6", 1e-3, 0, 1.0, p4=1.0)], PROMISES))


def test_an_unknown_mixer_is_named():
    with pytest.raises(ValueError, match="unknown mixer 'xx'"):
        replace(TINY, mixers=("xx",))
