"""Graphs of a `Forecaster`, whose tokens may hold several lags of a series.

The tokens of an `EAForecaster` hold the last `lags` values, newest first. Its graphs take single
values and keep the last values in the state.
"""

from typing import Any

import torch
from torch import Tensor

from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.layers import Named, Stateful, longest, series_inputs
from eattn.models import Forecaster, ForecasterState
from eattn.models.series_embedding import from_front, to_front


def sequence(model: Forecaster, lags: int = 1) -> Graph:
    """Return the graph from series and their mask to the next value after each, and the state."""
    return _graph(_Sequence(model, lags), BATCH, LENGTH)


def step(model: Forecaster, lags: int = 1) -> Graph:
    """Return the graph from one more value of each series to the next value."""
    return _graph(_Step(model, lags), BATCH)


class _Lagged(Stateful):
    def __init__(self, model: Forecaster, lags: int) -> None:
        channels = model.channels // lags
        own = {"past": torch.zeros(1, lags, channels)} if lags > 1 else {}
        own |= {"last": torch.zeros(1, model.channels)} if model.differences else {}
        super().__init__(model, model.encoder.blocks, own)
        self.lags, self.channels = lags, channels

    def named(self, after: ForecasterState, past: Tensor) -> Named:
        last = after.last.clone()  # an output must not alias an input
        own = {"past": past, "last": last, "seen": after.seen}
        return self.name(after.encoder.layers, own)


class _Sequence(_Lagged):
    def forward(self, x: Tensor, key_mask: Tensor, calendar: Tensor | None = None) -> Any:
        """Forecast after each value; lags before the first value repeat it."""
        valid, x, calendar = to_front(key_mask, x, calendar)
        n, L = self.lags, x.shape[1]
        # ONNX cannot slice an axis to size 0, so a single lag is not padded.
        full = torch.cat([x[:, :1].expand(-1, n - 1, -1), x], 1) if n > 1 else x
        tokens = torch.cat([full[:, n - 1 - lag : n - 1 - lag + L] for lag in range(n)], -1)
        inputs: dict[str, Any] = dict(calendar=calendar, key_mask=valid)
        if not self.fixed_size:
            return self._output(self.model(tokens, **inputs), key_mask)
        y, after = self.model(tokens, **inputs, return_state=True)
        first = (valid.sum(1, keepdim=True) - 1).clamp(
            min=0
        )  # index of the last n values in `full`
        index = first + torch.arange(n, device=x.device)
        past = full.gather(1, index.unsqueeze(-1).expand(-1, -1, self.channels))
        return self._output(y, key_mask), self.named(after, past)

    def _output(self, y: Tensor, key_mask: Tensor) -> Tensor:
        return from_front(key_mask, y[..., : self.channels])


class _Step(_Lagged):
    def forward(
        self, x: Tensor, state: Named, calendar: Tensor | None = None
    ) -> tuple[Tensor, Named]:
        seen, past = state["seen"], x.unsqueeze(1)
        if self.lags > 1:
            first = (seen == 0).view(-1, 1, 1)
            past = torch.cat([torch.where(first, past, state["past"][:, 1:]), past], 1)
        token = past.flip(1).flatten(1)
        before = ForecasterState(self.take(state), seen, state.get("last", token), token)
        y, after = self.model.step(token, before, calendar)
        return y[:, : self.channels], self.named(after, past)


def _graph(module: _Lagged, *axes: str) -> Graph:
    inputs = series_inputs(module.model, module.channels, *axes)
    output = Port("expected", torch.float32, (*axes, module.channels))
    name = "sequence" if LENGTH in axes else "step"
    return module.graph(name, inputs, output, longest(module.model))
