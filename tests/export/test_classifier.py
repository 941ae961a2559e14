"""Classifiers as graphs: whole series with padding, and what a step would need."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')

from export_helpers import CLOSE, Exported, state_of
from op_helpers import draw
from torch.testing import assert_close

from eattn import Quadrature, export
from eattn.models import SequenceClassifier
from eattn.nn import set_expansion

C, LONGEST = 3, 40
MODELS = {
    "flatten": dict(mixer="ea-2", pooling="flatten", embed="conv", max_len=LONGEST),
    "patches": dict(mixer="ea-q7+center", patch=4, max_len=LONGEST),
    "free": dict(mixer="ea", pooling="max", positions=False),
    "softmax": dict(mixer="sa", pooling="last", heads=2, max_len=LONGEST),
}


def made(**options):
    torch.manual_seed(0)
    return SequenceClassifier(C, classes=4, **dict(dim=8, depth=1) | options).eval()


@pytest.mark.parametrize("name", MODELS)
def test_series_of_any_length_give_what_the_model_gives(name, tmp_path):
    model = made(**MODELS[name])
    exported = Exported(export.sequence(model), tmp_path, onnx=name == "flatten")
    for B, L in ((1, exported.graph.shortest), (2, 7), (5, LONGEST)):
        x, mask = draw(B, L, C, seed=L).float(), draw(B, L, seed=B) > -0.5
        with torch.no_grad():
            want = model(x, mask)
        for got in exported.every(x, mask):
            assert_close(got["logits"], want, **CLOSE)


def test_an_exact_model_in_linear_time_is_exported_as_such():
    model = made(mixer="ea")
    assert squares(export.sequence(model).torch())
    assert set_expansion(model, Quadrature(9)) == 1
    x, mask = draw(2, 30, C, seed=0).float(), torch.ones(2, 30, dtype=torch.bool)
    program = export.sequence(model).torch()
    assert not squares(program)
    with torch.no_grad():
        assert_close(program.module()(x, mask), model(x), **CLOSE)


def squares(program):
    """What in a graph has the length of the series twice among its axes."""
    found = [node.meta.get("val") for node in program.graph.nodes]
    shapes = [[str(n) for n in x.shape] for x in found if isinstance(x, torch.Tensor)]
    length = next(node.meta["val"].shape[1] for node in program.graph.nodes if node.name == "x")
    return [shape for shape in shapes if shape.count(str(length)) > 1]


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_a_causal_classifier_has_a_step(pooling, tmp_path):
    """Traced for one way of pooling: they differ in a line."""
    model = made(mixer="ea-2", causal=True, pooling=pooling, calendar=["hour"])
    graph = export.step(model)
    x, times = draw(2, 6, C, seed=0).float(), torch.arange(6).expand(2, 6).unsqueeze(-1)
    for form in Exported(graph, tmp_path).forms if pooling == "mean" else [graph]:
        state = graph.empty(2)
        for t in range(6):
            out = form(x[:, t], state, times[:, t].clone())
            state = state_of(out)
            with torch.no_grad():
                want = model(x[:, : t + 1], calendar=times[:, : t + 1])
            assert_close(out["logits"], want, **CLOSE)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "no step unless it is causal"),
        (dict(causal=True, embed="conv"), "needs embed='linear'"),
        (dict(causal=True, patch=2), "needs patch=1"),
        (dict(causal=True, pooling="flatten", max_len=9), "needs pooling='mean'"),
        (dict(causal=True, mixer="ea"), "keeps every token"),
    ],
)
def test_what_has_no_step_says_why(options, why):
    with pytest.raises(ValueError, match=why):
        export.step(made(**options))


def test_one_sample_is_no_length_to_vary():
    with pytest.raises(ValueError, match="max_len must be at least 2"):
        export.sequence(made(max_len=1)).torch()


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ModuleNotFoundError, match=r'onnxscript: pip install "eattn\[export\]"'):
        export.sequence(made(mixer="ea-2")).onnx()
