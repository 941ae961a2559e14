"""Exported folders and their example scripts, which run without eattn."""

import functools
import json
import math
import runpy
import sys

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
from eattn.timeseries.calendar import calendar_columns


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """Return the folder of a saved language model, its export, and export.json."""
    path = tmp_path_factory.mktemp("language")
    saved, out = path / "saved", path / "out"
    shape = dict(mixer="ea-2", num_hidden_layers=1, vocab_size=260, max_position_embeddings=24)
    make(**shape, eos_token_id=[256, 257]).float().save_pretrained(saved)
    byte_tokenizer().save_pretrained(saved)
    about = export.save(saved, out)
    assert json.loads((out / "export.json").read_text()) == about
    return saved, out, about


def test_language_model_example_generates_like_the_model(language):
    saved, out, about = language
    assert about["example"] == {"input_ids": list(b"def "), "tokens": 21}
    assert about["eos_token_ids"] == [256, 257]
    model = EAForCausalLM.from_pretrained(saved)
    options = dict(max_new_tokens=21, do_sample=False, attention_mask=torch.ones(1, 4))
    tokens = model.generate(torch.tensor([list(b"def ")]), **options)[0].tolist()
    assert len(tokens) == 25
    text = bytes(token for token in tokens if token < 256).decode("utf-8", "replace")
    assert ran(out) == text + "\n"


def test_example_without_a_step_rereads_the_sequence(tmp_path):
    model = make(mixer="sa", num_hidden_layers=1, max_position_embeddings=12).float()
    about = export.save(model, tmp_path / "out", format="torch")
    assert list(about["graphs"]) == ["sequence"]
    assert (
        "use ea-N, ea-qN, la, la+gate, taylor, deltanet, gru or linear-rnn"
        in about["without"]["step"]
    )
    prompt, count = torch.tensor([about["example"]["input_ids"]]), about["example"]["tokens"]
    mask = torch.ones_like(prompt)
    tokens = model.generate(
        prompt, max_new_tokens=count, do_sample=False, attention_mask=mask, eos_token_id=None
    )
    assert ran(tmp_path / "out").split() == [str(token) for token in tokens[0].tolist()]


def test_export_json_describes_inputs_and_outputs(language):
    _, out, about = language
    step = about["graphs"]["step"]
    inputs = {port["name"]: port for port in step["inputs"]}
    shift = dict(name="layer0.shift", dtype="float32", shape=["batch", 12], start="inf", state=True)
    assert inputs["layer0.shift"] == shift
    assert inputs["layer0.conv"]["shape"] == ["batch", 3, 12]
    assert [port["name"] for port in step["outputs"]][1:] == [f"next.{n}" for n in inputs][1:]
    assert all(graph["difference"] <= 1e-4 for graph in about["graphs"].values())
    assert about["graphs"]["sequence"]["longest"] == about["longest"] == 24
    assert about["without"] == {}
    assert json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]["d"] == ord("d")


@pytest.mark.parametrize("name", ["sequence", "step"])
def test_graphs_contain_no_source_paths(language, name):
    assert b".py" not in (language[1] / f"{name}.onnx").read_bytes()


def test_tokenizer_of_another_model_raises(tmp_path):
    make(mixer="ea-2", num_hidden_layers=1).save_pretrained(tmp_path / "saved")
    byte_tokenizer().save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="has 257 tokens and the model vocab_size = 43"):
        export.save(tmp_path / "saved", tmp_path / "out")


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    """Return a forecaster with all kinds of covariates, its export, and export.json."""
    days = pd.date_range(end="2024-11-13", periods=400, freq="D")
    rng, sale = np.random.default_rng(0), np.arange(400) % 3 == 0
    common = {
        "ds": days,
        "price": 10 + rng.normal(size=400),
        "kind": np.where(sale, "sale", "usual"),
        "load": np.where(np.arange(400) % 11, 2.0, np.nan),
    }
    y = common["price"] + 3 * sale + days.weekday + 0.1 * rng.normal(size=400)
    parts = [pd.DataFrame({"unique_id": n, "y": y + n, "place": f"p{n}"} | common) for n in (0, 5)]
    columns = dict(
        futr_exog_list=["price", "kind"], hist_exog_list=["load"], stat_exog_list=["place"]
    )
    options = dict(pretrained=None, dim=8, depth=1, epochs=2, lr=0.02, fallback=False)
    options |= dict(horizon=4, quantiles=(0.05,), holidays="DE", lower=-99)
    fitted = EAForecaster(mixer="ea-q7", **options, **columns)
    fitted.fit(pd.concat(parts))
    assert fitted.model_.head.weight.abs().max() > 0.01  # training has changed the model
    out = tmp_path_factory.mktemp("forecaster") / "out"
    export.save(fitted, out, format="torch")
    return fitted, out, json.loads((out / "export.json").read_text())


def test_forecaster_example_prints_the_forecast(forecaster):
    fitted, out, about = forecaster
    assert (list(about["graphs"]), about["without"]) == (["step"], {})
    history, future = (pd.DataFrame(about["example"][name]) for name in ("history", "future"))
    assert future["ds"][0] == "2025-01-01 00:00:00"
    model = fitted.with_history(history.astype({"ds": "M8[ns]"}).assign(unique_id=0, place="p0"))
    want = model.predict(futr_df=future.assign(unique_id=0))
    header, *rows = [line.rsplit(maxsplit=10) for line in ran(out).splitlines()]
    assert header == ["ds", *map(str, about["levels"])]
    assert [pd.Timestamp(row[0]) for row in rows] == want["ds"].tolist()
    for name, level in (("EAForecaster", "0.5"), ("EAForecaster-q5", "0.05")):
        found = [float(row[header.index(level)]) for row in rows]
        assert found == pytest.approx(want[name].tolist(), rel=1e-4)


def test_forecaster_example_encodes_rows_like_the_model(forecaster, monkeypatch):
    fitted, out, about = forecaster
    monkeypatch.syspath_prepend(out)
    script, values = runpy.run_path(str(out / "example.py")), {}
    del sys.modules["graphs"]
    rows = [dict(row) for part in about["example"].values() for row in part]
    rows[3]["load"] = rows[5]["kind"] = None
    rows[7]["kind"], rows[8]["price"] = "other", 1e9
    series = about["series"][1]
    found = [script["known"](row, series, values) + script["past"](row, values) for row in rows]
    history = pd.DataFrame(rows).astype({"ds": "M8[ns]"}).assign(unique_id=5, place="p5")
    [read] = fitted.with_history(history.fillna({"y": 0.0})).series_
    futr, hist, stat = fitted.predictor_.covariates.encode_history(read)
    calendar = calendar_columns(read.ds, fitted.predictor_.fields)
    want = np.concatenate([calendar, futr, np.tile(stat, (len(rows), 1)), hist], 1)
    assert np.array(found).shape == want.shape == (52, 10 + 3 + 3 + 2 + 1)
    np.testing.assert_allclose(found, want, atol=1e-6)
    assert want[:, 13:16].sum(0).tolist() == [3, 3, 3]  # Christmas and New Year


def test_metadata_of_a_forecaster(forecaster):
    about = forecaster[2]
    assert about["calendar"] == {"day": 2, "weekday": 3}
    assert (about["horizon"], about["levels"][:2], about["seasons"]) == (4, [0.05, 0.1], [7])
    assert about["choices"] == ["trained", "seasonal naive", "naive", "drift"]
    assert [(one["choice"], one["lower"]) for one in about["series"]] == [(0, -99.0), (0, -99.0)]
    assert {"2014-12-25", "2034-12-26"} <= set(about["holidays"])


@pytest.fixture
def untraced(monkeypatch):
    """Replace slow tracing; return a function that sets an error of the logits after 5 steps."""
    graphs = {}

    def opened(folder, name, wrong=0.0):
        def run(inputs):
            first, *others = (inputs[port.name] for port in graphs[name].inputs)
            state = {port.name: inputs.get(port.name) for port in graphs[name].state}
            found = graphs[name](first, *([state] if name == "step" else []), *others)
            late = name == "step" and bool((inputs["seen"] > 5).any())
            return found | {"logits": found["logits"] + (wrong if late else 0)}

        return run

    def add_error(wrong):
        monkeypatch.setattr(bundle, "_open", functools.partial(opened, wrong=wrong))

    monkeypatch.setattr(Graph, "torch", lambda self: graphs.update({self.name: self}))
    monkeypatch.setattr(torch.export, "save", lambda program, path: None)
    add_error(0.0)
    return add_error


@pytest.mark.parametrize("wrong", [1e-3, math.nan])
def test_graph_that_differs_from_the_model_is_removed(tmp_path, untraced, wrong):
    untraced(wrong)
    with pytest.raises(RuntimeError, match="the exported step differs from the model by"):
        export.save(make(mixer="ea-2", num_hidden_layers=1), tmp_path / "out", format="torch")
    assert list(tmp_path.iterdir()) == []


def test_model_that_returns_nan_raises(tmp_path, untraced):
    model = make(mixer="ea-2", num_hidden_layers=1)
    torch.nn.init.constant_(model.model.norm.weight, math.nan)
    with pytest.raises(ValueError, match="the model returns NaN"):
        export.save(model, tmp_path / "out", format="torch")


def test_module_without_metadata_raises(tmp_path):
    with pytest.raises(TypeError, match=r"got Forecaster; use export\.sequence and export\.step"):
        export.save(Forecaster(), tmp_path / "out")
