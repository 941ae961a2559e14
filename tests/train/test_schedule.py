"""Steps of a run, their learning rates, and where it evaluates and stops."""

import math

import pytest

from eattn.train import Schedule, TrainConfig


def make(samples: int = 10, **fields) -> Schedule:
    return Schedule(samples, TrainConfig(**{"epochs": 5, "batch_size": 4, "lr": 0.5} | fields))


def rates(schedule: Schedule) -> list[float]:
    return [schedule.lr(step) for step in range(schedule.steps)]


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("constant", lambda t: 1.0),
        ("linear", lambda t: 1 - t),
        ("cosine", lambda t: 0.5 * (1 + math.cos(math.pi * t))),
    ],
)
def test_the_rate_follows_the_schedule(schedule, factor):
    expected = [0.5 * factor(i / 15) for i in range(15)]
    assert rates(make(schedule=schedule)) == pytest.approx(expected)


@pytest.mark.parametrize("warmup", [5, 1 / 3])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_linear_warmup_precedes_the_schedule(schedule, warmup):
    found = rates(make(schedule=schedule, warmup=warmup))
    assert found[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found[5:] == rates(make(schedule=schedule, epochs=None, max_steps=10))


def test_a_warmup_of_all_steps_raises():
    with pytest.raises(ValueError, match="warmup must be below the 15 steps, got 15"):
        make(warmup=15)


def test_the_first_limit_ends_the_run():
    both = make(max_steps=7)
    assert (both.steps, both.stops(6), both.stops(7)) == (7, None, "max_steps")
    assert (make(max_steps=70).steps, make(max_steps=70).stops(15)) == (15, "epochs")
    assert make(epochs=None, max_steps=70).steps == 70


def test_an_epoch_has_every_batch_once():
    assert (make().per_epoch, make(drop_last=True).per_epoch) == (3, 2)
    assert [make().epoch(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("limits", [{}, {"max_steps": 8}, {"epochs": None, "max_steps": 20}])
def test_batches_can_start_at_any_step(limits):
    all_of_it = list(make(**limits).batches(0))
    assert len(all_of_it) == make(**limits).steps
    for start in range(len(all_of_it) + 1):
        assert list(make(**limits).batches(start)) == all_of_it[start:]


def test_evaluations_follow_epochs_or_steps_and_the_end():
    def steps(**fields):
        p = make(**fields)
        return [step for step in range(1, p.steps + 1) if p.evaluates(step)]

    assert steps() == [3, 6, 9, 12, 15]
    assert steps(evaluate_every=4) == [4, 8, 12, 15]
    assert steps(max_steps=7) == [3, 6, 7]


def test_an_empty_dataset_raises():
    with pytest.raises(ValueError, match="dataset must not be empty"):
        make(0)
    with pytest.raises(ValueError, match="batch_size = 4 is more than the 3 samples"):
        make(3, drop_last=True)
