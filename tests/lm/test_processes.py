"""However many processes share a run, and however they do, it is the run of one."""

import shutil
import sys
from typing import Any

import pytest

pytest.importorskip("transformers")

import data_parallel_worker as sharing
import torchrun_helpers as ranks
from data_parallel_worker import MODES, RUNS


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Each run in one process."""
    return {name: sharing.noted(run) for name, run in RUNS.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[int, list[dict[str, Any]]]:
    """What each of four processes gave, and each of two, which go on from their checkpoint."""
    folder = tmp_path_factory.mktemp("sharing")
    given, answers = sys.argv, {}
    try:
        sys.argv = [*given, str(folder / "left")]
        for world in MODES:
            answers[world] = ranks.run(sharing.work, world, folder)
            for mode in MODES[2] if world == 4 else ():
                shutil.copytree(folder / "left", folder / mode)
    finally:
        sys.argv = given
    for answer in (answer for world in answers.values() for answer in world):
        assert "error" not in answer, answer["error"]
    return answers


@pytest.mark.parametrize(
    ("world", "mode"), [(world, mode) for world, modes in MODES.items() for mode in modes]
)
def test_losses_gradients_and_weights_are_those_of_one_process(found, alone, world, mode):
    for run in sharing.runs(mode):
        expected = alone[run]
        for answer in found[world]:
            ours = answer[f"{run} {mode}"]
            assert len(ours["rows"]) == len(expected["rows"]) > 1
            for row, other in zip(ours["rows"], expected["rows"], strict=True):
                assert row == pytest.approx(other, rel=2e-4), f"{run} {mode}"
            assert ours["norms"] == pytest.approx(expected["norms"], rel=2e-3), f"{run} {mode}"
            assert sharing.differ(ours["weights"], expected["weights"]) < 2e-3, f"{run} {mode}"


@pytest.mark.parametrize("mode", ["ddp", "sequence"])
def test_two_processes_go_on_from_what_four_left(found, alone, mode):
    """Which had weights and optimiser in parts, and sequences cut in two."""
    expected = alone["language"]
    for answer in found[2]:
        ours = answer[f"resumed {mode}"]
        for row, other in zip(ours["rows"], expected["rows"], strict=True):
            assert row == pytest.approx(other, rel=2e-4)
        assert sharing.differ(ours["weights"], expected["weights"]) < 2e-3


def test_a_seed_that_is_drawn_is_one_for_all_processes(found):
    for answers in found.values():
        assert len({answer["seed"] for answer in answers}) == 1


def test_what_cannot_be_shared_is_refused_in_every_process(found):
    for world, answers in found.items():
        for answer in answers:
            said = answer["refused"]
            assert f"divide the number of processes, {world}, got 3" in said["3 of a sequence"]
            assert (
                "SoftmaxAttention cannot run inside sequence_parallel over 2 ranks"
                in said["a mixer"]
            )
            assert "sequence_parallel needs a task with `shard`" in said["a classifier"]
            assert "must have the same task, got data = " in said["a text"]
            assert "No space left on device" in said["no room"]
