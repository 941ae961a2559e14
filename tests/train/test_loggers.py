"""Loggers: a bar on a terminal, plain lines elsewhere, scalars in TensorBoard."""

import io
import math
import re
import sys

import pytest
from rich.console import Console
from train.problem_helpers import Interrupted, interrupted, loss, net, plain, scored

from eattn.train import TrainConfig, train

CONFIG = TrainConfig(epochs=3, batch_size=10, lr=0.01)


def shown(*, terminal: bool) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100)
    train(net(), scored(), CONFIG, progress=console)
    return stream.getvalue()


def test_nothing_is_shown_by_default(capfd):
    train(net(), scored(), CONFIG)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_bar():
    text = shown(terminal=True)
    assert "\x1b[" in text
    plain_text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    last = plain_text.strip().splitlines()[-1]
    assert re.search(r"epoch 3/3 .* loss 0\.\d{4}, accuracy 0\.\d{4} 0:00:\d\d 0:00:00", last)


def test_a_log_has_a_line_per_evaluation():
    text = shown(terminal=False)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert len(lines) == 3
    pattern = r"epoch {}/3 loss 0\.\d{{4}}, accuracy [01]\.\d{{4}}, \d+ s, \d+ s left"
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(pattern.format(number), line)


def test_progress_goes_to_stderr(capfd):
    train(net(), plain(), CONFIG, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 3


def test_a_failed_run_closes_its_bar():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True)
    with pytest.raises(ValueError, match="loss is nan"):
        train(net(), plain(lambda *args: loss(*args) * math.nan), CONFIG, progress=console)
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


TAGS = ("train/loss", "train/lr", "train/gradient_norm", "evaluation/accuracy")


def events(folder, tag: str) -> list:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    assert set(board.Tags()["scalars"]) <= set(TAGS)
    return board.Scalars(tag)


def test_tensorboard_has_every_step_and_evaluation(tmp_path):
    pytest.importorskip("tensorboard")
    config = TrainConfig(epochs=3, batch_size=10, schedule="linear", tensorboard=tmp_path)
    history = train(net(), scored(), config)
    scalars = {tag: {e.step: e.value for e in events(tmp_path, tag)} for tag in TAGS}
    steps = range(1, 13)
    assert set(scalars["train/loss"]) == set(steps)
    assert scalars["train/lr"] == pytest.approx({i: 1e-3 * (1 - (i - 1) / 12) for i in steps})
    assert all(norm > 0 for norm in scalars["train/gradient_norm"].values())
    expected = {row.step: row.metrics["accuracy"] for row in history.rows}
    assert scalars["evaluation/accuracy"] == pytest.approx(expected)
    means = [sum(scalars["train/loss"][i] for i in steps[e : e + 4]) / 4 for e in (0, 4, 8)]
    assert means == pytest.approx([row.loss for row in history.rows])


def test_a_resumed_run_logs_no_step_twice(tmp_path):
    pytest.importorskip("tensorboard")
    config = TrainConfig(
        epochs=3, batch_size=10, tensorboard=tmp_path / "board", checkpoint=tmp_path / "kept"
    )
    with pytest.raises(Interrupted):
        train(net(), interrupted(plain(), 7), config)
    train(net(), plain(), config)  # repeats steps 5 and 6
    assert [event.step for event in events(tmp_path / "board", "train/loss")] == list(range(1, 13))


def test_missing_tensorboard_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    config = TrainConfig(epochs=1, tensorboard=tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "eattn\[timeseries\]"'):
        train(net(), plain(), config)
