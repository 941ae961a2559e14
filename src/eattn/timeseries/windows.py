"""Windows of series to learn from: some past, and the `horizon` values after it to foretell.

Forecasts are rolled out through the model's own values, in training too, so that it learns to go on
from its errors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.models import Forecaster
from eattn.timeseries.rollout import read, roll_out
from eattn.train import move


class Windows(NamedTuple):
    """A batch: past and future in one, and which of it is there."""

    x: Tensor  # [B, past + horizon, C]
    calendar: Tensor | None = None  # [B, past + horizon, F]
    real: Tensor | None = None  # [B, past + horizon], False for padding; None: all are
    known: Tensor | None = None  # [B, past + horizon], False where nothing was measured


class WindowCases:
    """Cases for `eattn.train`: windows of rows [start, start + window + horizon) of `values`.

    values [N, C] may hold many series one after another, calendar [N, F] their times; a start must
    not let a window run from one series into the next. `real` and `known` [N] are as in `Windows`.
    With `vary`, a seed, the past of each batch is cut to between 1 and `window` values, short ones
    as often as long ones (log-uniform), so that a model learns to go on from any of them.

    >>> cases = WindowCases(torch.arange(9.0).unsqueeze(1), None, [0, 4], window=3, horizon=2)
    >>> cases.collate([1]).x.flatten().tolist()
    [4.0, 5.0, 6.0, 7.0, 8.0]
    """

    def __init__(
        self,
        values: Tensor,
        calendar: Tensor | None,
        starts: Sequence[int] | NDArray[np.int64] | Tensor,
        window: int,
        horizon: int,
        *,
        real: Tensor | None = None,
        known: Tensor | None = None,
        vary: int | None = None,
    ) -> None:
        self.window, self.horizon = check_size("window", window), check_size("horizon", horizon)
        if values.dim() != 2:
            raise ValueError(f"values must be [N, C], got shape {tuple(values.shape)}")
        self.starts = torch.as_tensor(starts, dtype=torch.int64)
        last = len(values) - window - horizon
        if len(self.starts) and not 0 <= int(self.starts.min()) <= int(self.starts.max()) <= last:
            raise ValueError(
                f"starts must be from 0 to {last} for windows of {window} + {horizon} of"
                f" {len(values)} rows, got {int(self.starts.min())} to {int(self.starts.max())}"
            )
        self.columns = Windows(values, calendar, real, known)
        self.vary = vary

    def __len__(self) -> int:
        return len(self.starts)

    def collate(self, indices: list[int]) -> Windows:
        return self.collate_share(indices, indices)

    def collate_share(self, indices: list[int], batch: list[int]) -> Windows:
        """Of a batch that processes share: each must have the past that the whole one has."""
        past = self._past(batch)
        skipped = self.window - past
        place = torch.arange(skipped, self.window + self.horizon)
        rows = self.starts[indices].unsqueeze(1) + place
        x, calendar, real, known = self.columns

        def of(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[rows]

        return Windows(x[rows], of(calendar), of(real), of(known))

    def _past(self, indices: list[int]) -> int:
        """The same for the same batch: what is learnt must not depend on when it was asked for."""
        if self.vary is None:
            return self.window
        share = np.random.default_rng([self.vary, *indices]).random()
        return min(int((self.window + 1) ** share), self.window)


def forecast(model: Forecaster, batch: Windows, horizon: int) -> Tensor:
    """What the model makes of the past of each window -> [B, horizon, C]."""
    past = batch.x.shape[1] - horizon
    x, calendar, real, _ = batch
    reading = read(
        model,
        x[:, :past],
        calendar=None if calendar is None else calendar[:, :past],
        key_mask=None if real is None else real[:, :past],
    )
    times = None if calendar is None else calendar[:, past:]
    return roll_out(model, reading, horizon, calendar=times)


def rollout_loss(model: nn.Module, batch: Windows, horizon: int) -> tuple[Tensor, float]:
    """Mean |forecast - value| over the known values to foretell, and how many they are."""
    assert isinstance(model, Forecaster)
    error = (forecast(model, batch, horizon) - batch.x[:, -horizon:]).abs()
    if batch.known is None:
        return error.mean(), error.numel()
    known = batch.known[:, -horizon:].unsqueeze(-1).expand_as(error)
    count = known.sum()
    return torch.where(known, error, 0.0).sum() / count.clamp(min=1), float(count)


@torch.no_grad()
def errors(model: Forecaster, cases: WindowCases, *, batch_size: int = 64) -> Tensor:
    """value - forecast for each window -> [cases, horizon, C] on the CPU, NaN where not known."""
    device = next(model.parameters()).device
    found = []
    for indices in torch.arange(len(cases)).split(batch_size):
        batch = move(cases.collate(indices.tolist()), device)
        error = batch.x[:, -cases.horizon :] - forecast(model, batch, cases.horizon)
        if batch.known is not None:
            error = error.masked_fill(~batch.known[:, -cases.horizon :].unsqueeze(-1), torch.nan)
        found.append(error.cpu())
    return torch.cat(found)
