"""Exported folders: what is in them, and that their examples run without eattn."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')
pytest.importorskip("transformers", reason='needs pip install "eattn[hf]"')

import pandas as pd
from exporting import ran
from language import make
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from eattn import export
from eattn.export import Graph
from eattn.hf import EAForCausalLM
from eattn.models import Forecaster
from eattn.timeseries import EAForecaster


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A language model with a tokenizer: where it was saved, and where it was exported to."""
    path = tmp_path_factory.mktemp("language")
    saved, out = path / "saved", path / "out"
    options = dict(mixer="ea-2", num_hidden_layers=1, max_position_embeddings=64)
    make(**options).float().save_pretrained(saved)
    Tokenizer(WordLevel({"def ": 7, "?": 1}, unk_token="?")).save(str(saved / "tokenizer.json"))
    about = export.save(saved, out)
    assert json.loads((out / "export.json").read_text()) == about
    return saved, out, about


def test_the_example_of_a_language_model_generates_greedily(language):
    saved, out, about = language
    assert about["example"]["input_ids"] == [7]
    model = EAForCausalLM.from_pretrained(saved)
    tokens = model.generate(torch.tensor([[7]]), max_new_tokens=20, do_sample=False)
    assert ran(out) == [[str(token) for token in tokens[0, 1:].tolist()]]


def test_the_json_tells_what_goes_in_and_out(language):
    saved, out, about = language
    step = about["graphs"]["step"]
    inputs = {port["name"]: port for port in step["inputs"]}
    shift = dict(name="layer0.shift", dtype="float32", shape=["B", 12], start="inf", state=True)
    assert inputs["layer0.shift"] == shift
    assert inputs["layer0.conv"]["shape"] == ["B", 3, 12]
    assert [port["name"] for port in step["outputs"]][1:] == [f"next.{n}" for n in inputs][1:]
    assert all(graph["difference"] <= 1e-4 for graph in about["graphs"].values())
    assert about["graphs"]["sequence"]["longest"] == about["longest"] == 64
    assert about["without"] == {}
    assert (out / about["tokenizer"]).read_bytes() == (saved / "tokenizer.json").read_bytes()


def test_the_example_of_a_forecaster_gives_its_forecast(tmp_path):
    hours = pd.date_range("2024-01-01", periods=150, freq="h")
    df = pd.DataFrame({"unique_id": "a", "ds": hours, "y": 5 + np.sin(np.arange(150) / 4)})
    options = dict(horizon=4, dim=8, depth=1, epochs=2, lags=3, quantiles=(0.1, 0.9))
    fitted = EAForecaster(mixer="ea-2", **options).fit(df)
    about = export.save(fitted, tmp_path / "out", format="torch")
    assert list(about["calendar"]) == ["hour"]
    assert (about["horizon"], about["lags"], about["quantiles"]) == (4, 3, [0.1, 0.9])
    assert np.array(about["offsets"]).shape == (2, 4)
    times = pd.to_datetime(about["example"]["times"])[: about["example"]["values"]]
    series = about["series"][0]
    wave = [series["mean"] + series["std"] * math.sin(i / 3) for i in range(len(times))]
    history = pd.DataFrame({"unique_id": "a", "ds": times, "y": wave})
    want = fitted.with_history(history).predict()
    rows = ran(tmp_path / "out")
    assert [pd.Timestamp(" ".join(row[:-1])) for row in rows] == want["ds"].tolist()
    found = [float(row[-1]) for row in rows]
    assert found == pytest.approx(want["EAForecaster"].tolist(), abs=1e-4)


@pytest.mark.parametrize("wrong", [1e-3, math.nan])
def test_a_graph_that_is_wrong_is_not_kept(tmp_path, monkeypatch, wrong):
    model = make(mixer="ea-2", num_hidden_layers=1).float()
    graph = export.step(model)
    monkeypatch.setattr("eattn.export.sequence", lambda _: graph)  # which is quicker to trace
    named = Graph.named
    monkeypatch.setattr(Graph, "__call__", lambda self, *given: damaged(self, given))

    def damaged(self, given):
        return {name: x + wrong for name, x in named(self, self.module(*given)).items()}

    with pytest.raises(RuntimeError, match="differs from the model by"):
        export.save(model, tmp_path / "out", format="torch")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_says_nothing_of_its_data_is_refused(tmp_path):
    with pytest.raises(TypeError, match="got Forecaster: `sequence` and `step` take its graphs"):
        export.save(Forecaster(), tmp_path / "out")
