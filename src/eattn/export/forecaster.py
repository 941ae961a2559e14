"""Graphs of a `Forecaster`: for whole series, or for one value at a time."""

from typing import Any

import torch
from torch import Tensor

from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.layers import Named, Stateful, longest, series_inputs
from eattn.models import Forecaster, ForecasterState
from eattn.models.series_embedding import from_front, to_front


def sequence(model: Forecaster) -> Graph:
    """Return the graph from series and their mask to the next value after each, and the state."""
    return _graph(_Sequence(model), BATCH, LENGTH)


def step(model: Forecaster) -> Graph:
    """Return the graph from one more value of each series to the next value."""
    return _graph(_Step(model), BATCH)


class _Forecaster(Stateful):
    def __init__(self, model: Forecaster) -> None:
        own = {"last": torch.zeros(1, model.channels)} if model.differences else {}
        super().__init__(model, model.encoder.blocks, own)

    def named(self, after: ForecasterState) -> Named:
        last = after.last.clone()  # an output must not alias an input
        return self.name(after.encoder.layers, {"last": last, "seen": after.seen})


class _Sequence(_Forecaster):
    def forward(self, x: Tensor, key_mask: Tensor, calendar: Tensor | None = None) -> Any:
        valid, x, calendar = to_front(key_mask, x, calendar)
        inputs: dict[str, Any] = dict(calendar=calendar, key_mask=valid)
        if not self.fixed_size:
            return from_front(key_mask, self.model(x, **inputs))
        y, after = self.model(x, **inputs, return_state=True)
        return from_front(key_mask, y), self.named(after)


class _Step(_Forecaster):
    def forward(
        self, x: Tensor, state: Named, calendar: Tensor | None = None
    ) -> tuple[Tensor, Named]:
        before = ForecasterState(self.take(state), state["seen"], state.get("last", x), x)
        y, after = self.model.step(x, before, calendar)
        return y, self.named(after)


def _graph(module: _Forecaster, *axes: str) -> Graph:
    inputs = series_inputs(module.model, module.model.channels, *axes)
    output = Port("expected", torch.float32, (*axes, module.model.channels))
    name = "sequence" if LENGTH in axes else "step"
    return module.graph(name, inputs, output, longest(module.model))
