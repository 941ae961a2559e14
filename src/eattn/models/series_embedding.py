"""How both models turn a series into tokens: x [B, L, C] and its times into [B, L, D]."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_bool
from eattn.nn.base import front_positions, zero_masked
from eattn.nn.block import TransformerConfig
from eattn.nn.embedding import CalendarEmbedding, LearnedPositions, TokenEmbedding
from eattn.ops.checks import check_mask

MAX_LEN = 512  # learned positions where the config does not say how many


class SeriesEmbedding(nn.Module):
    """dropout(values + calendar + positions), of which the last two are options.

    >>> embed = SeriesEmbedding(3, TransformerConfig(dim=16), calendar=["hour"], positions=True)
    >>> embed(torch.randn(2, 5, 3), calendar=torch.zeros(2, 5, 1, dtype=torch.int64)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        channels: int,
        config: TransformerConfig,
        *,
        kind: Literal["linear", "conv"] = "linear",
        calendar: Sequence[str] | None = None,
        positions: bool = False,
        parts: int = 1,
    ) -> None:
        super().__init__()
        c = config
        self.channels = channels
        self.values = TokenEmbedding(channels * parts, c.dim, kind=kind)
        self.calendar = None if calendar is None else CalendarEmbedding(c.dim, calendar)
        self.positions = None
        if check_bool("positions", positions):
            self.positions = LearnedPositions(c.dim, MAX_LEN if c.max_len is None else c.max_len)
        self.dropout = nn.Dropout(c.dropout)

    def forward(
        self,
        x: Tensor,
        *,
        calendar: Tensor | None = None,
        key_mask: Tensor | None = None,
        start: int | Tensor = 0,
    ) -> Tensor:
        """x [B, L, C], its times [B, L, F] and how many tokens were before it -> [B, L, D].

        With `parts`, a token has so many times C values: those of a patch of samples, or their
        differences too.
        """
        y: Tensor = self.values(x, key_mask)
        if self.calendar is not None and calendar is not None:
            y = y + self.calendar(calendar, key_mask)
        if self.positions is not None:
            y = self.positions(y, start, key_mask)
        return self.dropout(y)

    def check(
        self,
        x: Tensor,
        calendar: Tensor | None,
        key_mask: Tensor | None = None,
        *,
        name: str = "x",
    ) -> None:
        """That x is [B, L, C] with C as made, and calendar [B, L, F] just where there is one."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{name} must be a floating-point tensor, got {kind}")
        if x.dim() != 3 or x.shape[2] != self.channels or not x.shape[1]:
            raise ValueError(
                f"{name} must be [B, L, {self.channels}] with L >= 1, as channels ="
                f" {self.channels}, got shape {tuple(x.shape)}"
            )
        if key_mask is not None:
            check_mask(key_mask, x)
        self.check_calendar(calendar, x.shape[0], x.shape[1])

    def check_calendar(self, calendar: Tensor | None, B: int, L: int) -> None:
        """That calendar is [B, L, F] if the model reads one, and is not there if it does not."""
        if self.calendar is None:
            if calendar is not None:
                raise ValueError(
                    "calendar was given to a model made without one:"
                    " make it with calendar=('month', 'day', ...)"
                )
            return
        fields = self.calendar.fields
        if calendar is None:
            raise ValueError(f"calendar is missing: this model reads {', '.join(fields)}")
        if not isinstance(calendar, Tensor):
            raise TypeError(f"calendar must be a tensor, got {type(calendar).__name__}")
        if calendar.shape != (B, L, len(fields)):
            raise ValueError(
                f"calendar must be [{B}, {L}, {len(fields)}] for {', '.join(fields)},"
                f" got shape {tuple(calendar.shape)}"
            )


def to_front(
    key_mask: Tensor, x: Tensor, calendar: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Real tokens moved to the front of their rows, in their order, and 0 behind them.

    So neighbours and places are as without padding, wherever it was. key_mask [B, L] becomes the
    mask that then holds.
    """
    place, count = front_positions(key_mask)
    front = torch.arange(key_mask.shape[1], device=key_mask.device) < count

    def move(series: Tensor) -> Tensor:
        there = place.unsqueeze(-1).expand_as(series)
        return zero_masked(torch.zeros_like(series).scatter(1, there, series), front)

    return front, move(x), None if calendar is None else move(calendar)


def from_front(key_mask: Tensor, y: Tensor) -> Tensor:
    """The tokens y [B, L, D] moved back to where `to_front` took them from; 0 where masked."""
    place = (key_mask.cumsum(1) - 1).clamp(min=0)
    return zero_masked(_take(y, place), key_mask)


def in_patches(
    patch: int, x: Tensor, key_mask: Tensor | None, calendar: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Each `patch` samples as one token: x [B, L, C] -> [B, ceil(L / patch), patch * C].

    Real samples are in front, as `to_front` puts them; a last patch is filled up with 0. A token is
    real if its first sample is, and has that one's time.
    """
    B, L, C = x.shape
    count = (L + patch - 1) // patch
    tokens = F.pad(x, (0, 0, 0, count * patch - L)).reshape(B, count, patch * C)
    first = slice(None, None, patch)
    return (
        tokens,
        None if key_mask is None else key_mask[:, first],
        None if calendar is None else calendar[:, first],
    )


def last_valid(y: Tensor, key_mask: Tensor | None) -> Tensor:
    """y [B, L, D] at the last valid token of each row -> [B, D]; 0 where there is none."""
    if key_mask is None:
        return y[:, -1]
    place = torch.arange(key_mask.shape[1], device=key_mask.device)
    last = torch.where(key_mask, place, 0).amax(1)
    y = _take(y, last.unsqueeze(1)).squeeze(1)
    return torch.where(key_mask.any(1, keepdim=True), y, 0.0)


def _take(x: Tensor, place: Tensor) -> Tensor:
    """Row b's tokens at place[b]: x [B, L, D], place [B, n] -> [B, n, D].

    As `take_along_dim`, which torch.export cuts to the sizes of its example.
    """
    return x.gather(1, place.unsqueeze(-1).expand(-1, -1, x.shape[2]))
