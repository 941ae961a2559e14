"""A checkpoint is whole, or it is the one before; a damaged one says so."""

import os
import random
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed.checkpoint as dcp
from train.problem_helpers import net, plain

from eattn.train import Checkpoint, CheckpointError, Processes, TrainConfig, checkpoint, train

STATE = {"weights": torch.arange(300.0), "rows": [1, 2.5, "three", None, (4, 5)]}


def equal(a: dict, b: dict) -> bool:
    return torch.equal(a["weights"], b["weights"]) and a["rows"] == b["rows"]


def test_what_is_saved_comes_back(tmp_path):
    saved = Checkpoint(tmp_path / "new" / "folder")
    assert saved.load() is None
    saved.save(STATE)
    assert equal(saved.load(), STATE)
    saved.save(STATE | {"rows": []})
    assert saved.load()["rows"] == []
    assert os.listdir(saved.folder) == ["last.pt"]


def test_a_flipped_bit_is_noticed_wherever_it_matters(tmp_path):
    saved = Checkpoint(tmp_path)
    saved.save(STATE)
    whole = saved.path.read_bytes()
    rng, noticed = random.Random(0), 0
    for place in rng.sample(range(len(whole)), 150):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        saved.path.write_bytes(damaged)
        try:
            assert equal(saved.load(), STATE)  # it was in the padding
        except CheckpointError as error:
            assert str(saved.path) in str(error)
            noticed += 1
    assert noticed > 50


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_damaged(tmp_path, keep):
    saved = Checkpoint(tmp_path)
    saved.save(STATE)
    whole = saved.path.read_bytes()
    saved.path.write_bytes(whole[: int(keep * len(whole))])
    message = r"last.pt is damaged or no checkpoint \(.*\): delete it to start anew"
    with pytest.raises(CheckpointError, match=message):
        saved.load()


def test_a_run_does_not_start_over_a_damaged_checkpoint(tmp_path):
    (tmp_path / "last.pt").write_bytes(b"PK, but nothing after it")
    with pytest.raises(CheckpointError, match=r"last.pt is damaged or no checkpoint"):
        train(net(), plain(), TrainConfig(epochs=1, checkpoint=tmp_path))
    assert (tmp_path / "last.pt").read_bytes().startswith(b"PK,")


def test_a_file_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    saved = Checkpoint(tmp_path)
    torch.save({"format": 1, "evil": Evil()}, saved.path)
    with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
        saved.load()
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize("content", [{"format": 99}, {"weights": 1}, [1, 2]], ids=str)
def test_a_file_of_something_else_is_refused(tmp_path, content):
    saved = Checkpoint(tmp_path)
    torch.save(content, saved.path)
    with pytest.raises(CheckpointError, match="must be a checkpoint of format 1, got"):
        saved.load()


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(CheckpointError, match=f"checkpoint must be a folder, got the file {file}"):
        Checkpoint(file)
    assert file.read_text() == "mine"


def test_a_full_disk_leaves_the_one_before(tmp_path, monkeypatch):
    class Full:
        """A file on a disk with little room."""

        def __init__(self, *arguments):
            self.file = open(*arguments)  # noqa: SIM115
            self.room = 2000

        def write(self, data):
            self.room -= len(data)
            if self.room < 0:
                raise OSError(28, "No space left on device")
            return self.file.write(data)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    saved = Checkpoint(tmp_path)
    saved.save(STATE)
    monkeypatch.setattr(checkpoint, "open", Full, raising=False)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*last.pt: .*No space left"):
        saved.save(STATE | {"more": torch.zeros(10_000)})
    assert os.listdir(tmp_path) == ["last.pt"]
    assert equal(saved.load(), STATE)
    monkeypatch.setattr(dcp, "save", Mock())
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*step-00000003: .*No space"):
        saved.save_shared({"standing": {"step": 3}, "more": torch.zeros(10_000)}, {}, Processes())
    assert saved.newest() == saved.path


def test_a_part_that_another_process_cannot_see_leaves_the_one_before(tmp_path, monkeypatch):
    """As where the folder is another one on every machine."""

    def write(_, storage_writer):
        (Path(storage_writer.path) / "__0_0.distcp").touch()

    saved = Checkpoint(tmp_path)
    saved.save(STATE | {"standing": {"step": 2}})
    monkeypatch.setattr(dcp, "save", write)
    monkeypatch.setattr(checkpoint, "_checksum", lambda path: None)
    with pytest.raises(OSError, match=r"cannot write .*step-00000003: not all .* see __0_0.distcp"):
        saved.save_shared({"standing": {"step": 3}}, {}, Processes())
    assert saved.newest() == saved.path


def test_checkpoints_come_as_often_as_was_asked(tmp_path, monkeypatch):
    def steps(**options) -> list[int]:
        saved = []
        monkeypatch.setattr(
            Checkpoint, "save", lambda self, state: saved.append(state["standing"]["step"])
        )
        folder = tmp_path / str(len(os.listdir(tmp_path)))
        config = TrainConfig(epochs=2, batch_size=8, checkpoint=folder, **options)
        train(net(), plain(), config)
        return saved

    assert steps() == [5, 10]  # after each epoch
    assert steps(checkpoint_every=4) == [4, 8, 10]  # and at the end
    assert steps(checkpoint_seconds=1e-9) == list(range(1, 11))
    assert steps(checkpoint_seconds=1e9) == [10]
    assert steps(checkpoint_seconds=1e9, checkpoint_every=6) == [6, 10]
