"""Graphs of the classifier of `EAClassifier`: whole series with padding, and causal steps."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason='needs pip install "eattn[export]"')

from export_helpers import CLOSE, Exported, state_of
from op_helpers import draw
from torch.testing import assert_close

from eattn import export
from eattn.models import ClassifierEnsemble, KernelClassifier, ShapeClassifier

C = 3


def made(**options):
    torch.manual_seed(0)
    return ShapeClassifier(C, 4, **dict(mixer="ea-2", dim=8, depth=1) | options).eval()


def with_kernels():
    kernels = KernelClassifier(C, 4, dilations=(1,), thresholds=1)
    kernels.draw([draw(5, 30, C, seed=0).float()], torch.Generator().manual_seed(0))
    kernels.head.weight.copy_(0.1 * draw(*kernels.head.weight.shape, seed=1))
    return ClassifierEnsemble([made(stride=2), made(depth=0)], kernels)


@pytest.mark.parametrize("make", [made, with_kernels], ids=["network", "ensemble"])
def test_sequence_matches_the_model_for_any_length(make, tmp_path):
    model = make()
    exported = Exported(export.sequence(model), tmp_path, onnx=False)
    for B, L in ((1, 1), (2, 3), (2, 7), (5, 40)):
        x, mask = draw(B, L, C, seed=L).float(), draw(B, L, seed=B) > -0.5
        with torch.no_grad():
            want = model(x, mask)
        for got in exported.every(x, mask):
            assert_close(got["logits"], want, **CLOSE)


def test_step_of_a_causal_classifier_matches_the_model(tmp_path):
    model = made(causal=True)
    graph = export.step(ClassifierEnsemble([model]))
    x, state = draw(2, 6, C, seed=0).float(), graph.empty(2)
    with torch.no_grad():
        want = model(x, every=True)
    for form in Exported(graph, tmp_path, onnx=False).forms:
        for t in range(6):
            out = form(x[:, t], state)
            state = state_of(out)
            assert_close(out["logits"], want[:, t], **CLOSE)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (made, "only a causal classifier has a step"),
        (lambda: ClassifierEnsemble([made(causal=True)] * 2), "needs ensemble=1, got 2 networks"),
    ],
)
def test_error_of_a_missing_step_names_the_reason(make, why):
    with pytest.raises(ValueError, match=why):
        export.step(make())
