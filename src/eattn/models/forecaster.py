"""Autoregressive forecaster of time series with a decoding state (Table 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from eattn._checks import check_bool, check_size
from eattn.distributed.context import check_not_sharded
from eattn.models.series_embedding import SeriesEmbedding, from_front, to_front
from eattn.nn.block import TransformerConfig, TransformerOptions, configure
from eattn.nn.decoding_state import StateBase
from eattn.nn.encoder import EncoderState, TransformerEncoder
from eattn.nn.padding import last_valid
from eattn.ops.checks import has_values


@dataclass(frozen=True, eq=False)
class ForecasterState(StateBase):
    """Decoding state of a `Forecaster` after the values so far."""

    encoder: EncoderState
    seen: Tensor  # [B], number of values so far
    last: Tensor  # [B, C], last value
    expected: Tensor  # [B, C], prediction of the next value


class Forecaster(nn.Module):
    """y_t = W encoder(embed(x_1 .. x_t)) + b, the prediction of x_(t + 1), [B, L, C] -> [B, L, C].

    Training runs in parallel over known values. Forecasting feeds each prediction back as the next
    value, with a decoding state whose size is that of the mixer's state (constant for ea-N, ea-qN,
    la, la+gate, taylor, deltanet, gru and linear-rnn). A forecaster is always causal.

    Masked values have no effect, and the forecast of a row follows its last valid value. The mixer
    aft cannot forecast rows of unequal length, as its positions are the same for all rows.

    Parameters
    ----------
    channels : int, default 1
        Number of channels C of the series.
    config : TransformerConfig, optional
        Configuration of the encoder; the default one if omitted.
    calendar : sequence of str, optional
        Names of the calendar fields to embed; see `calendar_fields`.
    positions : bool, default False
        Learn positional embeddings, for `max_len` or, by default, 512 values.
    residual : bool, default False
        Predict the change from the last value. An untrained model then predicts no change.
    differences : bool, default False
        Also embed the change of each value from the one before.
    **changes
        Fields of `TransformerConfig`, which take precedence over `config`.

    Examples
    --------
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
        **changes: Unpack[TransformerOptions],
    ) -> None:
        super().__init__()
        if changes.get("causal", True) is not True:
            raise ValueError(
                "causal must be True for a forecaster: it must not depend on later values"
            )
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
        """Predict the value after each value of x.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Values.
        calendar : int Tensor, shape (B, L, F), optional
            Calendar fields of x, if the model was built with `calendar`.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid values. Predictions at masked values are 0.
        state : ForecasterState, optional
            State after the values before x.
        return_state : bool, default False
            Also return the state after x.

        Returns
        -------
        y : Tensor, shape (B, L, C)
        state : ForecasterState, only if `return_state`
        """
        check_not_sharded("Forecaster")
        self.embed.check(x, calendar, key_mask)
        if state is not None:
            self._check_state(state, x.shape[0])
        if key_mask is None:
            y, after = self._run(x, calendar, None, state, return_state)
        else:
            if state is not None or return_state:
                self._check_decodable(key_mask)
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
        options: Any = dict(key_mask=key_mask, return_state=return_state)
        y = self.encoder(tokens, **options, state=None if state is None else state.encoder)
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
        """Predict the value after one new value.

        Parameters
        ----------
        x_t : Tensor, shape (B, C)
            Next value of each row.
        state : ForecasterState, optional
            State after the values before; None if x_t is the first value.
        calendar_t : int Tensor, shape (B, F), optional
            Calendar fields of x_t, if the model was built with `calendar`.

        Returns
        -------
        y_t : Tensor, shape (B, C)
        state : ForecasterState
        """
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
        """Return the values x and, with `differences`, their changes, which start with 0."""
        if not self.differences:
            return x
        first = x[:, :1]
        if before is not None:
            unknown = torch.as_tensor(seen, device=x.device).view(-1, 1, 1) == 0
            first = torch.where(unknown, first, before.unsqueeze(1))
        return torch.cat([x, x.diff(dim=1, prepend=first)], -1)

    def _expect(self, x: Tensor, y: Tensor) -> Tensor:
        """Predict the next value from the value x and the output y of the encoder."""
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
        """Forecast `horizon` values, each from the values and predictions before it.

        Reads x in one parallel pass, then takes one step per value.

        Parameters
        ----------
        x : Tensor of shape (B, L, C), or None
            Known values. None forecasts from `state` alone; L is 0 then.
        horizon : int
            Number of values to forecast.
        calendar : int Tensor, shape (B, L + horizon, F), optional
            Calendar fields of x, followed by those after the last valid value of each row.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid values.
        state : ForecasterState, optional
            State after the values before x.
        return_state : bool, default False
            Also return the state after the forecast, from which another rollout continues.

        Returns
        -------
        y : Tensor, shape (B, horizon, C)
        state : ForecasterState, only if `return_state`
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
        """Return the mean of (y_t - x_(t + 1))^2 over all valid values but the first of each row.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Values, with L >= 2.
        calendar : int Tensor, shape (B, L, F), optional
            Calendar fields of x, if the model was built with `calendar`.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid values.

        Returns
        -------
        loss : Tensor, shape ()
        """
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
        """Return B and L of the input of a rollout."""
        if x is not None:
            if not isinstance(x, Tensor) or x.dim() != 3:
                got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(f"x must be [B, L, {self.channels}] or None, got {got}")
            return x.shape[0], x.shape[1]
        if state is None or key_mask is not None:
            need = "state is required" if state is None else "key_mask must be None"
            raise ValueError(f"{need} if x is None")
        return len(self._check_state(state).seen), 0

    def _check_start(self, state: ForecasterState, steps: int) -> None:
        """Check that every row has a value, and enough positions for all steps."""
        if not has_values(state.seen) or not state.seen.numel():
            return
        if not state.seen.all():
            row = int(state.seen.argmin())
            raise ValueError(f"x must have a valid value in every row, got none in row {row}")
        positions = self.embed.positions
        longest = int(state.seen.max()) + steps
        if positions is not None and longest > positions.max_len:
            raise ValueError(
                f"x and horizon together need {longest} positions,"
                f" but max_len = {positions.max_len}: increase max_len or use positions=False"
            )

    def _check_decodable(self, key_mask: Tensor) -> None:
        """Raise if rows differ in length and the mixer needs the same position in all rows."""
        if self.config.mixer != "aft" or not has_values(key_mask) or key_mask.all():
            return
        raise ValueError(
            "key_mask must be all True to decode with mixer 'aft', whose positions are the same for"
            " all rows: forecast rows of unequal length one at a time, or use another mixer"
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
    """Return the state after x with predictions y; rows without valid values keep theirs."""
    seen = y.new_full(y.shape[:1], y.shape[1], dtype=torch.int64)
    last, expected = last_valid(x, key_mask), last_valid(y, key_mask)
    if key_mask is not None:
        seen = key_mask.sum(1)
        if before is not None:
            new = key_mask.any(1, keepdim=True)
            last = torch.where(new, last, before.last)
            expected = torch.where(new, expected, before.expected)
    return ForecasterState(encoder, seen if before is None else before.seen + seen, last, expected)
