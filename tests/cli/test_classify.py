"""`eattn classify`: from a .ts file to a model to labels, and what is said of bad input."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eattn.cli.classify import app
from eattn.data import read_ts
from eattn.timeseries import EAClassifier
from eattn.timeseries.store import save

TINY = ("--dim", 8, "--depth", 1, "--epochs", 2)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.delenv("EATTN_DATA", raising=False)
    yield
    torch.set_num_threads(before)


def run(*args: object):
    """Standard output and standard error."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def ts(path, labels, *, header="@classLabel true a,b c", channels=2, seed=0):
    """Series of unequal length with missing values, higher by 4 where the label is a,b."""
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
    """A training file, a test file, and a model that was fitted by the command."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("classify")
    train = ts(folder / "train.ts", ["a,b", "c"] * 30)
    test = ts(folder / "test.ts", ["a,b", "c"] * 5, seed=1)
    options = ("--dim", 16, "--depth", 1, "--epochs", 20, "--lr", 0.01, "--seed", 3)
    said = run("fit", train, "--out", folder / "model", *options)
    return train, test, folder / "model", said


@pytest.mark.parametrize("command", [[], ["fit"], ["predict"], ["score"]], ids=" ".join)
def test_every_command_has_help_with_an_example(command):
    assert "Example: eattn classify" in run(*command, "--help")[0]


def test_fit_shows_progress_and_says_what_it_kept(trained):
    _, _, model, (out, err) = trained
    assert "epoch 1/20" in err
    assert " s left" in err
    assert out.startswith(f"{model}: 2 classes, 2 channels, epoch ")
    assert "held out" in out


def test_fit_is_what_the_estimator_does_with_the_same_options(trained):
    train, test, model, _ = trained
    cases = read_ts(train)
    options = dict(dim=16, depth=1, epochs=20, lr=0.01, random_state=3)
    expected = EAClassifier(**options).fit(cases.X, cases.y)
    X = read_ts(test).X
    assert np.array_equal(EAClassifier.load(model).predict_proba(X), expected.predict_proba(X))


def test_predict_prints_csv_and_the_accuracy_beside_it(trained):
    _, test, model, _ = trained
    out, err = run("predict", model, test)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["case"] for row in rows] == [str(n) for n in range(1, 11)]
    assert [row["label"] for row in rows] == ["a,b", "c"] * 5
    assert err == "accuracy 1.0000: 10 of 10 cases\n"
    assert run("score", model, test)[0] == err


def test_predict_writes_probabilities_to_a_file(trained, tmp_path):
    _, test, model, _ = trained
    out = tmp_path / "predictions.csv"
    printed, _ = run("predict", model, test, "--out", out, "--proba")
    assert not printed
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    found = [[float(row["p(a,b)"]), float(row["p(c)"])] for row in rows]
    expected = EAClassifier.load(model).predict_proba(read_ts(test).X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"predictions\.csv exists already: --force overwrites it"):
        run("predict", model, test, "--out", out)
    run("predict", model, test, "--out", out, "--force")
    assert out.read_text().startswith("case,label\n1,")
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.csv"]


def test_files_without_labels_or_with_placeholders_are_predicted_silently(trained, tmp_path):
    _, _, model, _ = trained
    bare = ts(tmp_path / "bare.ts", [None] * 3, header="@classLabel false")
    held = ts(tmp_path / "held.ts", ["x"] * 3, header="@classLabel true x")
    for path, told in (bare, "no class labels to compare"), (held, "none of the model's labels"):
        out, err = run("predict", model, path)
        assert out.count("\n") == 4
        assert not err
        with pytest.raises(ValueError, match=told):
            run("score", model, path)


def test_a_known_set_goes_by_its_name(tmp_path):
    out, _ = run("fit", "JapaneseVowels", "--out", tmp_path / "model", *TINY)
    assert "9 classes, 12 channels" in out
    assert "of 370 cases" in run("score", tmp_path / "model", "jap")[0]


def test_a_model_is_overwritten_by_force_only(trained, tmp_path):
    train, *_ = trained
    run("fit", train, "--out", tmp_path / "model", *TINY)
    before = (tmp_path / "model" / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"holds a model already.*--force"):
        run("fit", train, "--out", tmp_path / "model", *TINY, "--mixer", "sa")
    assert (tmp_path / "model" / "config.json").read_bytes() == before
    run("fit", train, "--out", tmp_path / "model", *TINY, "--mixer", "sa", "--force")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["config"]["params"]["mixer"] == "sa"


FILES = {
    "empty": ("", "train.ts is empty"),
    "no data": ("@classLabel true a\n", "train.ts has no line @data"),
    "no cases": ("@classLabel true a\n@data\n", "train.ts has no samples"),
    "ragged": ("@data\n1,2:3,4:a\n1,2:3:b\n", "train.ts, line 3: Channel 1 in case 2"),
    "a word": ("@data\n1,2:a\n1,x:b\n", "train.ts, line 3: could not .* 'x'"),
    "one class": ("@data\n1,2:a\n3,4:a\n", "train.ts has one class only, 'a'"),
    "no labels": ("@classLabel false\n@data\n1,2\n3,4\n", "train.ts has no class labels"),
    "nothing known": ("@data\n?,?:a\n?,?:b\n", "train.ts: X must hold values, got none"),
    "all the same": ("@data\n1,2:a\n1,2:b\n", "train.ts: X must differ from case to case"),
    "numbers": ("@targetLabel true\n@data\n1,2:1.5\n3,4:2\n", "train.ts has no class labels"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_told_and_nothing_is_written(tmp_path, name):
    content, told = FILES[name]
    train = tmp_path / "train.ts"
    train.write_text(content)
    with pytest.raises(ValueError, match=told) as caught:
        run("fit", train, "--out", tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["train.ts"]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ("nowhere.ts", r"nowhere\.ts must be a \.ts file, there is none"),
        (".", "must be a .ts file, got a folder"),
        ("JapaneseVowel", "did you mean JapaneseVowels"),
        ("ETTh2", "ETTh2 is a set to forecast"),
    ],
)
def test_bad_names_are_told(tmp_path, train, told):
    with pytest.raises(ValueError, match=told):
        run("fit", train, "--out", tmp_path / "model")


def test_bad_options_are_told(trained, tmp_path):
    train, test, model, _ = trained
    with pytest.raises(ValueError, match=r"^unknown mixer 'rnn': known are"):
        run("fit", train, "--out", tmp_path / "model", "--mixer", "rnn")
    with pytest.raises(ValueError, match=r"^validation_fraction must be"):
        run("fit", train, "--out", tmp_path / "model", "--validation", 2)
    for out, told in (tmp_path, "the folder"), (tmp_path / "no" / "p.csv", "does not exist"):
        with pytest.raises(ValueError, match=f"--out must be a file, got .*{told}"):
            run("predict", model, test, "--out", out)
    assert not list(tmp_path.iterdir())


def test_bad_models_are_told(trained, tmp_path):
    _, test, model, _ = trained
    with pytest.raises(ValueError, match="nowhere must be the folder of a saved model"):
        run("predict", tmp_path / "nowhere", test)
    save(tmp_path / "other", "forecaster", {}, {})
    with pytest.raises(ValueError, match="other is a forecaster, not a classifier"):
        run("score", tmp_path / "other", test)
    narrow = ts(tmp_path / "narrow.ts", ["c"], channels=1)
    with pytest.raises(ValueError, match=r"narrow\.ts: X must have 2 channels, as in fit, got 1"):
        run("predict", model, narrow)
