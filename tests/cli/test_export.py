"""`eattn export` of saved models, and its errors."""

import ast
import json
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')
pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

from export_helpers import ran
from hf_helpers import make

from eattn.cli import main
from eattn.timeseries import EAClassifier, EAForecaster

CLASSES = ["calm", "storm"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Save a trained classifier and an untrained language model."""
    path = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(2, 20)) + i % 2 for i in range(12)]
    X[3][0, 4] = np.nan
    options = dict(dim=8, depth=1, epochs=2, stride=3)
    EAClassifier("ea-2", **options).fit(X, CLASSES * 6).save(path / "classifier")
    make(mixer="ea-2", num_hidden_layers=1).float().save_pretrained(path / "language")
    return path


@pytest.fixture(scope="module", params=["onnx", pytest.param("torch", marks=pytest.mark.full)])
def exported(request, models, tmp_path_factory):
    """Export the classifier over an earlier export."""
    out = tmp_path_factory.mktemp(request.param) / "out"
    out.mkdir()
    (out / "step.onnx").write_bytes(b"old")
    model, options = str(models / "classifier"), ["--format", request.param, "--force"]
    assert main(["export", model, *options, "--out", str(out)]) == 0
    ending = {"onnx": "onnx", "torch": "pt2"}[request.param]
    assert sorted(path.name for path in out.iterdir()) == [
        "example.py",
        "export.json",
        "graphs.py",
        f"sequence.{ending}",
    ]
    return out


def test_classifier_example_prints_its_probabilities(models, exported):
    fitted = EAClassifier.load(models / "classifier")
    mean, std = fitted.scaler_.mean[:, None], fitted.scaler_.std[:, None]
    X = [mean + std * np.sin(np.arange(n) / 3) for n in (20, 10)]
    want = fitted.predict_proba(X)
    lines = ran(exported).splitlines()
    for line, shares, label in zip(lines, want, fitted.predict(X), strict=True):
        first, _, rest = line.partition(" ")
        assert first == label
        named = dict(zip(CLASSES, shares.tolist(), strict=True))
        assert ast.literal_eval(rest) == pytest.approx(named, abs=1e-4)


def test_classifier_without_a_step_reports_the_reason(exported):
    about = json.loads((exported / "export.json").read_text())
    assert about["classes"] == CLASSES
    assert list(about["graphs"]) == ["sequence"]
    assert "only a causal classifier has a step" in about["without"]["step"]


def test_forecaster_example_prints_quantiles(tmp_path, capsys):
    """The series has integer times and no covariates, so its graph reads values alone."""
    fitted = EAForecaster(3, "linear-rnn", pretrained=None, dim=8, depth=1, epochs=1)
    fitted.fit(0.5 + np.sin(np.arange(150) / 4)).save(tmp_path / "model")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "model"), "--out", str(out)]) == 0
    assert f"{out / 'step.onnx'}: step, " in capsys.readouterr().out
    assert not (out / "sequence.onnx").exists()
    history = json.loads((out / "export.json").read_text())["example"]["history"]
    want = fitted.with_history([row["y"] for row in history]).predict()["EAForecaster"].tolist()
    rows = [line.split() for line in ran(out).splitlines()]
    assert [row[0] for row in rows] == ["ds", "198", "199", "200"]
    middle = rows[0].index("0.5")
    assert [float(row[middle]) for row in rows[1:]] == pytest.approx(want, abs=1e-4)


def test_forecaster_without_a_step_gives_one_line(tmp_path, capsys):
    wave = np.sin(np.arange(60) / 4)
    EAForecaster(3, "ea", pretrained=None, dim=8, depth=1, epochs=1).fit(wave).save(
        tmp_path / "exact"
    )
    line = error_of([tmp_path / "exact", "--out", tmp_path / "out"], capsys)
    assert "a step of mixer 'ea' cannot be exported" in line
    assert not (tmp_path / "out").exists()


def corrupted(models, tmp_path):
    """Yield folders without a usable model, each with its error message."""
    shutil.copytree(models / "language", tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    yield "cut", "cut: the file with the weights is damaged"
    shutil.copytree(models / "classifier", tmp_path / "changed")
    config = tmp_path / "changed" / "config.json"
    config.write_text(config.read_text().replace("calm", "cold"))
    yield "changed", "is corrupt: an entry is missing or was changed"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    yield "other", "holds a model of type 'bert'"
    (tmp_path / "masked").mkdir()
    config = '{"model_type": "eattn", "architectures": ["EAForMaskedLM"]}'
    (tmp_path / "masked" / "config.json").write_text(config)
    yield "masked", "architectures ['EAForMaskedLM']; only EAForCausalLM of eattn can be exported"
    yield "nowhere", "nowhere holds no saved model"


def error_of(args, capsys):
    """Run a command that fails, and return its single line on stderr."""
    capsys.readouterr()
    assert main(["export", *map(str, args)]) != 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_folder_without_a_model_gives_one_line(models, tmp_path, capsys):
    for name, message in corrupted(models, tmp_path):
        assert message in error_of([tmp_path / name, "--out", tmp_path / "out"], capsys)
        assert not (tmp_path / "out").exists()


def test_files_are_overwritten_only_with_force(models, exported, tmp_path, capsys):
    model = models / "classifier"
    line = error_of([model, "--out", exported], capsys)
    assert "already holds an exported model; use force=True (--force) to overwrite it" in line
    (tmp_path / "mine.txt").write_text("mine")
    line = error_of([model, "--out", tmp_path, "--force"], capsys)
    assert "holds mine.txt, which is not part of an exported model" in line
    line = error_of([model, "--out", tmp_path / "x", "--format", "tflite"], capsys)
    assert "format must be one of onnx, torch, got 'tflite'" in line


def test_error_names_the_missing_package(models, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    line = error_of([models / "classifier", "--out", tmp_path / "out"], capsys)
    assert 'onnxruntime is not installed: pip install "eattn[export]"' in line
