"""Export models as graphs that run elsewhere: `torch.export` programs, and ONNX for onnxruntime.

A classifier, a forecaster or a causal language model becomes one graph of a whole `sequence`, for
any batch and length, and one of a single `step`, with the state as named tensors in and out. All
graphs are in float32. ONNX needs `pip install "eattn[export]"`.

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
    """Return the graph of whole sequences of any length, and of the state after them.

    Parameters
    ----------
    model : SequenceClassifier, Forecaster, EAForCausalLM or fitted estimator
        Model to export; it is not changed.

    Returns
    -------
    Graph
        A model whose state grows has no state here; one that loops over tokens raises ValueError.
    """
    graphs, args = _graphs_of(model)
    return graphs.sequence(*args)


def step(model: Any) -> Graph:
    """Return the graph of one more token: the state before it goes in, the state after it out.

    Parameters
    ----------
    model : SequenceClassifier, Forecaster, EAForCausalLM or fitted estimator
        Causal model whose state has a fixed size; it is not changed.

    Returns
    -------
    Graph
        A state that grows, as that of softmax attention and exact EA, raises ValueError.
    """
    graphs, args = _graphs_of(model)
    return graphs.step(*args)


def _graphs_of(model: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the module that holds `sequence` and `step` for this model, and their arguments."""
    inner = getattr(model, "model_", model)  # of an estimator
    if not isinstance(inner, nn.Module):
        raise TypeError(f"model must be a model or a fitted estimator, got {type(model).__name__}")
    plain = copy.deepcopy(inner).cpu().float().eval().requires_grad_(False)
    if isinstance(plain, SequenceClassifier):
        return classifier, (plain,)
    if isinstance(plain, Forecaster):
        return forecaster, (plain, 1 if inner is model else plain.channels)
    if any(kind.__name__ == "EAForCausalLM" for kind in type(plain).__mro__):
        from eattn.export import language  # imports transformers

        return language, (plain,)
    raise TypeError(
        "model must be a SequenceClassifier, a Forecaster, an EAForCausalLM or a fitted estimator,"
        f" got {type(model).__name__}"
    )
