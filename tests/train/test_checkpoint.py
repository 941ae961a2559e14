"""A checkpoint is complete, or the previous one; a damaged one raises."""

import os
import random
from unittest.mock import Mock

import pytest
import torch
from train.problem_helpers import net, plain

from eattn.train import Checkpoint, CheckpointError, TrainConfig, checkpoint, train

STATE = {"weights": torch.arange(300.0), "rows": [1, 2.5, "three", None, (4, 5)]}


def equal(a: dict, b: dict) -> bool:
    return torch.equal(a["weights"], b["weights"]) and a["rows"] == b["rows"]


@pytest.fixture
def saved(tmp_path) -> Checkpoint:
    found = Checkpoint(tmp_path / "new" / "folder")
    assert found.load() is None
    found.save(STATE)
    return found


def test_a_saved_state_is_loaded(saved):
    assert equal(saved.load(), STATE)
    saved.save(STATE | {"rows": []})
    assert saved.load()["rows"] == []
    assert os.listdir(saved.folder) == ["last.pt"]


def test_flipped_bits_are_detected(saved):
    whole = saved.path.read_bytes()
    rng, detected = random.Random(0), 0
    for position in rng.sample(range(len(whole)), 150):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.randrange(8)
        saved.path.write_bytes(damaged)
        try:
            assert equal(saved.load(), STATE)  # the bit was in the padding
        except CheckpointError as error:
            assert str(saved.path) in str(error)
            detected += 1
    assert detected > 50


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_damaged(saved, keep):
    whole = saved.path.read_bytes()
    saved.path.write_bytes(whole[: int(keep * len(whole))])
    message = r"last.pt is damaged or no checkpoint \(.*\): delete it to start again"
    with pytest.raises(CheckpointError, match=message):
        saved.load()


def test_a_run_does_not_overwrite_a_damaged_checkpoint(tmp_path):
    (tmp_path / "last.pt").write_bytes(b"PK, but nothing after it")
    with pytest.raises(CheckpointError, match=r"last.pt is damaged or no checkpoint"):
        train(net(), plain(), TrainConfig(epochs=1, checkpoint=tmp_path))
    assert (tmp_path / "last.pt").read_bytes().startswith(b"PK,")


def test_loading_runs_no_code(saved, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    torch.save({"format": checkpoint.FORMAT, "evil": Evil()}, saved.path)
    with pytest.raises(CheckpointError, match="damaged or no checkpoint"):
        saved.load()
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize("content", [{"format": 1}, {"weights": 1}, [1, 2]], ids=str)
def test_another_format_raises(saved, content):
    torch.save(content, saved.path)
    with pytest.raises(CheckpointError, match="must be a checkpoint of format 2, got"):
        saved.load()


def test_a_file_in_place_of_the_folder_raises(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(CheckpointError, match=f"checkpoint must be a folder, got the file {file}"):
        Checkpoint(file)
    assert file.read_text() == "mine"


def test_io_errors_are_not_reported_as_damage(saved, monkeypatch):
    monkeypatch.setattr(checkpoint.zipfile, "ZipFile", Mock(side_effect=PermissionError("no")))
    with pytest.raises(PermissionError, match="no"):
        saved.load()


def test_a_full_disk_leaves_the_previous_checkpoint(saved, monkeypatch):
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

    monkeypatch.setattr(checkpoint, "open", Full, raising=False)
    with pytest.raises(OSError, match=r"cannot write the checkpoint .*last.pt: .*No space left"):
        saved.save(STATE | {"more": torch.zeros(10_000)})
    assert os.listdir(saved.folder) == ["last.pt"]
    assert equal(saved.load(), STATE)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [5, 10]),  # after each epoch
        (dict(checkpoint_every=4), [4, 8, 10]),  # and at the end
        (dict(checkpoint_seconds=1e-9), list(range(1, 11))),
        (dict(checkpoint_seconds=1e9), [10]),
        (dict(checkpoint_seconds=1e9, checkpoint_every=6), [6, 10]),
    ],
    ids=str,
)
def test_checkpoints_are_saved_as_often_as_configured(tmp_path, monkeypatch, options, expected):
    steps = []
    monkeypatch.setattr(
        Checkpoint, "save", lambda self, state: steps.append(state["state"]["step"])
    )
    train(net(), plain(), TrainConfig(epochs=2, batch_size=8, checkpoint=tmp_path, **options))
    assert steps == expected


def test_folder_of_an_old_version_is_refused(tmp_path):
    (tmp_path / "step-00000007").mkdir()
    with pytest.raises(CheckpointError, match=r"eattn 0\.1: delete it"):
        Checkpoint(tmp_path).load()
