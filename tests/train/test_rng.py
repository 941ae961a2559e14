"""Random numbers: a seed decides a run, and a run changes nothing for its caller."""

import random

import numpy as np
import pytest
import torch
from train.problem_helpers import net, plain, same, scored, timeless, weights

from eattn.train import Task, TensorDataset, TrainConfig, isolated, seed_everything, train
from eattn.train.rng import rng_state, set_rng_state


def draw() -> tuple[float, ...]:
    """A few numbers of each generator; the normal ones come in pairs, of which one is kept."""
    normal = random.gauss(0, 1), np.random.standard_normal(), torch.randn(1).item()
    return (*normal, random.random(), np.random.rand(), torch.rand(1).item())


def test_two_runs_with_one_seed_are_equal_bit_for_bit():
    config = TrainConfig(epochs=3, batch_size=8, seed=7)
    first, again = net(), net()
    a = train(first, scored(), config)
    draw()  # whatever the caller does between
    b = train(again, scored(), config)
    assert timeless(a) == timeless(b)
    assert same(weights(first), weights(again))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_another_seed_is_another_run(dropout):
    """The order of the cases alone differs without dropout."""
    first, other = net(dropout=dropout), net(dropout=dropout)
    train(first, plain(), TrainConfig(epochs=2, batch_size=8, seed=0))
    train(other, plain(), TrainConfig(epochs=2, batch_size=8, seed=1))
    assert not same(weights(first), weights(other))


def test_dropout_follows_the_seed():
    """One batch has one order: only the masks are left to differ."""
    runs = []
    for seed in (0, 0, 1):
        model = net(dropout=0.5)
        train(model, plain(), TrainConfig(epochs=1, batch_size=1000, seed=seed))
        runs.append(weights(model))
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_the_callers_random_numbers_are_untouched():
    seed_everything(5)
    expected = draw()
    seed_everything(5)
    train(net(), scored(), TrainConfig(epochs=1))
    assert draw() == expected


def test_nor_does_a_failed_run_touch_them():
    def fail(model, batch):
        draw()
        raise RuntimeError("no")

    seed_everything(5)
    expected = draw()
    seed_everything(5)
    with pytest.raises(RuntimeError, match="no"):
        train(net(), Task(TensorDataset(torch.zeros(1)), fail))
    assert draw() == expected


def test_one_seed_seeds_all_generators():
    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    assert not set(draw()) & set(first)


def test_a_saved_state_goes_on_with_the_same_numbers():
    seed_everything(3)
    draw()
    random.gauss(0, 1), np.random.standard_normal()  # each keeps the other half of a pair
    with isolated():
        state = rng_state()
        first = draw()
        set_rng_state(state)
        assert draw() == first
