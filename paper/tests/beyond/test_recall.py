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
from paper.harness.runlog import RunLog
from paper.harness.target import judge

TINY = Plan(
    mixers=("ea-6", "la", "sa"),
    pairs=(2, 4),
    lrs=(1e-2,),
    hidden=16,
    vocab=16,
    batch=8,
    steps=4,
    judged=40,
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
        (dict(length=26), "even and at least 4 pairs = 28, got 26"),
        (dict(length=41), "even and at least 4 pairs = 28, got 41"),
        (dict(vocab=14), "vocab must be at least 16 for 7 pairs, got 14"),
        (dict(pairs=0), "pairs must be at least 1, got 0"),
    ],
    ids=str,
)
def test_impossible_sizes_raise(change, reason):
    options = dict(pairs=PAIRS, length=LENGTH, vocab=VOCAB) | change
    with pytest.raises(ValueError, match=reason):
        recall.recall(1, **options, rng=np.random.default_rng(0))


def test_a_batch_has_one_number_of_pairs():
    draws = Draws({"batch": 8, "steps": 4, "pairs": (2, 4), "vocab": 16, "seed": 0})
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
    (table,) = recall.tables([*found.values(), more])
    assert [cells[0] for cells in table.lines][-2:] == ["ea-6, steps 5", recall.GUESS]


class LookUp(torch.nn.Module):
    """Answers every token with the token that followed its first occurrence."""

    def forward(self, tokens):
        first = (tokens[:, None] == tokens[..., None]).double().argmax(-1)
        answers = tokens.gather(1, (first + 1).clamp(max=tokens.shape[1] - 1))
        return SimpleNamespace(logits=100.0 * torch.nn.functional.one_hot(answers, 64).double())


def test_a_model_that_looks_up_keys_is_perfect():
    settings = {"pairs": (2, 7), "vocab": 64, "judged": 70}
    assert recall.accuracies(LookUp(), settings, recall.TEST) == {"2": 1.0, "7": 1.0}
    assert recall.loss(LookUp(), tuple(map(torch.from_numpy, samples()))) < 1e-6


def test_published_rows_belong_to_the_full_plan():
    log = RunLog(None, "recall")
    log.rows = result("recall").rows
    assert all(log.has(key) for key in recall.plan(quick=False).runs())
    changed = replace(recall.plan(False), steps=3000)
    assert not any(log.has(key) for key in changed.runs())


def run(mixer: str, lr: float, seed: int, validation: float, **accuracy: float):
    found = {name.removeprefix("p"): value for name, value in accuracy.items()}
    key = {"what": "run", "mixer": mixer, "lr": lr, "seed": seed}
    sizes = {"state_bytes": 4096, "parameters": 1000}
    return key | {"validation": validation, "accuracy": found} | sizes


def test_the_learning_rate_is_chosen_on_validation():
    rows = [
        run("sa", 1e-3, 0, 0.8, p4=0.7, p16=0.5),
        run("sa", 1e-3, 1, 0.8, p4=0.9, p16=0.7),
        run("sa", 1e-2, 0, 0.1, p4=1.0, p16=1.0),
        run("sa", 1e-2, 1, 0.9, p4=1.0, p16=1.0),
        run("ea-6", 1e-2, 0, 0.9, p4=0.7, p16=0.5),
    ]
    (table,) = recall.tables(rows)
    assert table.lines[0] == ["sa", "0.800", "0.600", "0.001", "4,096", "1,000"]
    assert table.lines[-1] == [recall.GUESS, "0.250", "0.062", "", "", ""]
    (verdict,) = judge(recall.TARGETS, rows)
    assert verdict.value == pytest.approx(0.8)
    assert verdict.words == "missed"
    assert judge(recall.TARGETS, rows[4:]) == []
    assert list(recall.losses(rows)) == [
        "4 pairs: `sa` 0.800, EA-6 0.700.",
        "16 pairs: `sa` 0.600, EA-6 0.500.",
    ]
    assert list(recall.draw(rows).legend) == ["sa", "ea-6", recall.GUESS]
