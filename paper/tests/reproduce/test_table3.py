"""Table 3: two protocols, one configuration per set, and rows that a kill does not lose."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from eattn.data import Cases
from paper.bench.target import judge
from paper.report import table3 as report
from paper.reproduce import table3
from paper.reproduce.table3 import PROMISES, Plan, stratified, tensors

TINY = Plan(mixers=("ea-6",), sets=("JapaneseVowels",), seeds=1, epochs=1 / 30)


def made_up(lengths: list[int], labels: str) -> Cases:
    rng = np.random.default_rng(0)
    X = [rng.normal(5, 3, (2, length)) for length in lengths]
    return Cases(X, np.array(list(labels)), "made up", tuple(sorted(set(labels))))


def test_both_parts_are_standardised_by_the_first_and_padded_to_the_longest():
    first, second = made_up([4, 7], "ab"), made_up([9], "b")
    (x, mask, y), (x2, mask2, y2) = tensors(first, second)
    assert x.shape == (2, 9, 2)
    assert mask.sum(1).tolist() == [4, 7]
    assert x[mask].mean(0).abs().max() < 1e-6
    assert (x[mask].std(0, correction=0) - 1).abs().max() < 1e-6
    assert x2.shape == (1, 9, 2)
    assert x2.mean().abs() > 1e-3
    assert (x[~mask] == 0).all()
    assert mask2.all()
    assert (y.tolist(), y2.tolist()) == ([0, 1], [1])


def test_the_clean_cut_has_its_share_of_every_class_and_no_case_twice():
    y = torch.tensor([0] * 10 + [1] * 30 + [2])
    number = torch.arange(41)
    first, second = stratified([number, y], 0.2, seed=0)
    assert second[1].bincount().tolist() == [2, 6, 1]
    assert sorted([*first[0].tolist(), *second[0].tolist()]) == number.tolist()
    assert stratified([number, y], 0.2, seed=1)[1][0].tolist() != second[0].tolist()


def test_a_run_is_written_and_a_cut_off_one_continues(tmp_path):
    console = Console(quiet=True)
    (path,) = table3.run(TINY, console, tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    runs = [row for row in rows if row["what"] == "run"]
    assert {row["protocol"] for row in runs} == {"tslib", "clean"}
    assert all(0.1 < row["accuracy"] <= 1 for row in runs)
    assert all(row["parameters"] > 300_000 and row["seconds"] > 0 for row in runs)
    # As after a kill: the last lines are missing, and one run with them.
    kept, lost = runs
    path.write_text(json.dumps(kept) + "\n")
    table3.run(TINY, console, tmp_path)
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert again[0] == kept
    assert again[1]["accuracy"] == lost["accuracy"]  # a seed decides everything
    assert again[-1]["what"] == "finished"


def rows_of(**accuracy: tuple[float, ...]) -> list[dict[str, object]]:
    """Runs of every set under tslib, with these accuracies by mixer."""
    common = {"what": "run", "protocol": "tslib", "parameters": 4e5, "seconds": 3.0}
    common |= {"hardware": "here", "torch": "2", "date": "2026-01-01", "commit": None}
    return [
        common | {"data": data, "mixer": mixer.replace("_", "-"), "seed": seed, "accuracy": value}
        for data in report.SHORT
        for mixer, values in accuracy.items()
        for seed, value in enumerate(values)
    ]


def test_means_stand_beside_the_paper():
    rows = rows_of(ea_6=(0.9, 0.92), sa=(0.8, 0.8))
    assert report.means(rows)["JapaneseVowels", "tslib", "ea-6"] == pytest.approx(
        (0.91, 0.01414, 2), rel=1e-3
    )
    text = report.markdown(rows)
    assert "| ea-6 | 0.910 ± 0.014 |" in text
    assert "| paper's ea-6 | 0.973 | 0.904 | 0.533 | 0.847 |" in text
    assert "2 seeds" in text


@pytest.mark.parametrize(("sa", "verdict"), [(0.985, "must"), (0.995, "miss")])
def test_ea_6_is_held_to_the_paper_and_to_softmax_attention(sa, verdict):
    judged = {row["name"]: row for row in judge(rows_of(ea_6=(0.98,), sa=(sa,)), PROMISES)}
    assert len(judged) == 8
    assert judged["JAP: EA-6 less SA"]["verdict"] == verdict
    assert judged["JAP: EA-6 less the paper's"]["value"] == pytest.approx(0.007)


def test_what_was_not_run_is_not_judged():
    assert not list(judge([{"what": "correctness"}], PROMISES))


def test_an_unknown_mixer_is_named():
    with pytest.raises(ValueError, match="unknown mixer 'xx'"):
        replace(TINY, mixers=("xx",))
