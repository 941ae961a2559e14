"""Models as graphs that run elsewhere: `torch.export` programs, and ONNX for onnxruntime.

Of a classifier, a forecaster or a causal language model there is the graph of a whole `sequence`,
for any batch and length, and of one `step`, with the state as named tensors in and out. All are in
float32. ONNX needs `pip install "eattn[export]"`.

>>> import torch
>>> from eattn.models import Forecaster
>>> graph = step(Forecaster(dim=8, depth=1, mixer="ea-2"))
>>> graph.input_names
['x', 'layer0.s', 'layer0.z', 'layer0.shift', 'seen']
>>> program = graph.torch().module()
>>> expected, state = program(torch.randn(5, 1), graph.empty(5))
>>> expected, state = program(torch.randn(5, 1), state)
"""

import copy
from typing import Any

from torch import nn

from eattn.export import classifier, forecaster
from eattn.export.bundle import save
from eattn.export.graph import Graph, Port
from eattn.models import Forecaster, SequenceClassifier

__all__ = ["Graph", "Port", "save", "sequence", "step"]


def sequence(model: Any) -> Graph:
    """The graph of whole sequences, of any length, and of the state after them if there is one.

    `model` is a `SequenceClassifier`, a `Forecaster`, an `EAForCausalLM`, or a fitted estimator of
    `eattn.timeseries`. What cannot be exported raises ValueError.
    """
    graphs, args = _graphs_of(model)
    return graphs.sequence(*args)


def step(model: Any) -> Graph:
    """The graph of one more token, with the state before it in and the state after it out.

    For models as in `sequence` whose state has a constant size: those of ea-N and ea-qN have.
    """
    graphs, args = _graphs_of(model)
    return graphs.step(*args)


def _graphs_of(model: Any) -> tuple[Any, tuple[Any, ...]]:
    """The module whose `sequence` and `step` are meant, and their arguments."""
    inner = getattr(model, "model_", model)  # of an estimator
    if not isinstance(inner, nn.Module):
        raise TypeError(f"model must be a model or a fitted estimator, got {type(model).__name__}")
    plain = copy.deepcopy(inner).cpu().float().eval().requires_grad_(False)
    if isinstance(plain, SequenceClassifier):
        return classifier, (plain,)
    if isinstance(plain, Forecaster):
        return forecaster, (plain, 1 if inner is model else plain.channels)
    if any(kind.__name__ == "EAForCausalLM" for kind in type(plain).__mro__):
        from eattn.export import language  # which imports transformers

        return language, (plain,)
    raise TypeError(
        "model must be a SequenceClassifier, a Forecaster, an EAForCausalLM or a fitted estimator,"
        f" got {type(model).__name__}"
    )
