"""Exported folders: what is in them, and that their examples run without eattn."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')
pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

import pandas as pd
from export_helpers import ran
from hf_helpers import make

from eattn import export
from eattn.export import Graph, bundle
from eattn.hf import EAForCausalLM
from eattn.lm import byte_tokenizer
from eattn.models import Forecaster
from eattn.timeseries import EAForecaster


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A language model with a tokenizer: where it was saved, and where it was exported to."""
    path = tmp_path_factory.mktemp("language")
    saved, out = path / "saved", path / "out"
    shape = dict(mixer="ea-2", num_hidden_layers=1, vocab_size=260, max_position_embeddings=24)
    make(**shape, eos_token_id=[256, 257]).float().save_pretrained(saved)
    byte_tokenizer().save_pretrained(saved)
    about = export.save(saved, out)
    assert json.loads((out / "export.json").read_text()) == about
    return saved, out, about


def test_the_example_of_a_language_model_writes_on(language):
    saved, out, about = language
    assert about["example"] == {"input_ids": list(b"def "), "tokens": 21}
    assert about["eos_token_ids"] == [256, 257]
    model = EAForCausalLM.from_pretrained(saved)
    options = dict(max_new_tokens=21, do_sample=False, attention_mask=torch.ones(1, 4))
    tokens = model.generate(torch.tensor([list(b"def ")]), **options)[0].tolist()
    assert len(tokens) == 25
    text = bytes(token for token in tokens if token < 256).decode("utf-8", "replace")
    assert ran(out) == text + "\n"


def test_the_json_tells_what_goes_in_and_out(language):
    _, out, about = language
    step = about["graphs"]["step"]
    inputs = {port["name"]: port for port in step["inputs"]}
    shift = dict(name="layer0.shift", dtype="float32", shape=["B", 12], start="inf", state=True)
    assert inputs["layer0.shift"] == shift
    assert inputs["layer0.conv"]["shape"] == ["B", 3, 12]
    assert [port["name"] for port in step["outputs"]][1:] == [f"next.{n}" for n in inputs][1:]
    assert all(graph["difference"] <= 1e-4 for graph in about["graphs"].values())
    assert about["graphs"]["sequence"]["longest"] == about["longest"] == 24
    assert about["without"] == {}
    assert json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]["d"] == ord("d")


@pytest.mark.parametrize("name", ["sequence", "step"])
def test_a_graph_names_no_files_of_ours(language, name):
    assert b".py" not in (language[1] / f"{name}.onnx").read_bytes()


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    make(mixer="ea-2", num_hidden_layers=1).save_pretrained(tmp_path / "saved")
    byte_tokenizer().save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="has 257 tokens and the model vocab_size = 43"):
        export.save(tmp_path / "saved", tmp_path / "out")


def test_the_example_of_a_forecaster_gives_its_forecast(tmp_path):
    hours = pd.date_range("2024-01-01", periods=150, freq="h")
    df = pd.DataFrame({"unique_id": "a", "ds": hours, "y": 5 + np.sin(np.arange(150) / 4)})
    options = dict(horizon=4, dim=8, depth=1, epochs=2, lags=3, quantiles=(0.1, 0.9))
    fitted = EAForecaster(mixer="ea-q7", **options).fit(df)
    about = export.save(fitted, tmp_path / "out", format="torch")
    assert list(about["calendar"]) == ["hour"]
    assert (about["horizon"], about["lags"], about["quantiles"]) == (4, 3, [0.1, 0.9])
    assert np.array(about["offsets"]).shape == (2, 4)
    times = pd.to_datetime(about["example"]["times"])[: about["example"]["values"]]
    series = about["series"][0]
    wave = [series["mean"] + series["std"] * math.sin(i / 3) for i in range(len(times))]
    history = pd.DataFrame({"unique_id": "a", "ds": times, "y": wave})
    want = fitted.with_history(history).predict()
    rows = [line.split() for line in ran(tmp_path / "out").splitlines()]
    assert [pd.Timestamp(" ".join(row[:-1])) for row in rows] == want["ds"].tolist()
    found = [float(row[-1]) for row in rows]
    assert found == pytest.approx(want["EAForecaster"].tolist(), abs=1e-4)


@pytest.fixture
def untraced(monkeypatch):
    """Graphs that are not traced, as that takes long: the model runs in their place."""
    monkeypatch.setattr(Graph, "torch", lambda self: None)
    monkeypatch.setattr(torch.export, "save", lambda program, path: None)
    monkeypatch.setattr(bundle, "_torch_runner", lambda graph, path: lambda given: graph(*given))


@pytest.mark.parametrize("wrong", [1e-3, math.nan])
def test_a_graph_that_goes_wrong_after_some_steps_is_not_kept(
    tmp_path, monkeypatch, untraced, wrong
):
    def runner(graph, path):
        def run(arguments):
            found = graph(*arguments)
            late = graph.continues and bool((arguments[1]["seen"] > 5).any())
            return found | {"logits": found["logits"] + (wrong if late else 0)}

        return run

    monkeypatch.setattr(bundle, "_torch_runner", runner)
    with pytest.raises(RuntimeError, match="the exported step differs from the model by"):
        export.save(make(mixer="ea-2", num_hidden_layers=1), tmp_path / "out", format="torch")
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_nan_is_refused(tmp_path, untraced):
    model = make(mixer="ea-2", num_hidden_layers=1)
    torch.nn.init.constant_(model.model.norm.weight, math.nan)
    with pytest.raises(ValueError, match="the model gives NaN"):
        export.save(model, tmp_path / "out", format="torch")


def test_a_model_that_says_nothing_of_its_data_is_refused(tmp_path):
    with pytest.raises(TypeError, match="got Forecaster: `sequence` and `step` take its graphs"):
        export.save(Forecaster(), tmp_path / "out")
