"""An interrupted run is resumed as if it had not been interrupted, bit for bit."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from train.problem_helpers import (
    Interrupted,
    interrupted,
    loss,
    net,
    plain,
    points,
    same,
    scored,
    timeless,
    weights,
)

from eattn.models import SequenceClassifier
from eattn.train import Checkpoint, Task, TensorDataset, TrainConfig, isolated, train

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_run_killed_at_any_moment_is_resumed(tmp_path):
    """SIGKILL in every part of the loop and of writing a checkpoint; see kill_worker.py."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    answer = subprocess.run(
        [sys.executable, "-m", "train.kill_worker", str(tmp_path), "11", "197"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    at_each, in_a_row = map(int, answer.stdout.split())
    assert at_each >= 12
    assert in_a_row >= 2


def classifier(seed: int) -> nn.Module:
    with isolated(seed):
        return SequenceClassifier(2, 2, dim=8, depth=1, mixer="ea-6", dropout=0.2)


def series() -> Task:
    x = points(80)[0].reshape(-1, 8, 2)
    dataset = TensorDataset(x, (x.mean((1, 2)) > 0).long())
    return Task(dataset, loss, lambda model: {"noise": torch.rand(())}, "noise", "lower")


@pytest.mark.parametrize(
    "options",
    [
        dict(checkpoint_every=2),
        dict(optimizer="radam", checkpoint_every=3, keep="last"),
        dict(precision="float16", evaluate_every=3),
        dict(epochs=2, checkpoint_seconds=1e-9, threads=2),
    ],
    ids=str,
)
def test_a_classifier_is_resumed(tmp_path, options):
    options = {"epochs": 4, "threads": 1} | options
    torch.set_num_threads(options.pop("threads"))
    config = TrainConfig(
        batch_size=5, schedule="cosine", patience=20, checkpoint=tmp_path / "whole", **options
    )
    whole = classifier(seed=0)
    expected = train(whole, series(), config)
    config = replace(config, checkpoint=tmp_path / "cut")
    with pytest.raises(Interrupted):
        train(classifier(seed=0), interrupted(series(), 7), config)
    model = classifier(seed=1)  # its weights come from the checkpoint
    left = expected.rows[-1].step - 3  # at least three steps are not repeated
    history = train(model, interrupted(series(), left + 1), config)
    assert timeless(history) == timeless(expected)
    assert same(weights(model), weights(whole))


def test_early_stopping_counts_evaluations_before_the_interruption(tmp_path):
    def scripted(*values):
        left = iter(values)
        return Task(TensorDataset(*points()), loss, lambda m: {"x": next(left)}, "x", "lower")

    config = TrainConfig(epochs=6, batch_size=20, patience=3, checkpoint=tmp_path)
    with pytest.raises(Interrupted):  # after three epochs of two steps
        train(net(), interrupted(scripted(3.0, 1.0, 2.0), 7), config)
    model, whole = net(), net()
    history = train(model, scripted(2.0, 2.0, 2.0), config)
    assert [row.metrics["x"] for row in history.rows] == [3.0, 1.0, 2.0, 2.0, 2.0]
    assert (history.stopped, history.best.epoch) == ("patience", 2)
    train(whole, scripted(3.0, 1.0, 2.0, 2.0, 2.0), replace(config, checkpoint=None))
    assert same(weights(model), weights(whole))


def test_a_finished_run_returns_its_result_at_once(tmp_path):
    config = TrainConfig(epochs=3, batch_size=8, checkpoint=tmp_path)
    model, again = net(), net(seed=1)
    history = train(model, scored(), config)
    written = (tmp_path / "last.pt").stat().st_mtime_ns
    assert train(again, interrupted(scored(), 1), config) == history
    assert same(weights(again), weights(model))
    assert not again.training
    assert (tmp_path / "last.pt").stat().st_mtime_ns == written


def test_a_compiled_model_is_resumed_by_the_plain_one(tmp_path):
    config = TrainConfig(epochs=2, batch_size=8, checkpoint=tmp_path)
    with pytest.raises(Interrupted):
        train(torch.compile(net(), backend="eager"), interrupted(plain(), 7), config)
    model, whole = net(seed=1), net()
    train(model, plain(), config)
    train(whole, plain(), replace(config, checkpoint=None))
    assert same(weights(model), weights(whole))


def test_seconds_include_those_before_the_interruption(tmp_path):
    config = TrainConfig(epochs=2, batch_size=8, checkpoint=tmp_path)
    with pytest.raises(Interrupted):
        train(net(), interrupted(plain(), 7), config)
    checkpoint = Checkpoint(tmp_path)
    state = checkpoint.load()
    state["state"]["seconds"] += 1000.0
    checkpoint.save(state)
    history = train(net(), plain(), config)
    assert history.rows[0].seconds < 1000 < history.rows[1].seconds <= history.seconds
