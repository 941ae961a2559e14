"""Two processes do what one does: the same batches, losses, weights and checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from train import spread

from eattn.train import Processes

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict[str, dict]]:
    """What each of two processes gave."""
    folder = tmp_path_factory.mktemp("two")
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    answer = subprocess.run(
        [sys.executable, *launch, "-m", "train.spread", str(folder)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_two_processes_learn_what_one_does(two):
    expected = spread.result(spread.task(), spread.CONFIG)
    found = two[0]["plain"]
    assert len(found["rows"]) == len(expected["rows"]) == 3
    for (step, loss, metrics), row in zip(found["rows"], expected["rows"], strict=True):
        assert step == row.step
        assert loss == pytest.approx(row.loss, rel=1e-6)
        assert metrics == pytest.approx(row.metrics)
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)


def test_all_processes_end_with_the_same_weights(two):
    for name in ("plain", "whole", "resumed"):
        first, second = (rank[name]["weights"] for rank in two)
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_cut_off_run_of_two_processes_resumes_to_the_same_bits(two):
    """With dropout, whose random numbers each process has its own of."""
    for rank in two:
        assert rank["resumed"]["history"] == rank["whole"]["history"]
        whole = rank["whole"]["weights"]
        assert all(torch.equal(whole[key], rank["resumed"]["weights"][key]) for key in whole)


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
