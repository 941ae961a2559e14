"""`eattn classify`: fit, predict and score, and errors for invalid input."""

import csv
import io
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from eattn.cli.classify import app
from eattn.data import read_ts
from eattn.timeseries import EAClassifier
from eattn.timeseries.store import save

TINY = ("--dim", 8, "--depth", 1, "--epochs", 2)


def run(*args: object):
    """Return the stdout and stderr of a command, or raise its error."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def ts(path, labels, *, header="@classLabel true a,b c", channels=2, seed=0):
    """Write series of unequal length with missing values, 4 higher for the label a,b."""
    rng = np.random.default_rng(seed)
    lines = ["@problemName Tiny", header, "@data"]
    for label in labels:
        values = rng.normal(size=(channels, rng.integers(5, 9))) + 4 * (label == "a,b")
        rows = [",".join(f"{x:.3f}" for x in row) for row in values]
        rows[0] += ",?"
        rows[1:] = [row + ",1" for row in rows[1:]]
        lines.append(":".join(rows + [label] * (label is not None)))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a training file, a test file, a fitted model, and the output of fit."""
    folder = tmp_path_factory.mktemp("classify")
    train = ts(folder / "train.ts", ["a,b", "c"] * 30)
    test = ts(folder / "test.ts", ["a,b", "c"] * 5, seed=1)
    options = ("--dim", 16, "--depth", 1, "--epochs", 20, "--lr", 0.01, "--seed", 3)
    options += ("--validation", 0.2)
    output = run("fit", train, "--out", folder / "model", *options)
    return train, test, folder / "model", output


def test_fit_shows_progress_and_equals_the_estimator(trained):
    train, test, model, (out, err) = trained
    assert "epoch 1/20" in err
    assert " s left" in err
    assert out.startswith(f"{model}: 2 classes, 2 channels, weights of epoch ")
    assert "validation accuracy" in out
    samples = read_ts(train)
    options = dict(dim=16, depth=1, epochs=20, lr=0.01, random_state=3, validation_fraction=0.2)
    expected = EAClassifier(**options).fit(samples.X, samples.y)
    X = read_ts(test).X
    assert np.array_equal(EAClassifier.load(model).predict_proba(X), expected.predict_proba(X))


def test_predict_prints_csv_and_accuracy(trained):
    _, test, model, _ = trained
    out, err = run("predict", model, test)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["case"] for row in rows] == [str(n) for n in range(1, 11)]
    assert [row["label"] for row in rows] == ["a,b", "c"] * 5
    assert err == "accuracy 1.0000 (10 of 10 samples)\n"
    assert run("score", model, test)[0] == err


def test_predict_writes_probabilities(trained, tmp_path):
    _, test, model, _ = trained
    out = tmp_path / "predictions.csv"
    printed, _ = run("predict", model, test, "--out", out, "--proba")
    assert not printed
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    found = [[float(row["p(a,b)"]), float(row["p(c)"])] for row in rows]
    expected = EAClassifier.load(model).predict_proba(read_ts(test).X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"predictions\.csv already exists; use --force to overwrite it"
    ):
        run("predict", model, test, "--out", out)
    run("predict", model, test, "--out", out, "--force")
    assert out.read_text().startswith("case,label\n1,")
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.csv"]


def test_files_without_known_labels_have_no_accuracy(trained, tmp_path):
    _, _, model, _ = trained
    bare = ts(tmp_path / "bare.ts", [None] * 3, header="@classLabel false")
    other = ts(tmp_path / "other.ts", ["x"] * 3, header="@classLabel true x")
    for path, reason in (
        (bare, "no class labels to compare"),
        (other, "the model knows none of the labels"),
    ):
        out, err = run("predict", model, path)
        assert out.count("\n") == 4
        assert not err
        with pytest.raises(ValueError, match=reason):
            run("score", model, path)


def test_known_dataset_is_found_by_name(tmp_path):
    out, _ = run("fit", "JapaneseVowels", "--out", tmp_path / "model", *TINY)
    assert "9 classes, 12 channels" in out
    assert "of 370 samples" in run("score", tmp_path / "model", "jap")[0]


def test_model_is_overwritten_only_by_force(trained, tmp_path):
    train, *_ = trained
    run("fit", train, "--out", tmp_path / "model", *TINY)
    before = (tmp_path / "model" / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"already holds a model.*--force"):
        run("fit", train, "--out", tmp_path / "model", *TINY, "--mixer", "sa")
    assert (tmp_path / "model" / "config.json").read_bytes() == before
    options = ["--mixer", "sa", "--class-weight", "balanced", "--force"]
    run("fit", train, "--out", tmp_path / "model", *TINY, *options)
    written = json.loads((tmp_path / "model" / "config.json").read_text())["config"]["params"]
    assert (written["mixer"], written["class_weight"]) == ("sa", "balanced")


FILES = {
    "empty": ("", "train.ts is empty"),
    "text": ("@data\n1,2:a\n1,x:b\n", "train.ts, line 3: could not .* 'x'"),
    "one class": ("@data\n1,2:a\n3,4:a\n", "train.ts has only one class, 'a'"),
    "no labels": ("@classLabel false\n@data\n1,2\n3,4\n", "train.ts has no class labels"),
    "all missing": ("@data\n?,?:a\n?,?:b\n", "train.ts: X must contain values, got only NaN"),
    "identical": ("@data\n1,2:a\n1,2:b\n", "train.ts: X must contain different series"),
    "numbers": ("@targetLabel true\n@data\n1,2:1.5\n3,4:2\n", "train.ts has no class labels"),
}


@pytest.mark.parametrize("name", FILES)
def test_error_names_the_file_and_nothing_is_written(tmp_path, name):
    content, reason = FILES[name]
    train = tmp_path / "train.ts"
    train.write_text(content)
    with pytest.raises(ValueError, match=reason) as caught:
        run("fit", train, "--out", tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["train.ts"]


def test_errors_name_the_invalid_argument(trained, tmp_path):
    train, test, model, _ = trained
    save(tmp_path / "other", "forecaster", {}, {})
    narrow = ts(tmp_path / "narrow.ts", ["c"], channels=1)
    before = sorted(tmp_path.iterdir())
    for args, reason in [
        (("fit", "nowhere.ts"), r"nowhere\.ts does not exist; expected a \.ts file"),
        (("fit", "."), r"\. is a folder; expected a \.ts file"),
        (("fit", "JapaneseVowel"), "did you mean JapaneseVowels"),
        (("fit", "ETTh2"), "ETTh2 is a forecasting dataset; expected a classification dataset"),
        (("fit", train, "--mixer", "rnn"), "^unknown mixer 'rnn': use one of"),
        (("fit", train, "--validation", 2), "^validation_fraction must be"),
        (("fit", train, "--class-weight", "rare"), "^class_weight must be a dict, 'balanced'"),
        (("predict", model, test, "--out", tmp_path), "--out must be a file, but .* is a folder"),
        (("predict", model, test, "--out", tmp_path / "no" / "p.csv"), "does not exist"),
        (
            ("predict", tmp_path / "nowhere", test),
            "nowhere does not exist; expected the folder of a saved model",
        ),
        (("predict", model, narrow), r"narrow\.ts: X must have 2 channels as in fit, got 1"),
        (("score", tmp_path / "other", test), "other is a forecaster, not a classifier"),
    ]:
        out = ("--out", tmp_path / "model") if args[0] == "fit" else ()
        with pytest.raises(ValueError, match=reason):
            run(*args, *out)
    assert sorted(tmp_path.iterdir()) == before


def test_ensemble_of_causal_networks_classifies_streams(trained, tmp_path):
    train, test, *_ = trained
    run("fit", train, "--out", tmp_path / "model", *TINY, "--causal", "--ensemble", 2)
    model = EAClassifier.load(tmp_path / "model")
    assert (model.causal, model.ensemble, model.model_.kernels) == (True, 2, None)
    [x] = read_ts(test).X[:1]
    proba, state = model.predict_stream(x[None])
    assert proba.shape == (1, x.shape[1], 2)
    assert len(state) == 2
