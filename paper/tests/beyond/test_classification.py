"""Classification: splits, a plan that is resumed, ranks, tables and targets."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

from eattn.data.locate import VARIABLE
from paper.beyond import classification
from paper.beyond.classification import MINI, MULTI, OURS, UCR, UEA, UNEQUAL, Plan
from paper.harness.runlog import RunLog
from paper.harness.scores import Mean
from paper.harness.target import judge

TINY = Plan(
    sets=("Coffee",),
    models=(OURS, "QUANT"),
    mixers=("ea-6", "none"),
    ablated=("Coffee",),
    early=("Coffee",),
    early_models=("EarlyClassifier",),
    seeds=1,
    epochs=1,
    jobs=1,
)


def write(folder, split, count, seed):
    rng = np.random.default_rng(seed)
    lines = ["@problemName Coffee", "@classLabel true a b", "@data"]
    for i in range(count):
        values = rng.normal(size=12) + 3 * (i % 2)
        lines.append(",".join(f"{x:.3f}" for x in values) + ":" + "ab"[i % 2])
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"Coffee_{split}.ts.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Write a small set in place of Coffee."""
    folder = tmp_path / "data" / "classification" / "UCR" / "Coffee"
    for seed, split in enumerate(("TRAIN", "TEST")):
        write(folder, split, 12, seed)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    return folder


def test_dev_split_never_reads_the_test_split(data):
    (data / "Coffee_TEST.ts.gz").unlink()
    (X, y), (held, labels) = classification.load("Coffee", "dev")
    assert (len(X), len(held)) == (8, 4)
    assert sorted(labels) == ["a", "a", "b", "b"]
    assert {x.tobytes() for x in X}.isdisjoint({x.tobytes() for x in held})
    assert len(y) == 8


@pytest.mark.usefixtures("data")
def test_plan_is_measured_once_and_resumed(tmp_path):
    log = RunLog(tmp_path / "classification.jsonl", "classification")
    found = list(classification.rows(TINY, log))
    assert [row["what"] for row in found] == ["accuracy"] * 2 + ["mixer"] * 2 + ["early"]
    assert all(0 <= row["accuracy"] <= 1 for row in found)
    before = log.path.read_bytes()
    again = RunLog(log.path, "classification")
    assert list(classification.rows(TINY, again)) == found
    assert log.path.read_bytes() == before
    titles = [table.title for table in classification.tables(found)]
    assert titles[0] == "Accuracy over 1 sets of equal length (epochs 1)"
    assert titles[-1] == "Early classification (epochs 1)"
    assert classification.draw(found) is None
    assert not judge(classification.TARGETS, found, quick=False)  # no row has default settings


def test_unknown_split_raises(tmp_path):
    log = RunLog(tmp_path / "classification.jsonl", "classification")
    with pytest.raises(ValueError, match="split must be test or dev, got 'train'"):
        list(classification.rows(replace(TINY, split="train"), log))


def test_equal_scores_share_a_rank():
    scores = {"a": (0.9, 0.5), "b": (0.9, 0.6), "c": (0.8, 0.7)}
    found = {
        name: {data: Mean(x, 0.0, 1) for data, x in zip("xy", of, strict=True)}
        for name, of in scores.items()
    }
    assert classification.ranks(found, "xy") == {"a": 2.25, "b": 1.75, "c": 2.0}


def test_models_that_do_not_differ_form_cliques():
    better = np.linspace(0.01, 0.02, 20)
    same = np.resize([0.01, -0.01], 20) + np.linspace(0, 0.001, 20)
    scores = np.stack([0.9 + better, 0.9 - same, np.full(20, 0.9), 0.9 - better], 1)
    assert classification.cliques(scores) == [(1, 2)]
    assert classification.cliques(scores[:, 1:3]) == [(0, 1)]
    assert classification.cliques(scores[:, [0, 3]]) == []


def made(accuracy):
    fixed = {"what": "accuracy", "seed": 0, "fit_seconds": 1.0, "predict_seconds": 1.0}
    return [
        fixed | {"model": model, "data": data, "accuracy": x}
        for model, x in accuracy.items()
        for data in UCR + UEA
    ]


def test_targets_compare_means_over_47_sets():
    assert len(set(UCR + UEA) - set(UNEQUAL)) == 47
    rows = made({OURS: 0.90, MINI: 0.91, MULTI: 0.92})
    rows += [
        {"what": "mixer", "mixer": mixer, "data": "CBF", "seed": 0, "accuracy": x}
        for mixer, x in (("ea-6", 0.9), ("none", 0.8))
    ]
    verdicts = judge(classification.TARGETS, rows, quick=False)
    assert [round(v.value, 6) for v in verdicts] == [0.02, 0.01, *[0.9] * 5, 0.1]
    assert len(verdicts) == len(classification.TARGETS)
    assert len(list(classification.losses(rows))) == 1  # of MultiRocketHydra
    assert classification.draw(rows) is not None


def test_all_sets_of_the_parts_are_known():
    plan = Plan()
    assert len(plan.sets) == 50
    assert len(plan.ablated) == 20
    assert len(plan.early) == 8
    assert {*plan.ablated, *plan.early} <= set(plan.sets)
