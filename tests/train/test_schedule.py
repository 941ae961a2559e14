"""The plan of a run: its steps, its learning rates, and where it evaluates and stops."""

import math

import pytest

from eattn.train import Schedule, TrainConfig


def plan(cases: int = 10, **fields) -> Schedule:
    return Schedule(cases, TrainConfig(**{"epochs": 5, "batch_size": 4, "lr": 0.5} | fields))


def rates(plan: Schedule) -> list[float]:
    return [plan.lr(step) for step in range(plan.steps)]


def test_a_constant_rate_stays():
    assert rates(plan()) == [0.5] * 15


def test_a_linear_rate_falls_evenly_to_zero_after_the_last_step():
    assert rates(plan(schedule="linear")) == pytest.approx([0.5 * (1 - i / 15) for i in range(15)])


def test_a_cosine_rate_is_half_a_wave():
    expected = [0.25 * (1 + math.cos(math.pi * i / 15)) for i in range(15)]
    assert rates(plan(schedule="cosine")) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [5, 1 / 3])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warmup_grows_evenly_and_the_schedule_has_what_is_left(schedule, warmup):
    found = rates(plan(schedule=schedule, warmup=warmup))
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found[5:] == rates(plan(schedule=schedule, epochs=None, max_steps=10))


def test_a_warmup_must_leave_something():
    with pytest.raises(ValueError, match="warmup must be below the 15 steps, got 15"):
        plan(warmup=15)


def test_whichever_limit_comes_first_ends_the_run():
    both = plan(max_steps=7)
    assert (both.steps, both.stops(6), both.stops(7)) == (7, None, "max_steps")
    assert (plan(max_steps=70).steps, plan(max_steps=70).stops(15)) == (15, "epochs")
    assert plan(epochs=None, max_steps=70).steps == 70


def test_an_epoch_is_every_batch_once():
    assert (plan().per_epoch, plan(drop_last=True).per_epoch) == (3, 2)
    assert [plan().epoch(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("limits", [{}, {"max_steps": 8}, {"epochs": None, "max_steps": 20}])
def test_batches_from_the_middle_are_the_rest_of_those_from_the_start(limits):
    all_of_it = list(plan(**limits).batches(0))
    assert len(all_of_it) == plan(**limits).steps
    for start in range(len(all_of_it) + 1):
        assert list(plan(**limits).batches(start)) == all_of_it[start:]


def test_evaluations_come_after_epochs_or_steps_and_at_the_end():
    def places(**fields):
        p = plan(**fields)
        return [step for step in range(1, p.steps + 1) if p.evaluates(step)]

    assert places() == [3, 6, 9, 12, 15]
    assert places(evaluate_every=4) == [4, 8, 12, 15]
    assert places(max_steps=7) == [3, 6, 7]


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(ValueError, match="cases must not be empty"):
        plan(0)
    with pytest.raises(ValueError, match="batch_size = 4 is more than the 3 cases"):
        plan(3, drop_last=True)
