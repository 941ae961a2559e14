"""A run in any number of processes and any mode matches that of one process."""

import sys
from typing import Any

import pytest

pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

import data_parallel_worker as worker
import torchrun_helpers
from data_parallel_worker import MODES, RUNS


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Each run in one process."""
    return {name: worker.with_norms(run) for name, run in RUNS.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, list[dict[str, Any]]]:
    """Results of each of four processes, and of two, which resume the checkpoint of four."""
    folder = tmp_path_factory.mktemp("shared")
    given, answers = sys.argv, {}
    try:
        sys.argv = [*given, str(folder / "checkpoint")]
        for world in MODES:
            answers[world] = torchrun_helpers.run(worker.work, world, folder)
    finally:
        sys.argv = given
    errors = [answer["error"] for each in answers.values() for answer in each if "error" in answer]
    assert not errors, "\n".join(errors)
    return answers


@pytest.mark.parametrize(
    ("world", "mode"), [(world, mode) for world, modes in MODES.items() for mode in modes]
)
def test_losses_gradients_and_weights_match_one_process(found, alone, world, mode):
    for run in RUNS:
        expected = alone[run]
        for answer in found[world]:
            ours = answer[f"{run} {mode}"]
            assert len(ours["rows"]) == len(expected["rows"]) > 1
            for row, other in zip(ours["rows"], expected["rows"], strict=True):
                assert row == pytest.approx(other, rel=2e-4), f"{run} {mode}"
            assert ours["norms"] == pytest.approx(expected["norms"], rel=2e-3), f"{run} {mode}"
            assert worker.difference(ours["weights"], expected["weights"]) < 2e-3, f"{run} {mode}"


def test_two_processes_resume_the_checkpoint_of_four(found, alone):
    """The four had sharded weights, and shared sequences in pairs."""
    expected = alone["language"]
    for answer in found[2]:
        ours = answer["resumed"]
        for row, other in zip(ours["rows"], expected["rows"], strict=True):
            assert row == pytest.approx(other, rel=2e-4)
        assert worker.difference(ours["weights"], expected["weights"]) < 2e-3


def test_command_in_two_processes_matches_one(found, tmp_path):
    """Each with a shard of every weight, and half of every sequence; rank 0 prints."""
    expected = worker.command(tmp_path / "model")
    for answer, printed in zip(found[2], (1, 0), strict=True):
        ours = answer["command"]
        assert ours["printed"].count("bits per byte") == printed
        assert ours["rows"] == [pytest.approx(row, rel=1e-4) for row in expected["rows"]]
        assert worker.difference(ours["weights"], expected["weights"]) < 2e-3


def test_invalid_runs_raise_on_every_rank(found):
    for world, answers in found.items():
        for answer in answers:
            said = answer["errors"]
            assert f"divide the number of processes, {world}, got 3" in said["3 of a sequence"]
            assert "SoftmaxAttention cannot run inside sequence_parallel" in said["a mixer"]
            assert "sequence_parallel needs a task with `shard`" in said["a classifier"]
            assert "must have the same task, got data = " in said["a text"]
            assert "No space left on device" in said["full disk"]
