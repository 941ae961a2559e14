"""A run that was cut off goes on as if it had not been, bit for bit."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from train.problem_helpers import judged, loss, net, plain, points, same, timeless, weights

from eattn.models import SequenceClassifier
from eattn.train import Checkpoint, Task, TensorDataset, TrainConfig, isolated, train

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(tmp_path):
    """SIGKILL in every part of the loop and of writing a checkpoint; see killed.py."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    answer = subprocess.run(
        [sys.executable, "-m", "train.kill_worker", str(tmp_path), "11", "197"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    at_each, in_a_row, from_outside = map(int, answer.stdout.split())
    assert at_each >= 12
    assert in_a_row >= 2
    assert from_outside >= 1


class Cut(Exception):
    pass


def cut_at(task: Task, step: int) -> Task:
    """The task, which fails at a step instead of giving its loss."""
    calls = iter(range(1, 1000))

    def cut(model, batch):
        if next(calls) == step:
            raise Cut
        return task.loss(model, batch)

    return replace(task, loss=cut)


def classifier(seed: int) -> nn.Module:
    with isolated(seed):
        return SequenceClassifier(2, 2, dim=8, depth=1, mixer="ea-6", dropout=0.2)


def series() -> Task:
    x = points(80)[0].reshape(-1, 8, 2)
    cases = TensorDataset(x, (x.mean((1, 2)) > 0).long())
    return Task(cases, loss, lambda model: {"noise": torch.rand(())}, "noise", "lower")


@pytest.mark.parametrize(
    "options",
    [
        dict(optimizer="adamw", checkpoint_every=2),
        dict(optimizer="radam", checkpoint_every=3, keep="last"),
        dict(optimizer="adamw", precision="float16", evaluate_every=3),
        dict(optimizer="adamw", checkpoint_seconds=1e-9),
        dict(optimizer="adamw", epochs=2, threads=2),
    ],
    ids=str,
)
def test_a_classifier_goes_on_from_its_checkpoint(tmp_path, options):
    options = {"epochs": 4, "threads": 1} | options
    torch.set_num_threads(options.pop("threads"))
    config = TrainConfig(
        batch_size=5, schedule="cosine", patience=20, checkpoint=tmp_path / "whole", **options
    )
    whole = classifier(seed=0)
    expected = train(whole, series(), config)
    config = replace(config, checkpoint=tmp_path / "cut")
    with pytest.raises(Cut):
        train(classifier(seed=0), cut_at(series(), 7), config)
    model = classifier(seed=1)  # its weights come from the checkpoint
    left = expected.rows[-1].step - 3  # at least three steps need not be done again
    history = train(model, cut_at(series(), left + 1), config)
    assert timeless(history) == timeless(expected)
    assert same(weights(model), weights(whole))


def test_early_stopping_counts_on_through_a_kill(tmp_path):
    def scripted(step=None):
        values = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
        task = Task(TensorDataset(*points()), loss, lambda m: {"x": next(values)}, "x", "lower")
        return task if step is None else cut_at(task, step), values

    config = TrainConfig(epochs=6, batch_size=20, patience=3, checkpoint=tmp_path)
    with pytest.raises(Cut):
        train(net(), scripted(7)[0], config)  # after three epochs of two steps
    task, values = scripted()
    for _ in range(3):
        next(values)
    model = net()
    history = train(model, task, config)
    assert [row.metrics["x"] for row in history.rows] == [3.0, 1.0, 2.0, 2.0, 2.0]
    assert (history.stopped, history.best.epoch) == ("patience", 2)
    whole = net()
    train(whole, scripted()[0], replace(config, checkpoint=None))
    assert same(weights(model), weights(whole))


def test_a_finished_run_gives_its_result_at_once(tmp_path):
    config = TrainConfig(epochs=3, batch_size=8, checkpoint=tmp_path)
    model, again = net(), net(seed=1)
    history = train(model, judged(), config)
    written = (tmp_path / "last.pt").stat().st_mtime_ns
    assert train(again, cut_at(judged(), 1), config) == history
    assert same(weights(again), weights(model))
    assert not again.training
    assert (tmp_path / "last.pt").stat().st_mtime_ns == written


def test_a_compiled_model_shares_its_checkpoints_with_the_plain_one(tmp_path):
    config = TrainConfig(epochs=2, batch_size=8, checkpoint=tmp_path)
    with pytest.raises(Cut):
        train(torch.compile(net(), backend="eager"), cut_at(plain(), 7), config)
    model, whole = net(seed=1), net()
    train(model, plain(), config)
    train(whole, plain(), replace(config, checkpoint=None))
    assert same(weights(model), weights(whole))


def test_seconds_go_on_too(tmp_path):
    config = TrainConfig(epochs=2, batch_size=8, checkpoint=tmp_path)
    with pytest.raises(Cut):
        train(net(), cut_at(plain(), 7), config)
    checkpoint = Checkpoint(tmp_path)
    state = checkpoint.load()
    state["standing"]["seconds"] += 1000.0
    checkpoint.save(state)
    history = train(net(), plain(), config)
    assert history.rows[0].seconds < 1000 < history.rows[1].seconds <= history.seconds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lr=0.5, seed=3), "another config: lr was 0.001 and is 0.5, seed was 0 and is 3;"),
        (dict(betas=(0.5, 0.9)), r"betas was \[0.9, 0.999\] and is \[0.5, 0.9\]"),
    ],
)
def test_another_config_is_refused_with_what_differs(tmp_path, change, message):
    config = TrainConfig(epochs=1, checkpoint=tmp_path)
    train(net(), plain(), config)
    with pytest.raises(ValueError, match=message) as caught:
        train(net(), plain(), replace(config, **change))
    assert str(tmp_path / "last.pt") in str(caught.value)
    assert "choose another folder" in str(caught.value)


def test_another_model_or_task_is_refused_with_what_differs(tmp_path):
    config = TrainConfig(epochs=1, checkpoint=tmp_path)
    train(nn.Linear(4, 2), plain(), config)
    told = r"of another model: weight was float32\[2, 4\] trained and is float32\[3, 4\] trained"
    with pytest.raises(ValueError, match=told):
        train(nn.Linear(4, 3), plain(), config)
    with pytest.raises(ValueError, match=r"weight was .* and is absent, .*, and 5 more;"):
        train(net(), plain(), config)
    frozen = nn.Linear(4, 2)
    frozen.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"bias was float32\[2\] trained and is float32\[2\];"):
        train(frozen, plain(), config)
    with pytest.raises(ValueError, match="another task: cases was 40 and is 12;"):
        train(nn.Linear(4, 2), Task(TensorDataset(*points(12)), loss), config)
    with pytest.raises(ValueError, match="another task: metric was None and is accuracy"):
        train(nn.Linear(4, 2), judged(), config)
