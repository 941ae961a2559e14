"""Table 3: two protocols, one configuration per dataset, and runs that are resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eattn.data import Cases
from paper.harness.experiment import result
from paper.harness.runlog import RunLog
from paper.harness.target import judge
from paper.tables import table3
from paper.tables.table3 import Plan, stratified, tensors

TINY = Plan(mixers=("ea-6",), sets=("JapaneseVowels",), seeds=1, epochs=1 / 30)


def made_up(lengths: list[int], labels: str) -> Cases:
    rng = np.random.default_rng(0)
    X = [rng.normal(5, 3, (2, length)) for length in lengths]
    return Cases(X, np.array(list(labels)), "made up", tuple(sorted(set(labels))))


def test_both_parts_are_standardised_by_train_and_padded():
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


def test_the_validation_part_has_its_share_of_every_class():
    y = torch.tensor([0] * 10 + [1] * 30 + [2])
    number = torch.arange(41)
    first, second = stratified([number, y], 0.2, seed=0)
    assert second[1].bincount().tolist() == [2, 6, 1]
    assert sorted([*first[0].tolist(), *second[0].tolist()]) == number.tolist()
    assert stratified([number, y], 0.2, seed=1)[1][0].tolist() != second[0].tolist()


def test_runs_are_repeatable_and_resumed(tmp_path):
    path = tmp_path / "rows.jsonl"
    first = list(table3.rows(TINY, RunLog(path, "table3")))
    assert {row["protocol"] for row in first} == {"tslib", "clean"}
    assert all(0.1 < row["accuracy"] <= 1 and row["epochs"] == 1 for row in first)
    assert all(row["parameters"] > 300_000 and row["seconds"] > 0 for row in first)
    kept, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(kept)
    again = list(table3.rows(TINY, RunLog(path, "table3")))
    assert again[0] == first[0]
    assert again[1]["accuracy"] == first[1]["accuracy"]  # the seed decides everything


def test_published_rows_belong_to_the_full_plan():
    log = RunLog(None, "table3")
    log.rows = result("table3").rows
    assert all(log.has(key) for key in table3.plan(quick=False).runs())
    assert not any(log.has(key) for key in replace(table3.plan(False), mixers=("la",)).runs())


def rows_of(**accuracy: tuple[float, ...]) -> list[dict[str, object]]:
    """Runs of every set under tslib, with these accuracies by mixer."""
    common = {"what": "run", "protocol": "tslib", "parameters": 4e5, "seconds": 3.0}
    return [
        common | {"data": data, "mixer": mixer.replace("_", "-"), "seed": seed, "accuracy": value}
        for data in table3.SHORT
        for mixer, values in accuracy.items()
        for seed, value in enumerate(values)
    ]


def test_means_stand_next_to_the_papers_numbers():
    rows = rows_of(ea_6=(0.9, 0.92), sa=(0.8, 0.8))
    assert table3.accuracies(rows)["JapaneseVowels", "tslib", "ea-6"] == pytest.approx(
        (0.91, 0.01414, 2), rel=1e-3
    )
    (table,) = table3.tables(rows)
    assert table.lines[0][:2] == ["ea-6", "0.910 ± 0.014"]
    assert ["paper's ea-6", "0.973", "0.904", "0.533", "0.847", "", ""] in table.lines
    assert table.notes == ["Mean ± standard deviation over 2 seeds."]
    assert "ea-6, paper" in table3.draw(rows).legend


@pytest.mark.parametrize(("sa", "words"), [(0.985, "met"), (0.995, "missed")])
def test_ea_6_is_compared_with_the_paper_and_softmax(sa, words):
    rows = rows_of(ea_6=(0.98,), sa=(sa,))
    judged = {verdict.target.name: verdict for verdict in judge(table3.TARGETS, rows)}
    assert len(judged) == 8
    assert judged["JAP: EA-6 minus SA"].words == words
    assert judged["JAP: EA-6 minus the paper's EA-6"].value == pytest.approx(0.007)
    assert f"JAP, epoch picked on TEST, as in the paper: EA-6 0.980, SA {sa:.3f}." in [
        *table3.losses(rows)
    ]


def test_runs_of_another_protocol_are_not_judged():
    rows = [row | {"protocol": "clean"} for row in rows_of(ea_6=(0.98,), sa=(0.9,))]
    assert judge(table3.TARGETS, rows) == []
