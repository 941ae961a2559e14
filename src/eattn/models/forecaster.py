"""The next value of a series, again and again, from a state of constant size (Table 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eattn._checks import check_bool, check_size
from eattn.distributed.context import check_not_sharded
from eattn.models.series_embedding import (
    SeriesEmbedding,
    from_front,
    last_valid,
    to_front,
)
from eattn.nn.block import TransformerConfig, configure
from eattn.nn.decoding_state import Rows, register_state
from eattn.nn.encoder import EncoderState, TransformerEncoder


@dataclass(frozen=True, eq=False)
class ForecasterState(Rows):
    """Everything a forecaster keeps of the values so far, and the value it expects next."""

    encoder: EncoderState
    seen: Tensor  # [B] number of values each row has seen
    last: Tensor  # [B, C] the last of them
    expected: Tensor  # [B, C] the value after it


register_state(ForecasterState)


class Forecaster(nn.Module):
    """y_t = W encoder(embed(x_1 .. x_t)) + b, the value expected at t + 1: [B, L, C] -> [B, L, C].

    Trained in parallel on known values, it forecasts token by token from what it expected, with a
    state that stays as small as the mixer's (constant for ea-N, la, taylor, gru and linear-rnn).
    `calendar` names fields of the sampling times to embed, `positions` learns one vector for each
    of `max_len` (or 512) places. `residual` predicts the change from the last value, which is 0
    before any training; `differences` shows the model each value's change from the one before. The
    config, its fields by keyword, or both (keywords win) say the
    rest; a forecaster is causal whatever the config says.

    A masked token is no token: a row gives what it gives without it, and its forecast starts after
    its last valid one. Only aft, which learns positions, needs rows of equal length.

    >>> model = Forecaster(channels=1, dim=32, depth=2, mixer="ea-6")
    >>> model.rollout(torch.randn(4, 100, 1), horizon=12).shape
    torch.Size([4, 12, 1])
    >>> expected, state = model.step(torch.randn(4, 1))
    >>> expected, state = model.step(torch.randn(4, 1), state)
    """

    def __init__(
        self,
        channels: int = 1,
        config: TransformerConfig | None = None,
        *,
        calendar: Sequence[str] | None = None,
        positions: bool = False,
        residual: bool = False,
        differences: bool = False,
        **changes: Any,
    ) -> None:
        super().__init__()
        if changes.get("causal", True) is not True:
            raise ValueError("causal must be True for a forecaster: it must not see what comes")
        self.config = c = configure(config, changes | {"causal": True})
        self.channels = check_size("channels", channels)
        self.differences = check_bool("differences", differences)
        self.embed = SeriesEmbedding(
            channels, c, calendar=calendar, positions=positions, parts=2 if differences else 1
        )
        self.encoder = TransformerEncoder(c)
        self.head = nn.Linear(c.dim, channels)
        self.residual = check_bool("residual", residual)
        if residual:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, residual={self.residual}, differences={self.differences}"

    def forward(
        self,
        x: Tensor,
        *,
        calendar: Tensor | None = None,
        key_mask: Tensor | None = None,
        state: ForecasterState | None = None,
        return_state: bool = False,
    ) -> Any:
        """x [B, L, C] -> what is expected after each value [B, L, C], or with the state after x.

        calendar [B, L, F] are the times of x, key_mask [B, L] its valid values (0 comes out for the
        others), `state` what was before.
        """
        check_not_sharded("Forecaster")
        self.embed.check(x, calendar, key_mask)
        if state is not None:
            self._check_state(state, x.shape[0])
        if key_mask is None:
            y, after = self._run(x, calendar, None, state, return_state)
        else:
            if state is not None or return_state:
                self._check_continues(key_mask)
            front, x, calendar = to_front(key_mask, x, calendar)
            y, after = self._run(x, calendar, front, state, return_state)
            y = from_front(key_mask, y)
        return (y, after) if return_state else y

    def _run(
        self,
        x: Tensor,
        calendar: Tensor | None,
        key_mask: Tensor | None,
        state: ForecasterState | None,
        return_state: bool,
    ) -> tuple[Tensor, ForecasterState | None]:
        start = 0 if state is None else state.seen
        before = None if state is None else state.last
        tokens = self.embed(
            self._tokens(x, before, start),
            calendar=calendar,
            key_mask=key_mask,
            start=start,
        )
        y = self.encoder(
            tokens,
            key_mask=key_mask,
            state=None if state is None else state.encoder,
            return_state=return_state,
        )
        if not return_state:
            return self._expect(x, y), None
        y, after = y
        y = self._expect(x, y)
        return y, _advance(state, after, x, y, key_mask)

    def step(
        self,
        x_t: Tensor,
        state: ForecasterState | None = None,
        calendar_t: Tensor | None = None,
    ) -> tuple[Tensor, ForecasterState]:
        """One value x_t [B, C] and its time [B, F] -> (what is expected next [B, C], the state)."""
        if not isinstance(x_t, Tensor) or x_t.dim() != 2:
            got = tuple(x_t.shape) if isinstance(x_t, Tensor) else type(x_t).__name__
            raise ValueError(f"x_t must be [B, {self.channels}], got {got}")
        calendar = calendar_t.unsqueeze(-2) if isinstance(calendar_t, Tensor) else calendar_t
        self.embed.check(x_t.unsqueeze(1), calendar)
        seen = x_t.new_zeros(x_t.shape[0], dtype=torch.int64)
        if state is not None:
            seen = self._check_state(state, x_t.shape[0]).seen
        value = self._tokens(x_t.unsqueeze(1), None if state is None else state.last, seen)
        token = self.embed(value, calendar=calendar, start=seen).squeeze(1)
        y, after = self.encoder.step(token, None if state is None else state.encoder)
        y = self._expect(x_t, y)
        return y, ForecasterState(after, seen + 1, x_t, y)

    def _tokens(self, x: Tensor, before: Tensor | None, seen: int | Tensor) -> Tensor:
        """What is embedded of x: its values and, with `differences`, their change from the last.

        A mean over tokens cannot tell how fast a series moves; its steps can. The very first value
        has not changed.
        """
        if not self.differences:
            return x
        first = x[:, :1]
        if before is not None:
            unknown = torch.as_tensor(seen, device=x.device).view(-1, 1, 1) == 0
            first = torch.where(unknown, first, before.unsqueeze(1))
        return torch.cat([x, x.diff(dim=1, prepend=first)], -1)

    def _expect(self, x: Tensor, y: Tensor) -> Tensor:
        """The next value, from this one and what the encoder made of it."""
        change: Tensor = self.head(y)
        return x + change if self.residual else change

    def rollout(
        self,
        x: Tensor | None,
        horizon: int,
        *,
        calendar: Tensor | None = None,
        key_mask: Tensor | None = None,
        state: ForecasterState | None = None,
        return_state: bool = False,
    ) -> Any:
        """The `horizon` values after x [B, L, C], each from those before it -> [B, horizon, C].

        x is absorbed in one parallel pass, then each value costs one step. calendar is
        [B, L + horizon, F]: the times of x, then for each row those after its own last value. With
        `state`, x follows what was before; x=None forecasts from the state alone, and calendar is
        [B, horizon, F]. The state that comes back has absorbed the forecast too, so that a rollout
        from it goes on.
        """
        check_size("horizon", horizon)
        B, L = self._check_rollout(x, key_mask, state)
        self.embed.check_calendar(calendar, B, L + horizon)
        if x is not None:
            times = None if calendar is None else calendar[:, :L]
            _, state = self(x, calendar=times, key_mask=key_mask, state=state, return_state=True)
        assert state is not None
        steps = horizon if return_state else horizon - 1
        self._check_start(state, steps)
        forecast = [state.expected]
        for i in range(steps):
            now = None if calendar is None else calendar[:, L + i]
            y, state = self.step(forecast[-1], state, now)
            forecast.append(y)
        y = torch.stack(forecast[:horizon], 1)
        return (y, state) if return_state else y

    def loss(
        self, x: Tensor, calendar: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """Mean of (y_t - x_(t+1))^2 over every real value that has one before it in its row."""
        self.embed.check(x, calendar, key_mask)
        if x.shape[1] < 2:
            raise ValueError(f"x must have a value to predict, L >= 2, got L = {x.shape[1]}")
        if key_mask is not None:
            key_mask, x, calendar = to_front(key_mask, x, calendar)
        y = self(
            x[:, :-1],
            calendar=None if calendar is None else calendar[:, :-1],
            key_mask=None if key_mask is None else key_mask[:, :-1],
        )
        error = (y - x[:, 1:]).square()
        if key_mask is None:
            return error.mean()
        targets = key_mask[:, 1:].unsqueeze(-1)
        return torch.where(targets, error, 0.0).sum() / (targets.sum() * x.shape[2]).clamp(min=1)

    def _check_rollout(
        self, x: Tensor | None, key_mask: Tensor | None, state: ForecasterState | None
    ) -> tuple[int, int]:
        """B and L of what a rollout starts from."""
        if x is not None:
            if not isinstance(x, Tensor) or x.dim() != 3:
                got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(f"x must be [B, L, {self.channels}] or None, got {got}")
            return x.shape[0], x.shape[1]
        if state is None or key_mask is not None:
            need = "values, or the state after some" if state is None else "no key_mask then"
            raise ValueError(f"x is None: a rollout needs {need}")
        return len(self._check_state(state).seen), 0

    def _check_start(self, state: ForecasterState, steps: int) -> None:
        """That every row has something to start from, and positions left for all steps."""
        if torch.compiler.is_compiling() or not state.seen.numel():
            return
        if not state.seen.all():
            row = int(state.seen.argmin())
            raise ValueError(f"x must have a valid value in every row, got none in row {row}")
        places = self.embed.positions
        longest = int(state.seen.max()) + steps
        if places is not None and longest > places.max_len:
            raise ValueError(
                f"x and horizon together need {longest} positions,"
                f" but max_len = {places.max_len}: raise max_len, or use positions=False"
            )

    def _check_continues(self, key_mask: Tensor) -> None:
        """That the mixer can be at different places in different rows."""
        if self.config.mixer != "aft" or torch.compiler.is_compiling() or key_mask.all():
            return
        raise ValueError(
            "key_mask must be all True where mixer 'aft' goes on from a state: it has one place for"
            " all rows, so forecast rows of unequal length one at a time, or with another mixer"
        )

    def _check_state(self, state: ForecasterState, rows: int | None = None) -> ForecasterState:
        if not isinstance(state, ForecasterState):
            raise TypeError(f"state must be a ForecasterState, got {type(state).__name__}")
        if rows is not None and state.seen.shape[0] != rows:
            raise ValueError(f"state must have {rows} rows like x, got {state.seen.shape[0]}")
        return state


def _advance(
    before: ForecasterState | None,
    encoder: EncoderState,
    x: Tensor,
    y: Tensor,
    key_mask: Tensor | None,
) -> ForecasterState:
    """The state after a pass over x that expected y; a row without real values keeps its own."""
    seen = y.new_full(y.shape[:1], y.shape[1], dtype=torch.int64)
    last, expected = last_valid(x, key_mask), last_valid(y, key_mask)
    if key_mask is not None:
        seen = key_mask.sum(1)
        if before is not None:
            new = key_mask.any(1, keepdim=True)
            last = torch.where(new, last, before.last)
            expected = torch.where(new, expected, before.expected)
    return ForecasterState(encoder, seen if before is None else before.seen + seen, last, expected)
