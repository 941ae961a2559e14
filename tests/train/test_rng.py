"""A seed determines a run, and a run leaves the caller's random numbers untouched."""

import random

import numpy as np
import pytest
import torch
from train.problem_helpers import (
    Interrupted,
    interrupted,
    net,
    plain,
    same,
    scored,
    timeless,
    weights,
)

from eattn.train import TrainConfig, isolated, seed_everything, train
from eattn.train.rng import rng_state, set_rng_state


def draw() -> tuple[float, ...]:
    """Draw from each generator; normal numbers come in pairs, of which one is kept."""
    normal = random.gauss(0, 1), np.random.standard_normal(), torch.randn(1).item()
    return (*normal, random.random(), np.random.rand(), torch.rand(1).item())


def test_runs_with_one_seed_are_equal_bit_for_bit():
    config = TrainConfig(epochs=3, batch_size=8, seed=7)
    first, again = net(), net()
    a = train(first, scored(), config)
    draw()  # the caller may use random numbers in between
    b = train(again, scored(), config)
    assert timeless(a) == timeless(b)
    assert same(weights(first), weights(again))


@pytest.mark.parametrize(("dropout", "batch"), [(0.0, 8), (0.5, 1000)])
def test_order_and_dropout_follow_the_seed(dropout, batch):
    """Without dropout only the order of samples differs, with one batch only the dropout."""
    runs = []
    for seed in (0, 1):
        model = net(dropout=dropout)
        train(model, plain(), TrainConfig(epochs=2, batch_size=batch, seed=seed))
        runs.append(weights(model))
    assert not same(*runs)


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_random_numbers_are_untouched(fails):
    seed_everything(5)
    expected = draw()
    seed_everything(5)
    if fails:
        with pytest.raises(Interrupted):
            train(net(), interrupted(scored(), 2))
    else:
        train(net(), scored(), TrainConfig(epochs=1))
    assert draw() == expected


def test_seed_everything_seeds_all_generators():
    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    assert not set(draw()) & set(first)


def test_a_restored_state_repeats_the_numbers():
    seed_everything(3)
    draw()
    random.gauss(0, 1), np.random.standard_normal()  # each keeps the other of a pair
    with isolated():
        state = rng_state()
        first = draw()
        set_rng_state(state)
        assert draw() == first
