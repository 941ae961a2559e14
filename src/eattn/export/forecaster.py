"""The graphs of a `Forecaster`, which may read a token of several lags from a series of its own.

An `EAForecaster` trains a model whose tokens hold the last `lags` values, the newest first. Its
graphs take values one by one all the same, and keep the last ones in the state.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eattn.export.checks import check_sequence, longest
from eattn.export.classifier import calendar_port
from eattn.export.graph import BATCH, LENGTH, Graph, Port
from eattn.export.state import Layers, Named, ports
from eattn.models import Forecaster, ForecasterState
from eattn.models.series_embedding import from_front, to_front
from eattn.nn import EncoderState


def sequence(model: Forecaster, lags: int = 1) -> Graph:
    """Series and which of their values are real -> what is expected after each; and the state."""
    check_sequence(model, model.config.mixer)
    module = _Sequence(model, lags)
    return Graph(
        "sequence",
        module,
        inputs=(
            Port("x", torch.float32, (BATCH, LENGTH, module.channels)),
            Port("key_mask", torch.bool, (BATCH, LENGTH)),
            *calendar_port(model.embed, BATCH, LENGTH),
        ),
        output=Port("expected", torch.float32, (BATCH, LENGTH, module.channels)),
        state=module.ports(),
        longest=longest(model),
    )


def step(model: Forecaster, lags: int = 1) -> Graph:
    """One more value of each series -> what is expected after it."""
    module = _Step(model, lags)
    module.layers.check()
    return Graph(
        "step",
        module,
        inputs=(
            Port("x", torch.float32, (BATCH, module.channels)),
            *calendar_port(model.embed, BATCH),
        ),
        output=Port("expected", torch.float32, (BATCH, module.channels)),
        state=module.ports(),
        continues=True,
        longest=longest(model),
    )


class _Reading(nn.Module):
    """What both graphs share: the state, tensor by tensor."""

    def __init__(self, model: Forecaster, lags: int) -> None:
        super().__init__()
        self.model, self.lags = model, lags
        self.channels = model.channels // lags
        self.layers = Layers(model.encoder.blocks)

    def ports(self) -> tuple[Port, ...]:
        """None at all where some of it grows."""
        own: Named = {"seen": torch.zeros(1, dtype=torch.int64)}
        if self.lags > 1:
            own["past"] = torch.zeros(1, self.lags, self.channels)
        if self.model.differences:
            own["last"] = torch.zeros(1, self.model.channels)
        return self.layers.ports + ports(own) if self.layers.kept else ()

    def _named(self, after: ForecasterState, past: Tensor) -> Named:
        own = {"seen": after.seen}
        if self.lags > 1:
            own["past"] = past
        if self.model.differences:
            own["last"] = after.last.clone()  # an output of its own, not the input itself
        return self.layers.name(after.encoder.layers) | own


class _Sequence(_Reading):
    def forward(self, x: Tensor, key_mask: Tensor, calendar: Tensor | None = None) -> Any:
        """Values before the first are taken to be like it."""
        real, x, calendar = to_front(key_mask, x, calendar)
        n, L = self.lags, x.shape[1]
        # Not of 0 values where there is one lag: ONNX has no axis shrink to 0.
        full = torch.cat([x[:, :1].expand(-1, n - 1, -1), x], 1) if n > 1 else x
        tokens = torch.cat([full[:, n - 1 - lag : n - 1 - lag + L] for lag in range(n)], -1)
        told: dict[str, Any] = dict(calendar=calendar, key_mask=real)
        if not self.layers.kept:
            return self._given(self.model(tokens, **told), key_mask)
        y, after = self.model(tokens, **told, return_state=True)
        first = (real.sum(1, keepdim=True) - 1).clamp(min=0)  # of the last values, in `full`
        place = first + torch.arange(n, device=x.device)
        past = full.gather(1, place.unsqueeze(-1).expand(-1, -1, self.channels))
        return self._given(y, key_mask), self._named(after, past)

    def _given(self, y: Tensor, key_mask: Tensor) -> Tensor:
        return from_front(key_mask, y[..., : self.channels])


class _Step(_Reading):
    def forward(
        self, x: Tensor, state: Named, calendar: Tensor | None = None
    ) -> tuple[Tensor, Named]:
        seen, past = state["seen"], x.unsqueeze(1)
        if self.lags > 1:
            first = (seen == 0).view(-1, 1, 1)
            past = torch.cat([torch.where(first, past, state["past"][:, 1:]), past], 1)
        token = past.flip(1).flatten(1)
        encoder = EncoderState(tuple(self.layers.take(state)))
        before = ForecasterState(encoder, seen, state.get("last", token), token)
        y, after = self.model.step(token, before, calendar)
        return y[:, : self.channels], self._named(after, past)
