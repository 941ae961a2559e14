"""Reading a series and rolling it out: each token holds the last few values, the newest first.

Element-wise attention has no sense of nearness. The last `lags` values side by side give it one, at
the cost of remembering them; a forecaster of lags * C channels reads a series of C so. With as many
channels as the series has, lags is 1 and this is `Forecaster.rollout`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eattn.models import Forecaster, ForecasterState


class Reading(NamedTuple):
    """What a forecaster remembers of the values so far."""

    state: ForecasterState
    last: Tensor  # [B, lags, C] the last values, the oldest first

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + self.last.numel() * self.last.element_size()


def read(
    model: Forecaster,
    x: Tensor,
    *,
    calendar: Tensor | None = None,
    key_mask: Tensor | None = None,
    before: Reading | None = None,
) -> Reading:
    """Absorb x [B, L, C], its times [B, L, F] and what is real [B, L], in one parallel pass.

    Values before the first are taken to be like it. Rows that begin with padding must have their
    first real value there.
    """
    lags = _lags(model, x.shape[2])
    earlier = x[:, :1].expand(-1, lags - 1, -1) if before is None else before.last[:, 1:]
    full = torch.cat([earlier, x], 1)
    tokens = _token(full.unfold(1, lags, 1).transpose(2, 3))
    state = None if before is None else before.state
    given: Any = dict(calendar=calendar, key_mask=key_mask, state=state)
    _, state = model(tokens, **given, return_state=True)
    return Reading(state, full[:, -lags:])


def roll_out(
    model: Forecaster, reading: Reading, horizon: int, *, calendar: Tensor | None = None
) -> Tensor:
    """The next values, each from those before it, at times [B, horizon, F] -> [B, horizon, C]."""
    state, last = reading
    C = last.shape[2]
    forecast = [state.expected[:, :C]]
    for i in range(horizon - 1):
        last = torch.cat([last[:, 1:], forecast[-1].unsqueeze(1)], 1)
        now = None if calendar is None else calendar[:, i]
        _, state = model.step(_token(last), state, now)
        forecast.append(state.expected[:, :C])
    return torch.stack(forecast, 1)


def _token(last: Tensor) -> Tensor:
    """The last values [..., lags, C], the oldest first -> [..., lags * C], the newest first."""
    return last.flip(-2).flatten(-2)


def _lags(model: Forecaster, channels: int) -> int:
    lags, rest = divmod(model.channels, channels)
    if rest or not lags:
        raise ValueError(
            f"a model of {model.channels} channels cannot read a series of {channels}:"
            " it must have as many, or a multiple"
        )
    return lags
