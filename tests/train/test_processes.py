"""Two processes do what one does: the same batches, losses, weights and checkpoints."""

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch.distributed as dist
import torchrun_helpers
from torch.testing import assert_close
from train import processes_worker as worker
from train.problem_helpers import COUNT, same, scored, weighted

from eattn.train import CheckpointError, Processes, processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One process left a checkpoint in `one`; a killed job left its own."""
    folder = tmp_path_factory.mktemp("two")
    worker.stop(folder / "one")
    (folder / "one by another name").symlink_to(folder / "one")
    killed = torchrun_helpers.torchrun("train.processes_worker", folder, 8)
    assert killed.returncode
    assert "SIGKILL" in killed.stderr
    assert "ConnectionError: process 0 of 2 lost another one" in killed.stderr
    return folder


@pytest.fixture(scope="module")
def two(folder) -> list[dict[str, dict]]:
    """Results of each of two processes."""
    results = torchrun_helpers.run(partial(worker.main, folder), 2, folder)
    for result in results:
        assert "error" not in result, result["error"]
    return results


@pytest.mark.parametrize("run", ["plain", "sharded", "from one", "few", "few sharded"])
def test_two_processes_match_one(two, run):
    """With "few" samples, one process has none of the last batch."""
    task = scored(weighted, worker.FEW if run.startswith("few") else COUNT)
    expected, found = worker.result(task, worker.CONFIG), two[0][run]
    assert len(found["rows"]) == len(expected["rows"]) == 3
    for (step, loss, metrics), row in zip(found["rows"], expected["rows"], strict=True):
        assert (step, loss) == (row[0], pytest.approx(row[1], rel=1e-6))
        assert metrics == pytest.approx(row[2])
    last = expected["norms"][-len(found["norms"]) :]  # a resumed run has the last steps only
    assert found["norms"] == pytest.approx(last, rel=1e-5)
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)


def test_all_processes_end_with_the_same_weights(two):
    for name in two[0].keys() - {"errors"}:
        assert same(*(rank[name]["weights"] for rank in two))


@pytest.mark.parametrize("name", worker.PAIRS)
def test_two_processes_resume_bit_for_bit(two, name):
    for rank in two:
        whole, resumed = (rank[f"{what}{name}"] for what in ("whole", "resumed"))
        assert resumed["history"] == whole["history"]
        assert len(resumed["norms"]) < len(whole["norms"])
        assert same(resumed["weights"], whole["weights"])


def test_one_process_resumes_what_two_sharded(folder, two):
    assert [path.name for path in (folder / "two").iterdir()] == ["last.pt"]
    config = replace(worker.CONFIG, checkpoint=folder / "two", checkpoint_every=2)
    with pytest.raises(
        CheckpointError, match=r"last.pt belongs to a run with another config: lr was 0.02 and is"
    ):
        worker.result(worker.TASK, replace(config, lr=0.5))
    found, expected = worker.result(worker.TASK, config), two[0]["sharded"]
    assert [loss for _, loss, _ in found["rows"]] == pytest.approx(
        [loss for _, loss, _ in expected["rows"]], rel=1e-6
    )
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)


def test_an_error_of_one_rank_is_raised_on_all(two):
    for rank in two:
        said = rank["errors"]
        assert "last.pt is damaged or no checkpoint" in said["torn"]
        assert said["seeds"] == (
            "DisagreementError: all processes must have the same config,"
            " got seed = 0 in process 0 and 5 in process 1"
        )
        assert said["full"] == "ValueError: no room in process 0"
        assert "all processes must see the same" in said["unseen"]
        assert "got steps 3, None" in said["unseen"]


def test_an_error_that_cannot_be_pickled_is_sent_as_text():
    class OddError(Exception):
        def __init__(self, size: int, room: int) -> None:
            super().__init__(f"{size} > {room}")

    def work() -> None:
        raise OddError(3, 2)

    with (
        patch.object(Processes, "gather", lambda self, value: [value]),
        pytest.raises(RuntimeError, match="OddError: 3 > 2"),
    ):
        Processes(0, 2).on_every_rank(work)


def test_a_job_with_a_killed_process_can_be_resumed(two):
    for rank in two:
        resumed, whole = rank["after kill"], rank["without kill"]
        assert (resumed["calls"], whole["calls"]) == (6, 12)  # six of the seven were saved
        assert resumed["history"] == whole["history"]
        assert same(resumed["weights"], whole["weights"])


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("NCCL error in: c.cpp:1\nncclRemoteError: A call failed possibly due to a network", True),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, Timeout(ms)=9)", True),
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1", True),
        ("NCCL error in: c.cpp:1\nncclInvalidUsage: \nDuplicate GPU detected : rank 1", False),
    ],
)
def test_a_lost_process_is_told_from_other_errors(monkeypatch, message, lost):
    monkeypatch.setattr(processes, "_arrange", lambda *_: Processes(0, 2))
    error, match = (ConnectionError, "0 of 2 lost another") if lost else (RuntimeError, "NCCL")
    with pytest.raises(error, match=match), processes.torchrun():
        raise RuntimeError(message)


@pytest.mark.parametrize("backends", ["cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"])
def test_a_failed_process_does_not_wait_for_nccl(monkeypatch, backends):
    for name, answer in dict(is_initialized=False, get_backend_config=backends).items():
        monkeypatch.setattr(processes.dist, name, Mock(return_value=answer))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "_open", Mock())
    monkeypatch.setattr(processes.dist, "destroy_process_group", destroy := Mock())
    with pytest.raises(KeyError), processes.torchrun():
        raise KeyError
    assert destroy.called == ("nccl" not in backends)
    destroy.reset_mock()
    with processes.torchrun():
        pass
    assert destroy.called


@pytest.mark.parametrize("timeout", [None, timedelta(hours=2)])
def test_timeout_is_passed_to_the_group(monkeypatch, timeout):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(processes, "_rendezvous", lambda: (dist.HashStore(), 0, 2))
    monkeypatch.setattr(processes.dist, "destroy_process_group", Mock())
    monkeypatch.setattr(processes.dist, "init_process_group", begin := Mock())
    with processes.torchrun(timeout=timeout):
        assert begin.call_args.kwargs["timeout"] == timeout


def test_sequence_parallel_needs_processes():
    with (
        pytest.raises(ValueError, match=r"divide the number of processes, 1, got 2: torchrun"),
        processes.torchrun(sequence_parallel=2),
    ):
        pass


def test_shares_are_disjoint_and_seeds_differ():
    batch = [5, 3, 8, 1, 9]
    shares = [Processes(rank, 3).share(batch) for rank in range(3)]
    assert sorted(sample for share in shares for sample in share) == sorted(batch)
    assert {len(share) for share in shares} == {1, 2}
    assert [Processes(rank, 3).share([7]) for rank in range(3)] == [[7], [], []]
    seeds = [Processes(rank, 3).seed(7) for rank in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
