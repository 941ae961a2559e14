"""Export models to `torch.export` programs, or to ONNX for onnxruntime.

A classifier, a forecaster or a causal language model becomes a graph for a whole `sequence`, of any
batch size and length, and a graph for a single `step` with the state as named inputs and outputs.
An `EAForecaster` becomes a step from raw values to calibrated quantiles. Models run in float32.
ONNX requires `pip install "eattn[export]"`.

Examples
--------
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

from eattn.export import classifier, forecaster, shape_classifier
from eattn.export.bundle import save
from eattn.export.graph import Graph, Port
from eattn.models import (
    ClassifierEnsemble,
    Forecaster,
    QuantileForecaster,
    SequenceClassifier,
    ShapeClassifier,
)

__all__ = ["Graph", "Port", "save", "sequence", "step"]


def sequence(model: Any) -> Graph:
    """Return the graph for whole sequences of any length and the state after them.

    Parameters
    ----------
    model : classifier or forecaster of eattn.models, EAForCausalLM or fitted estimator
        Model to export; it is not changed.

    Returns
    -------
    Graph
        Has no state if the state of the model grows with the sequence.

    Raises
    ------
    ValueError
        If the model loops over tokens, or is an `EAForecaster`, whose step also reads a history.

    Examples
    --------
    >>> from eattn.models import Forecaster
    >>> sequence(Forecaster(dim=8, depth=1, mixer="ea-2")).input_names
    ['x', 'key_mask']
    """
    graphs, args = _graphs_of(model)
    return graphs.sequence(*args)


def step(model: Any) -> Graph:
    """Return the graph for one more token, with the states before and after it.

    Parameters
    ----------
    model : classifier or forecaster of eattn.models, EAForCausalLM or fitted estimator
        Causal model whose state has a fixed size; it is not changed.

    Returns
    -------
    Graph

    Raises
    ------
    ValueError
        If the model is not causal, or if its state grows with the sequence, as in softmax
        attention and exact EA.

    Notes
    -----
    The step of an `EAForecaster` takes one row of each series in a batch of B:

    - y : float64 (B,), the value; NaN if missing.
    - lower : float64 (B,), the lower bound of the forecasts; -inf for none.
    - choice : int64 (B,), an index into `candidates_`: 0 for the model, or a simple forecast.
    - row : float32 (B, K + G), the K calendar, known-future and static columns of the row, and its
      G past-only columns, all encoded. There is no such input if K + G = 0.
    - ahead : float32 (B, H, K), what is known about the steps of the horizon H. There is no such
      input if K = 0.

    It returns quantiles : float64 (B, H, levels), in the units of y: the forecast of
    `with_history(rows).predict()` for all trained levels. They are NaN before the first value.
    """
    graphs, args = _graphs_of(model)
    return graphs.step(*args)


def _graphs_of(model: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the module with `sequence` and `step` for this kind of model, and their arguments."""
    inner = getattr(model, "model_", model)  # estimators keep their model there
    if not isinstance(inner, nn.Module):
        raise TypeError(f"model must be a model or a fitted estimator, got {type(model).__name__}")
    plain = copy.deepcopy(inner).cpu().float().eval().requires_grad_(False)
    if isinstance(plain, SequenceClassifier):
        return classifier, (plain,)
    if isinstance(plain, ShapeClassifier | ClassifierEnsemble):
        return shape_classifier, (plain,)
    if isinstance(plain, Forecaster):
        return forecaster, (plain,)
    if isinstance(plain, QuantileForecaster) and inner is not model:
        from eattn.export import quantile_forecaster  # imports pandas

        return quantile_forecaster, (plain, model)
    if any(kind.__name__ == "EAForCausalLM" for kind in type(plain).__mro__):
        from eattn.export import language  # imports transformers

        return language, (plain,)
    raise TypeError(
        "model must be a classifier, a Forecaster, an EAForCausalLM or a fitted estimator,"
        f" got {type(model).__name__}"
    )
