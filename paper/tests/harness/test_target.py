"""Verdicts of targets: the harder bound that holds counts."""

import pytest

from paper.harness.target import Target, Verdict, judge


@pytest.mark.parametrize(
    ("bounds", "value", "words"),
    [
        ({"at_most": 2.0, "stretch": 1.2}, 1.0, "stretch met"),
        ({"at_most": 2.0, "stretch": 1.2}, 1.5, "met"),
        ({"at_most": 2.0}, 2.1, "missed"),
        ({"at_least": 2.0, "stretch": 3.0}, 3.5, "stretch met"),
        ({"at_least": 2.0}, 1.0, "missed"),
        ({"at_most": 2.0}, float("nan"), "missed"),
    ],
)
def test_verdict_is_the_best_that_holds(bounds, value, words):
    verdict = Verdict(Target("a / b", lambda rows: value, **bounds), value)
    assert verdict.words == words
    assert verdict.met == (words != "missed")


def test_verdict_states_number_and_bounds():
    target = Target("a / b", lambda rows: 1.23456, at_most=2, stretch=1.2, unit="×")
    (verdict,) = judge([target], [])
    assert (verdict.text, verdict.bound) == ("1.23×", "≤ 2 (stretch ≤ 1.2)")


def test_quick_runs_judge_only_their_own_targets():
    every = [Target(name, lambda rows: 1.0, at_most=1, quick=name == "b") for name in "ab"]
    assert [verdict.target.name for verdict in judge(every, [])] == ["a", "b"]
    assert [verdict.target.name for verdict in judge(every, [], quick=True)] == ["b"]


def test_a_target_without_rows_is_not_judged():
    assert judge([Target("a", lambda rows: rows[0]["x"], at_most=1)], []) == []


@pytest.mark.parametrize("bounds", [{}, {"at_most": 1.0, "at_least": 1.0}])
def test_a_target_has_exactly_one_bound(bounds):
    with pytest.raises(ValueError, match="either at_least or at_most"):
        Target("a", lambda rows: 1.0, **bounds)
