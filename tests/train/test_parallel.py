"""Two processes do what one does: the same batches, losses, weights and checkpoints."""

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from train import spread

from eattn.train import CheckpointError, Processes, parallel

TESTS = Path(__file__).parents[1]


def torchrun(module: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Two processes of it."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, *launch, "-m", module, *map(str, args)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One process has left a checkpoint in `one`; two leave theirs in `two`, and what they gave."""
    folder = tmp_path_factory.mktemp("two")
    with contextlib.suppress(spread.Cut):
        spread.cut_off(folder / "one")
    answer = torchrun("train.spread", folder)
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.fixture(scope="module")
def two(folder) -> list[dict[str, dict]]:
    """What each of two processes gave."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("run", ["plain", "sharded", "from one"])
def test_two_processes_learn_what_one_does(two, run):
    """Each with all weights; each with parts of them; and so from where one process was cut off."""
    expected = spread.result(spread.task(), spread.CONFIG)
    found = two[0][run]
    assert len(found["rows"]) == len(expected["rows"]) == 3
    for (step, loss, metrics), row in zip(found["rows"], expected["rows"], strict=True):
        assert step == row.step
        assert loss == pytest.approx(row.loss, rel=1e-6)
        assert metrics == pytest.approx(row.metrics)
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)


def test_all_processes_end_with_the_same_weights(two):
    for name in ("plain", "whole", "resumed", "sharded", "from one"):
        first, second = (rank[name]["weights"] for rank in two)
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_cut_off_run_of_two_processes_resumes_to_the_same_bits(two):
    """With dropout, whose random numbers each process has its own of."""
    for rank in two:
        assert rank["resumed"]["history"] == rank["whole"]["history"]
        whole = rank["whole"]["weights"]
        assert all(torch.equal(whole[key], rank["resumed"]["weights"][key]) for key in whole)


def test_one_process_goes_on_from_what_two_left(folder, two):
    """Each its part of the weights and of the optimiser's state."""
    left = sorted(path.name for path in (folder / "two").iterdir())
    assert left == ["step-00000006"]
    config = replace(spread.CONFIG, checkpoint=folder / "two", checkpoint_every=2)
    found, expected = spread.result(spread.task(), config), two[0]["sharded"]
    assert [row.loss for row in found["rows"]] == pytest.approx(
        [loss for _, loss, _ in expected["rows"]], rel=1e-6
    )
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)
    assert [path.name for path in (folder / "two").iterdir()] == ["last.pt"]


def test_a_part_that_is_missing_or_torn_is_named(folder, tmp_path):
    shutil.copytree(folder / "cut", tmp_path / "cut")
    config = replace(spread.CONFIG, checkpoint=tmp_path / "cut", checkpoint_every=2)
    part = next((tmp_path / "cut").glob("step-*/__1_0.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"__1_0.distcp has \d+ bytes instead of"):
        spread.result(spread.task(), config, dropout=0.3)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"__1_0.distcp is missing: delete"):
        spread.result(spread.task(), config, dropout=0.3)


def test_a_killed_process_stops_the_job_which_then_loses_no_more_than_the_steps_since(tmp_path):
    struck = torchrun("train.struck", tmp_path, 8)
    assert struck.returncode
    assert "SIGKILL" in struck.stderr
    assert not (tmp_path / "result.pt").exists()
    again = torchrun("train.struck", tmp_path)
    assert again.returncode == 0, again.stderr
    found = torch.load(tmp_path / "result.pt", weights_only=True)
    resumed, whole = found["resumed"], found["whole"]
    assert (resumed["calls"], whole["calls"]) == (6, 12)  # six of the seven were saved
    assert resumed["history"] == whole["history"]
    assert all(torch.equal(x, whole["weights"][name]) for name, x in resumed["weights"].items())


def test_those_that_are_left_say_that_one_was_lost(monkeypatch):
    monkeypatch.setattr(parallel, "_arranged", lambda *_: Processes(0, 2))
    with (
        pytest.raises(ConnectionError, match=r"process 0 of 2 lost another one.*goes on from"),
        parallel.torchrun(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(RuntimeError, match="of another kind"), parallel.torchrun():
        raise RuntimeError("of another kind")


def test_a_sequence_needs_processes_to_share_it():
    with (
        pytest.raises(ValueError, match=r"divide the number of processes, 1, got 2: torchrun"),
        parallel.torchrun(sequence_parallel=2),
    ):
        pass


def test_a_batch_with_fewer_cases_than_processes_is_refused(two):
    for rank in two:
        assert "a batch of 1 cases is too small for 2 processes" in rank["refused"]["error"]


def test_shares_are_the_batch_and_seeds_differ():
    batch = [5, 3, 8, 1, 9]
    shares = [Processes(rank, 3).share(batch) for rank in range(3)]
    assert sorted(case for share in shares for case in share) == sorted(batch)
    assert {len(share) for share in shares} == {1, 2}
    seeds = [Processes(rank, 3).seed(7) for rank in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
