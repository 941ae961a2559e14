"""Graphs of classifiers: whole series with padding, and steps of causal models."""

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
    "patches of a convolution": dict(mixer="ea-2", patch=4, embed="conv", max_len=LONGEST),
    "one patch": dict(mixer="ea-2", patch=LONGEST, pooling="flatten", max_len=LONGEST),
    "softmax of patches": dict(mixer="sa", patch=3, heads=2, max_len=LONGEST),
    "free": dict(mixer="ea", pooling="max", positions=False),
    "softmax": dict(mixer="sa", pooling="last", heads=2, max_len=LONGEST),
}


def made(**options):
    torch.manual_seed(0)
    return SequenceClassifier(C, classes=4, **dict(dim=8, depth=1) | options).eval()


@pytest.mark.parametrize("name", MODELS)
def test_sequence_matches_the_model_for_any_length(name, tmp_path):
    model = made(**MODELS[name])
    exported = Exported(export.sequence(model), tmp_path, onnx=name == "flatten")
    for B, L in ((1, 1), (2, 3), (2, 7), (5, LONGEST)):
        x, mask = draw(B, L, C, seed=L).float(), draw(B, L, seed=B) > -0.5
        with torch.no_grad():
            want = model(x, mask)
        for got in exported.every(x, mask):
            assert_close(got["logits"], want, **CLOSE)


@pytest.mark.parametrize(("causal", "graph"), [(False, export.sequence), (True, export.step)])
def test_onnx_axes_have_names(causal, graph):
    found = graph(made(mixer="ea-2", causal=causal)).onnx().model.graph
    both = [*found.inputs, *found.outputs]
    shapes = {value.name: [str(n) for n in value.shape] for value in both}
    assert shapes["x"] == (["batch", "3"] if causal else ["batch", "length", "3"])
    assert {shape[0] for shape in shapes.values()} == {"batch"}


def test_set_expansion_makes_an_exact_model_linear():
    model = made(mixer="ea")
    assert squares(export.sequence(model).torch())
    assert set_expansion(model, Quadrature(9)) == 1
    x, mask = draw(2, 30, C, seed=0).float(), torch.ones(2, 30, dtype=torch.bool)
    program = export.sequence(model).torch()
    assert not squares(program)
    with torch.no_grad():
        assert_close(program.module()(x, mask), model(x), **CLOSE)


def squares(program):
    """Return the shapes in a graph in which two axes have the length of the series."""
    found = [node.meta.get("val") for node in program.graph.nodes]
    shapes = [[str(n) for n in x.shape] for x in found if isinstance(x, torch.Tensor)]
    length = next(node.meta["val"].shape[1] for node in program.graph.nodes if node.name == "x")
    return [shape for shape in shapes if shape.count(str(length)) > 1]


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_step_of_a_causal_classifier_matches_the_model(pooling, tmp_path):
    """Only one pooling is traced, because they differ in one line."""
    model = made(mixer="ea-2", causal=True, pooling=pooling, calendar=["hour"])
    graph = export.step(model)
    x, times = draw(2, 6, C, seed=0).float(), torch.arange(6).expand(2, 6).unsqueeze(-1)
    for form in Exported(graph, tmp_path, onnx=False).forms if pooling == "mean" else [graph]:
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
        ({}, "only a causal classifier has a step"),
        (dict(causal=True, embed="conv"), "needs embed='linear'"),
        (dict(causal=True, patch=2), "needs patch=1"),
        (dict(causal=True, pooling="flatten", max_len=9), "needs pooling='mean'"),
        (dict(causal=True, mixer="ea"), "its state grows with each token"),
    ],
)
def test_error_of_a_missing_step_names_the_reason(options, why):
    with pytest.raises(ValueError, match=why):
        export.step(made(**options))


def test_max_len_of_one_raises():
    with pytest.raises(ValueError, match="max_len must be at least 2"):
        export.sequence(made(max_len=1)).torch()


def test_error_for_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(
        ModuleNotFoundError, match=r'onnxscript is not installed: pip install "eattn\[export\]"'
    ):
        export.sequence(made(mixer="ea-2")).onnx()
