"""Graphs of a `SequenceClassifier`: for a whole series, or for one time point at a time."""

import torch
from torch import Tensor, nn

from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.layers import Named, Stateful, check_sequence, longest, series_inputs
from eattn.models import SequenceClassifier

POOLED = {"mean": 0.0, "max": -torch.inf}  # initial vector of each running pooling


def sequence(model: SequenceClassifier) -> Graph:
    """Return the graph from series and their mask to logits."""
    check_sequence(model, model.config.mixer)
    flat = model.pooling == "flatten"
    return Graph(
        "sequence",
        model,
        series_inputs(model, model.channels, BATCH, LENGTH),
        Port("logits", torch.float32, (BATCH, model.classes)),
        longest=model.config.max_len if flat else longest(model, model.patch),
    )


def step(model: SequenceClassifier) -> Graph:
    """Return the graph from one more time point of each series to logits."""
    if not model.config.causal:
        raise ValueError(
            "only a causal classifier has a step: in this model tokens attend to later tokens, so"
            " a prediction needs the whole series"
        )
    for name, looks_ahead, allowed in (
        ("embed", isinstance(model.embed.values.project, nn.Conv1d), "linear"),
        ("patch", model.patch > 1, 1),
        ("pooling", model.pooling == "flatten", "mean"),
    ):
        if looks_ahead:
            raise ValueError(
                f"the step of a classifier needs {name}={allowed!r}, which reads single time points"
            )
    inputs = series_inputs(model, model.channels, BATCH)
    output = Port("logits", torch.float32, (BATCH, model.classes))
    return _Step(model).graph("step", inputs, output, longest(model))


class _Step(Stateful):
    def __init__(self, model: SequenceClassifier) -> None:
        start, dim = POOLED.get(model.pooling), model.config.dim
        own = {} if start is None else {"pooled": torch.full((1, dim), start)}
        super().__init__(model, model.encoder.blocks, own)

    def forward(
        self, x: Tensor, state: Named, calendar: Tensor | None = None
    ) -> tuple[Tensor, Named]:
        model, seen, own = self.model, state["seen"], {}
        times = None if calendar is None else calendar.unsqueeze(1)
        token = model.embed(x.unsqueeze(1), calendar=times, start=seen).squeeze(1)
        y, after = model.encoder.step(token, self.take(state))
        if model.pooling == "mean":
            own["pooled"] = state["pooled"] + y
            y = own["pooled"] / (seen + 1).unsqueeze(1)
        elif model.pooling == "max":
            y = own["pooled"] = torch.maximum(state["pooled"], y)
        return model.head(y), self.name(after.layers, own | {"seen": seen + 1})
