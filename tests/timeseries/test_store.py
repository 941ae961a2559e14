"""Models are saved atomically, and errors name the folder in one line."""

import json
import os

import pytest
import torch
from safetensors import safe_open

from eattn.timeseries import store
from eattn.timeseries.store import CONFIG, WEIGHTS, ModelError, check_free, load, save

OPTIONS = {"dim": 8, "names": ["ä", "b"], "lr": 0.1, "patch": None}
SHARED = torch.arange(6.0).reshape(2, 3)
TENSORS = {
    "w": SHARED,
    "transposed": SHARED.T,
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "scalar": torch.tensor(0.1, dtype=torch.float64),
    "none": torch.zeros(0, 3),
}


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "model", "classifier", OPTIONS, TENSORS)
    return tmp_path / "model"


def rewrite(folder, **changes):
    written = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps(written))


def flip(folder):
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def test_loaded_content_equals_the_saved(folder):
    config, tensors = load(folder, "classifier")
    assert config == OPTIONS
    assert tensors.keys() == TENSORS.keys()
    for name, x in TENSORS.items():
        assert tensors[name].dtype == x.dtype
        assert torch.equal(tensors[name], x)
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}
    assert json.loads((folder / CONFIG).read_text(encoding="utf-8"))["kind"] == "classifier"
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        assert set(file.keys()) == set(TENSORS)


def test_parents_are_created_and_empty_folders_used(tmp_path):
    target = tmp_path / "a" / "b"
    target.mkdir(parents=True)
    save(target, "forecaster", {}, {})
    save(tmp_path / "c" / "d", "forecaster", {}, {})
    assert load(target, "forecaster") == load(tmp_path / "c" / "d", "forecaster") == ({}, {})


def test_force_overwrites_a_model_but_no_other_files(folder):
    with pytest.raises(ModelError, match=r"model already holds a model; use force=True .--force."):
        save(folder, "classifier", {"dim": 9}, {})
    assert load(folder, "classifier")[0] == OPTIONS
    save(folder, "forecaster", {"dim": 9}, {}, force=True)
    assert load(folder, "forecaster") == ({"dim": 9}, {})
    assert os.listdir(folder.parent) == ["model"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"holds notes\.txt, which is not part of a model"):
        save(folder, "classifier", {}, {}, force=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_unwritable_target_raises(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ModelError, match=r"cannot create .*model: .*file is a file"):
        check_free(tmp_path / "file" / "model")
    monkeypatch.setattr("os.access", lambda *args: False)  # root may write anywhere
    with pytest.raises(ModelError, match=f"cannot create .*new: {tmp_path} is not writable"):
        check_free(tmp_path / "new")
    with pytest.raises(ModelError, match="file is a file; expected a folder"):
        check_free(tmp_path / "file", force=True)
    with pytest.raises(ModelError, match="file is a file; expected the folder of a saved model"):
        load(tmp_path / "file", "classifier")


def test_config_must_be_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path / "model", "classifier", {"lr": float("nan")}, {})
    assert not os.listdir(tmp_path)


CORRUPTIONS = {
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "weights.safetensors is missing"),
    "no config": (lambda f: (f / CONFIG).unlink(), "config.json is missing"),
    "half a config": (lambda f: (f / CONFIG).write_text('{"format": 1'), "corrupt: invalid JSON"),
    "bytes": (lambda f: (f / CONFIG).write_bytes(b"\xff\xfe\x00"), "is corrupt: invalid JSON"),
    "a list": (lambda f: (f / CONFIG).write_text("[]"), "does not describe an eattn model"),
    "other model": (
        lambda f: (f / CONFIG).write_text('{"model_type": "bert"}'),
        "does not describe an eattn model",
    ),
    "changed": (lambda f: rewrite(f, config=OPTIONS | {"dim": 9}), "was changed"),
    "no checksum": (lambda f: rewrite(f, sha256={}), "missing or was changed"),
    "no kind": (lambda f: rewrite(f, kind=None), "missing or was changed"),
    "a bit": (flip, r"weights\.safetensors is corrupt: its checksum"),
    "truncated": (lambda f: os.truncate(f / WEIGHTS, 9), r"weights\.safetensors is corrupt"),
    "newer": (lambda f: rewrite(f, format=5, eattn="7.1"), "reads up to 4; upgrade eattn.*7.1"),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_reported_in_one_line(folder, name):
    corrupt, message = CORRUPTIONS[name]
    corrupt(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load(folder, "classifier")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_must_be_safetensors(folder):
    (folder / WEIGHTS).write_bytes(b"PK\x03\x04" * 9)
    config = json.loads((folder / CONFIG).read_text())["sha256"]["config"]
    weights = store._checksum((folder / WEIGHTS).read_bytes())
    rewrite(folder, sha256={"config": config, "weights": weights})
    with pytest.raises(ModelError, match="is not a safetensors file"):
        load(folder, "classifier")


def test_other_kinds_and_missing_folders_raise(folder, tmp_path):
    with pytest.raises(ModelError, match="model is a classifier, not a forecaster"):
        load(folder, "forecaster")
    with pytest.raises(ModelError, match="nowhere does not exist; expected the folder of a"):
        load(tmp_path / "nowhere", "classifier")
