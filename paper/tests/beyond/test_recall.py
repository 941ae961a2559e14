"""Associative recall: samples, training runs, and the choice of the learning rate."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from paper.beyond import recall
from paper.beyond.recall import NO_LABEL, Draws, Plan
from paper.harness.experiment import result
from paper.harness.runlog import RunLog, matches
from paper.harness.target import judge

TINY = Plan(
    mixers=("ea-6", "la", "sa"),
    pairs=(2, 4),
    lrs=(1e-2,),
    longer=(),
    harder=(),
    updated=(),
    seeds=1,
    hidden=16,
    vocab=16,
    batch=8,
    steps=4,
    samples=40,
    jobs=1,
)
SAMPLES, PAIRS, LENGTH, VOCAB = 50, 7, 40, 64


def samples(seed: int = 0):
    rng = np.random.default_rng(seed)
    made = recall.recall(SAMPLES, pairs=PAIRS, length=LENGTH, vocab=VOCAB, rng=rng)
    return [part.numpy() for part in made]


def test_every_key_is_queried_once_and_labelled_with_its_value():
    tokens, labels = samples()
    assert tokens.shape == labels.shape == (SAMPLES, LENGTH)
    for row, label in zip(tokens, labels, strict=True):
        pairs = dict(zip(row[0 : 2 * PAIRS : 2], row[1 : 2 * PAIRS : 2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == PAIRS
        assert all(1 <= key < VOCAB // 2 <= value < VOCAB for key, value in pairs.items())
        (asked,) = np.nonzero(label != NO_LABEL)
        assert asked.min() >= 2 * PAIRS
        assert (asked % 2 == 0).all()  # a query has room for its answer
        assert sorted(row[asked]) == sorted(pairs)
        assert [pairs[key] for key in row[asked]] == label[asked].tolist()


def test_the_last_value_of_a_changing_key_counts():
    rng = np.random.default_rng(0)
    made = recall.recall(SAMPLES, pairs=PAIRS, vocab=VOCAB, rng=rng, updates=True)
    tokens, labels = (part.numpy() for part in made)
    writes = 2 * PAIRS + PAIRS // 2
    assert tokens.shape == (SAMPLES, 2 * (writes + PAIRS))
    for row, label in zip(tokens, labels, strict=True):
        keys, values = row[0 : 2 * writes : 2].tolist(), row[1 : 2 * writes : 2].tolist()
        assert sorted(map(keys.count, set(keys))) == [2] * 4 + [3] * 3
        assert len(set(values)) == writes
        last = dict(zip(keys, values, strict=True))
        assert [last[key] for key in row[2 * writes :: 2]] == label[2 * writes :: 2].tolist()


def test_the_seed_decides_the_samples():
    (tokens, _), (again, _), (other, _) = samples(), samples(), samples(1)
    assert (tokens == again).all()
    assert (tokens != other).mean() > 0.8
    assert len(np.unique(tokens[:, 0])) > 10


def test_queries_come_early_rather_than_late():
    rng = np.random.default_rng(0)
    _, labels = recall.recall(500, pairs=2, length=64, vocab=64, rng=rng)
    positions = np.nonzero(labels.numpy() != NO_LABEL)[1]
    assert np.median(positions) < 24
    assert positions.max() > 50


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(length=26), "even and at least 28 for 7 pairs, got 26"),
        (dict(length=41), "even and at least 28 for 7 pairs, got 41"),
        (dict(vocab=14), "vocab must be at least 16 for 7 pairs, got 14"),
        (dict(updates=True), "even and at least 48 for 7 pairs, got 40"),
        (dict(pairs=0), "pairs must be at least 1, got 0"),
    ],
    ids=str,
)
def test_impossible_sizes_raise(change, reason):
    options = dict(pairs=PAIRS, length=LENGTH, vocab=VOCAB) | change
    with pytest.raises(ValueError, match=reason):
        recall.recall(1, **options, rng=np.random.default_rng(0))


def test_a_batch_has_one_number_of_pairs():
    draws = Draws(
        {"batch": 8, "steps": 4, "pairs": (2, 4), "vocab": 16, "seed": 0, "updates": False}
    )
    assert len(draws) == 32
    assert {draws.collate([first, 1, 2])[0].shape for first in range(8)} == {(3, 8), (3, 16)}
    first, again, other = (draws.collate([n, 1])[0] for n in (4, 4, 6))
    assert (first == again).all()
    assert (first != other).any()


def test_rows_have_accuracies_and_a_new_setting_keeps_them(tmp_path):
    log = RunLog(tmp_path / "recall.jsonl", "recall")
    found = {row["mixer"]: row for row in recall.rows(TINY, log)}
    assert list(found) == list(TINY.mixers)
    assert all(set(row["accuracy"]) == {"2", "4"} for row in found.values())
    assert all(0 <= value <= 1 for row in found.values() for value in row["accuracy"].values())
    # N (s and z) and a shift for each channel, and three inputs of the convolution
    assert found["ea-6"]["state_bytes"] == 2 * 16 * (2 * 7 + 1 + 3) * 4
    assert found["la"]["state_bytes"] == 2 * 16 * (16 + 1 + 3) * 4
    assert found["sa"]["state_bytes"] == 2 * 16 * (2 * 16 + 3) * 4
    assert len({row["parameters"] for row in found.values()}) == 1
    before = log.path.read_bytes()
    longer = replace(TINY, mixers=("ea-6",), steps=5)
    assert list(recall.rows(TINY, RunLog(log.path, "recall"))) == list(found.values())
    assert log.path.read_bytes() == before
    (more,) = recall.rows(longer, RunLog(log.path, "recall"))
    assert more["steps"] == 5
    assert log.path.read_bytes().startswith(before)
    first, second = recall.tables([*found.values(), more])
    assert [cells[0] for cells in first.lines] == [*TINY.mixers, recall.GUESS]
    assert [cells[0] for cells in second.lines] == ["ea-6", recall.GUESS]
    assert "2 to 4 pairs, 5 steps" in second.title


def test_runs_with_changing_keys_have_their_own_sweep_and_table(tmp_path, monkeypatch):
    monkeypatch.setattr(recall, "UPDATES", {"pairs": (2, 3), "updates": True})
    plan = replace(TINY, mixers=("la",), updated=("la", "ea-6+decay"))
    log = RunLog(tmp_path / "recall.jsonl", "recall")
    main, *changing = recall.rows(plan, log)
    assert "updates" not in main
    assert [(row["mixer"], row["seed"]) for row in changing] == [
        *[("la", 0), ("la", 0), ("la", 1)],
        *[("ea-6+decay", 0), ("ea-6+decay", 0), ("ea-6+decay", 1)],
    ]
    assert all(row["updates"] and row["pairs"] == [2, 3] for row in changing)
    _, table = recall.tables(log.rows)
    assert "2 to 3 keys that change their value, 4 steps" in table.title
    assert table.lines[-1][:3] == [recall.GUESS_OF_KEY, "0.417", "0.444"]
    assert "the best of 0.003, 0.01 on validation with seed 0. 2 seeds" in table.notes[0]


class LookUp(torch.nn.Module):
    """Answers every token with the token that followed its first occurrence."""

    def forward(self, tokens):
        first = (tokens[:, None] == tokens[..., None]).double().argmax(-1)
        answers = tokens.gather(1, (first + 1).clamp(max=tokens.shape[1] - 1))
        return SimpleNamespace(logits=100.0 * torch.nn.functional.one_hot(answers, 64).double())


def test_a_model_that_looks_up_keys_is_perfect():
    settings = {"pairs": (2, 7), "vocab": 64, "samples": 70, "updates": False}
    assert recall.accuracies(LookUp(), settings, recall.TEST) == {"2": 1.0, "7": 1.0}
    assert recall.loss(LookUp(), tuple(map(torch.from_numpy, samples()))) < 1e-6


def test_published_rows_belong_to_the_full_plan():
    rows = result("recall").rows
    keys = list(recall.plan(quick=False).runs(rows))
    assert all(any(matches(row, key) for key in keys) for row in rows)
    changed = replace(recall.plan(False), steps=3000).runs(rows)
    assert not any(matches(row, key) for key in changed for row in rows)


def run(mixer: str, lr: float, seed: int, validation: float, *accuracy: float, **changes: object):
    key = {"what": "run", "mixer": mixer, "lr": lr, "seed": seed} | changes
    found = dict(zip(("4", "32", "64"), accuracy, strict=False))
    sizes = {"state_bytes": 4096, "parameters": 1000}
    return key | {"validation": validation, "accuracy": found} | sizes


def new_runs(plan: Plan, rows: list) -> list[tuple]:
    """Return mixer, learning rate, seed, steps and pairs of the runs that have no row."""
    fields = ("mixer", "lr", "seed", "steps", "pairs")
    keys = [key for key in plan.runs(rows) if not any(matches(row, key) for row in rows)]
    return [tuple(key[field] for field in fields) for key in keys]


def test_more_seeds_and_stages_follow_at_the_best_learning_rate():
    plan = Plan(("la",), lrs=(1e-3, 3e-3, 1e-2), harder=(), updated=())
    rows = [run("la", lr, 0, found) for lr, found in ((1e-3, 0.5), (3e-3, 0.9))]
    assert new_runs(plan, rows) == [("la", 1e-2, 0, None, None)]
    rows.append(run("la", 1e-2, 0, 0.7))
    later = [("la", 3e-3, seed, None, None) for seed in (1, 2)]
    assert new_runs(plan, rows) == [*later, ("la", 3e-3, 0, 6000, None)]
    harder = replace(plan, longer=(), harder=("la",))
    pairs = recall.HARDER["pairs"]
    assert new_runs(harder, rows) == [*later, ("la", 3e-3, 0, None, pairs)]
    rows += [run("la", 3e-3, seed, 0.1) for seed in (1, 2)]  # seed 0 alone selects the rate
    assert new_runs(plan, rows) == [("la", 3e-3, 0, 6000, None)]


@pytest.mark.parametrize(
    ("found", "more"), [((0.1, 0.2), 1e-2), ((0.2, 0.1), 3e-4), ((1.0, 0.9), None)]
)
def test_a_best_learning_rate_at_the_edge_extends_the_sweep(found, more):
    plan = Plan(("sa",), lrs=(1e-3, 3e-3), longer=(), harder=(), updated=(), seeds=1)
    rows = [run("sa", lr, 0, value) for lr, value in zip(plan.lrs, found, strict=True)]
    expected = [] if more is None else [("sa", more, 0, None, None)]
    assert new_runs(plan, rows) == expected
    if more is not None:
        assert new_runs(plan, [*rows, run("sa", more, 0, 0.0)]) == []


def test_exact_ea_runs_only_twice():
    plan = Plan(("ea",), updated=())
    assert [key[1] for key in new_runs(plan, [])] == [1e-3, 3e-3]
    assert new_runs(plan, [run("ea", lr, 0, lr) for lr in (1e-3, 3e-3)]) == []


def test_rows_runs_every_stage(monkeypatch):
    def fake(log, keys, measure, jobs):
        for key in keys:
            log.add(key, run("la", key["lr"], key["seed"], 1 - key["lr"], 0.5, 0.5))
            yield from log.find(key)

    monkeypatch.setattr(recall, "run_all", fake)
    log = RunLog(None, "recall")
    found = list(recall.rows(Plan(("la",), updated=()), log))
    assert found == log.rows
    # four rates, then 3e-4 and 1e-4 beyond the edge, two seeds, longer, harder
    assert sorted(row["lr"] for row in found) == [1e-4] * 5 + [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]


def test_the_learning_rate_is_chosen_on_validation():
    rows = [
        run("sa", 1e-3, 0, 0.8, 0.7, 0.5),
        run("sa", 1e-3, 1, 0.1, 0.9, 0.7),
        run("sa", 1e-2, 0, 0.1, 1.0, 1.0),
        run("ea-6", 1e-2, 0, 0.9, 0.7, 0.5),
        run("sa", 1e-3, 0, 1.0, 1.0, 1.0, steps=6000),
    ]
    first, longer = recall.tables(rows)
    assert first.lines[0] == ["ea-6", "0.700", "0.500", "0.01", "4,096", "1,000"]
    assert first.lines[1][:4] == ["sa", "0.800 ± 0.141", "0.600 ± 0.141", "0.001"]
    assert first.lines[-1] == [recall.GUESS, "0.250", "0.031", "", "", ""]
    assert "the best of 0.001, 0.01 on validation with seed 0" in first.notes[1]
    assert longer.lines[0] == ["sa", "1.000", "1.000", "0.001", "4,096", "1,000"]
    (verdict,) = judge(recall.TARGETS, rows)
    assert verdict.value == pytest.approx(0.8)
    assert verdict.words == "missed"
    assert judge(recall.TARGETS, rows[3:4]) == judge(recall.TARGETS, []) == []
    assert list(recall.losses(rows)) == [
        "4 pairs, trained on 4 to 32 pairs, 1,500 steps: `sa` 0.800; `ea-6` 0.700.",
        "32 pairs, trained on 4 to 32 pairs, 1,500 steps: `sa` 0.600; `ea-6` 0.500.",
    ]
    chart = recall.draw(rows)
    assert list(chart.legend) == ["ea-6", "sa", recall.GUESS]
    assert [panel.title for panel in chart.panels][1] == "(b) 32 pairs, by size of the state"


def test_targets_need_three_seeds():
    def three(mixer: str, value: float):
        return [run(mixer, 1e-2, seed, 0.9, 1.0, value) for seed in range(3)]

    rows = [*three("la", 0.5), *three("ea-q25r12", 0.92), *three("ea-q65r16", 0.96)]
    found = {verdict.target.name: verdict.words for verdict in judge(recall.TARGETS, rows)}
    assert found == {
        "ea-q25r12, 32 pairs: accuracy": "met",
        "ea-q25r12: state": "met",
        "ea-q65r16, 32 pairs: accuracy": "missed",
        "ea-q25r12, 32 pairs: accuracy minus LA": "met",
        "ea-q65r16, 32 pairs: accuracy minus LA": "met",
    }
    assert len(judge(recall.TARGETS, rows[1:])) == 3  # LA has two seeds
