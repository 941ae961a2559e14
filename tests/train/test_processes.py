"""Two processes do what one does: the same batches, losses, weights and checkpoints."""

import contextlib
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.testing import assert_close
from torchrun_helpers import torchrun
from train import processes_worker as spread

from eattn.train import Checkpoint, CheckpointError, Processes, processes
from eattn.train.errors import lost


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One process has left a checkpoint in `one`; two leave theirs in `two`, and what they gave."""
    folder = tmp_path_factory.mktemp("two")
    with contextlib.suppress(spread.Cut):
        spread.cut_off(folder / "one")
    (folder / "one by another name").symlink_to(folder / "one")
    answer = torchrun("train.processes_worker", folder)
    assert answer.returncode == 0, answer.stderr
    return folder


@pytest.fixture(scope="module")
def two(folder) -> list[dict[str, dict]]:
    """What each of two processes gave."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("run", ["plain", "sharded", "from one", "few", "few sharded"])
def test_two_processes_learn_what_one_does(two, run):
    """Each with all weights; each with parts of them; and so from where one process was cut off.

    With few cases, one process has none of the last batch.
    """
    cases = spread.FEW if run.startswith("few") else spread.COUNT
    expected, found = spread.result(spread.task(cases=cases), spread.CONFIG), two[0][run]
    assert len(found["rows"]) == len(expected["rows"]) == 3
    for (step, loss, metrics), row in zip(found["rows"], expected["rows"], strict=True):
        assert (step, loss) == (row[0], pytest.approx(row[1], rel=1e-6))
        assert metrics == pytest.approx(row[2])
    last = expected["norms"][-len(found["norms"]) :]  # one that goes on has the last steps alone
    assert found["norms"] == pytest.approx(last, rel=1e-5)
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)


def test_all_processes_end_with_the_same_weights(two):
    for name in two[0].keys() - {"refused"}:
        first, second = (rank[name]["weights"] for rank in two)
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", spread.PAIRS)
def test_a_cut_off_run_of_two_processes_resumes_to_the_same_bits(two, name):
    for rank in two:
        whole, resumed = (rank[f"{what}{name}"] for what in ("whole", "resumed"))
        assert resumed["history"] == whole["history"]
        weights = whole["weights"]
        assert all(torch.equal(weights[key], resumed["weights"][key]) for key in weights)


def test_one_process_goes_on_from_what_two_left(folder, two):
    """Each its part of the weights and of the optimiser's state."""
    left = sorted(path.name for path in (folder / "two").iterdir())
    assert left == ["step-00000006"]
    config = replace(spread.CONFIG, checkpoint=folder / "two", checkpoint_every=2)
    found, expected = spread.result(spread.task(), config), two[0]["sharded"]
    assert [loss for _, loss, _ in found["rows"]] == pytest.approx(
        [loss for _, loss, _ in expected["rows"]], rel=1e-6
    )
    assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)
    assert [path.name for path in (folder / "two").iterdir()] == ["last.pt"]


def test_a_part_that_is_missing_or_torn_is_named(folder, tmp_path):
    shutil.copytree(folder / "cut", tmp_path / "cut")
    config = replace(spread.CONFIG, checkpoint=tmp_path / "cut", checkpoint_every=2)
    part = next((tmp_path / "cut").glob("step-*/__1_0.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"__1_0.distcp is damaged, its checksum is wrong"):
        spread.result(spread.task(), config, dropout=0.3)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"__1_0.distcp is missing: delete"):
        spread.result(spread.task(), config, dropout=0.3)


def test_another_config_than_that_of_two_processes_is_refused(folder):
    config = replace(spread.CONFIG, lr=0.5, checkpoint=folder / "cut")
    with pytest.raises(CheckpointError, match=r"step-\d+ is of another config: lr was 0.02 and is"):
        spread.result(spread.task(), config, dropout=0.3)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("broken pipe"), RuntimeError),
        (PermissionError("not yours"), PermissionError),
        (KeyError("weight"), CheckpointError),
    ],
)
def test_a_checkpoint_is_not_blamed_for_what_it_cannot_help(tmp_path, monkeypatch, error, raised):
    for thrown in (error, dcp.api.CheckpointException("", {0: (error, None)})):
        monkeypatch.setattr(dcp, "load", Mock(side_effect=thrown))
        with pytest.raises(raised, match=error.args[0]):
            Checkpoint(tmp_path).fill_shared(tmp_path, {})


def test_what_one_process_finds_wrong_all_of_them_raise(two):
    for rank in two:
        said = rank["refused"]
        assert "__1_0.distcp is damaged, its checksum is wrong: delete" in said["damaged"]
        assert "last.pt is damaged or no checkpoint" in said["torn"]
        assert all(said[name].startswith("CheckpointError") for name in ("damaged", "torn"))
        assert said["seeds"] == (
            "DisagreementError: all processes must have the same config,"
            " got seed = 0 in process 0 and 5 in process 1"
        )
        assert said["full"] == "ValueError: no room in process 0"
        assert "own of 1/last.pt cannot be seen by process 1: all must share" in said["unseen"]


def test_an_error_that_cannot_be_sent_is_sent_in_words():
    class OddError(Exception):
        def __init__(self, size: int, room: int) -> None:
            super().__init__(f"{size} > {room}")

    def work() -> None:
        raise OddError(3, 2)

    with pytest.raises(OddError), patch.object(Processes, "gather") as gather:
        gather.side_effect = lambda value: [value]
        Processes().together(work)
    (sent,) = gather.call_args.args
    assert repr(sent) == "RuntimeError('OddError: 3 > 2')"


def test_a_killed_process_stops_the_job_which_then_loses_no_more_than_the_steps_since(tmp_path):
    struck = torchrun("train.failure_worker", tmp_path, 8)
    assert struck.returncode
    assert "SIGKILL" in struck.stderr
    assert "ConnectionError: process 0 of 2 lost another one" in struck.stderr
    assert not (tmp_path / "result.pt").exists()
    again = torchrun("train.failure_worker", tmp_path)
    assert again.returncode == 0, again.stderr
    found = torch.load(tmp_path / "result.pt", weights_only=True)
    resumed, whole = found["resumed"], found["whole"]
    assert (resumed["calls"], whole["calls"]) == (6, 12)  # six of the seven were saved
    assert resumed["history"] == whole["history"]
    assert all(torch.equal(x, whole["weights"][name]) for name, x in resumed["weights"].items())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("NCCL error in: c.cpp:1\nncclRemoteError: A call failed possibly due to a network", True),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, Timeout(ms)=9)", True),
        ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1", True),
        ("NCCL error in: c.cpp:1\nncclInvalidUsage: \nDuplicate GPU detected : rank 1", False),
    ],
)
def test_what_nccl_cannot_do_here_is_no_lost_process(said, expected):
    assert lost(RuntimeError(said)) == expected


def test_those_that_are_left_say_that_one_was_lost(monkeypatch):
    monkeypatch.setattr(processes, "_arranged", lambda *_: Processes(0, 2))
    with (
        pytest.raises(ConnectionError, match=r"process 0 of 2 lost another one.*goes on from"),
        processes.torchrun(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    with pytest.raises(RuntimeError, match="of another kind"), processes.torchrun():
        raise RuntimeError("of another kind")


@pytest.mark.parametrize("backends", ["cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"])
def test_one_that_raises_does_not_wait_for_the_others(monkeypatch, backends):
    """As nccl might when its group is to be destroyed; all others are when gloo's is."""
    for name, answer in dict(is_initialized=False, get_backend_config=backends).items():
        monkeypatch.setattr(processes.dist, name, Mock(return_value=answer))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "_meet", Mock())
    monkeypatch.setattr(processes.dist, "destroy_process_group", destroy := Mock())
    with pytest.raises(KeyError), processes.torchrun():
        raise KeyError
    assert destroy.called == ("nccl" not in backends)
    destroy.reset_mock()
    with processes.torchrun():
        pass
    assert destroy.called


@pytest.mark.parametrize("timeout", [None, timedelta(hours=2)])
def test_how_long_they_wait_for_each_other_can_be_chosen(monkeypatch, timeout):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(processes, "_rendezvous", lambda: (dist.HashStore(), 0, 2))
    monkeypatch.setattr(processes.dist, "destroy_process_group", Mock())
    monkeypatch.setattr(processes.dist, "init_process_group", begin := Mock())
    with processes.torchrun(timeout=timeout):
        assert begin.call_args.kwargs["timeout"] == timeout


def test_a_sequence_needs_processes_to_share_it():
    with (
        pytest.raises(ValueError, match=r"divide the number of processes, 1, got 2: torchrun"),
        processes.torchrun(sequence_parallel=2),
    ):
        pass


def test_shares_are_the_batch_and_seeds_differ():
    batch = [5, 3, 8, 1, 9]
    shares = [Processes(rank, 3).share(batch) for rank in range(3)]
    assert sorted(case for share in shares for case in share) == sorted(batch)
    assert {len(share) for share in shares} == {1, 2}
    assert [Processes(rank, 3).share([7]) for rank in range(3)] == [[7], [], []]
    seeds = [Processes(rank, 3).seed(7) for rank in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
