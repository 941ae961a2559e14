"""`eattn diagnose` for classifiers and forecasters, and its errors."""

import json

import numpy as np
import pandas as pd
import pytest

from eattn.cli import main
from eattn.timeseries import EAClassifier, EAForecaster

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a classifier, a forecaster, and data for each."""
    path = tmp_path_factory.mktemp("diagnose")
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(2, 15)) + i % 2 for i in range(12)]
    y = ["a", "b"] * 6
    EAClassifier("ea-2", dim=8, depth=2, epochs=1).fit(X, y).save(path / "classifier")
    lines = (":".join(",".join(f"{v:.3f}" for v in row) for row in x) for x in X)
    head = "@problemName made\n@univariate false\n@dimensions 2\n@equalLength true\n"
    head += "@seriesLength 15\n@classLabel true a b\n@data\n"
    text = head + "".join(f"{line}:{label}\n" for line, label in zip(lines, y, strict=True))
    (path / "TEST.ts").write_text(text)
    wave = np.sin(np.arange(150) / 4)
    EAForecaster(horizon=3, pretrained=None, dim=8, depth=1, epochs=1).fit(wave).save(
        path / "forecaster"
    )
    rows = "".join(f"{i},{v:.4f}\n" for i, v in enumerate(wave))
    (path / "wave.csv").write_text("ds,y\n" + rows)
    return path


def test_classifier_is_reported_by_layer_and_plotted(folder, tmp_path, capsys):
    files = [tmp_path / "d.png", tmp_path / "d.jsonl"]
    model, data = str(folder / "classifier"), str(folder / "TEST.ts")
    assert main(["diagnose", model, data, "--plot", str(files[0]), "--json", str(files[1])]) == 0
    text = capsys.readouterr().out
    assert text.count("ea-2") == 2
    assert "within 0.01" in text and "outside(q)" in text and "ea-q" in text
    rows = [json.loads(line) for line in files[1].read_text().splitlines()]
    layers = [row for row in rows if row["what"] == "layer"]
    assert len(layers) == 2
    assert set(layers[0]["outside"]) == {"q", "k"} and len(layers[0]["grids"]) == 2
    assert files[0].stat().st_size > 10_000


def test_forecaster_is_reported(folder, capsys):
    assert main(["diagnose", str(folder / "forecaster"), str(folder / "wave.csv")]) == 0
    assert "ea-6" in capsys.readouterr().out


def test_forecaster_with_covariates_is_reported(tmp_path, capsys):
    wave = np.sin(np.arange(150) / 4)
    frame = pd.DataFrame({"hour": range(150), "load": wave, "price": wave**2})
    model = EAForecaster(
        horizon=3, pretrained=None, dim=8, depth=1, epochs=1, futr_exog_list=["price"]
    )
    model.fit(frame, time_col="hour", target_col="load").save(tmp_path / "model")
    frame.to_csv(tmp_path / "data.csv", index=False)
    assert main(["diagnose", str(tmp_path / "model"), str(tmp_path / "data.csv")]) == 0
    assert "ea-6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["classifier", "wave.csv"], "wave.csv"),
        (["classifier", "none.ts"], "none.ts does not exist; expected a .ts file"),
        (["nowhere", "TEST.ts"], "nowhere holds no saved model"),
        (["classifier", "TEST.ts", "--tolerance", "2"], "tolerance must be above 0 and below 1"),
        (
            ["classifier", "TEST.ts", "--plot", "d.pdf"],
            "a plot must be a .png or .svg file, got d.pdf",
        ),
    ],
)
def test_errors_are_one_line(folder, args, message, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["diagnose", *args]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_model_without_element_wise_attention_is_an_error(folder, tmp_path, capsys):
    wave = np.sin(np.arange(150) / 4)
    EAForecaster(horizon=3, mixer="gru", pretrained=None, dim=8, depth=1, epochs=1).fit(wave).save(
        tmp_path / "gru"
    )
    assert main(["diagnose", str(tmp_path / "gru"), str(folder / "wave.csv")]) == 1
    assert "has no element-wise attention layer" in capsys.readouterr().err
