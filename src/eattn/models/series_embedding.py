"""Embedding of a series with its sampling times, x [B, L, C] -> [B, L, D], for both models."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_bool
from eattn.nn.block import TransformerConfig
from eattn.nn.embedding import CalendarEmbedding, LearnedPositions, TokenEmbedding
from eattn.nn.padding import front_positions, zero_masked
from eattn.ops.checks import check_mask
from eattn.ops.traceable import exporting

MAX_LEN = 512  # number of learned positions if the config has no max_len


class SeriesEmbedding(nn.Module):
    """dropout(values + calendar + positions), of which the last two are optional.

    Parameters
    ----------
    channels : int
        Number of channels C of the series.
    config : TransformerConfig
        Configuration of the model.
    kind : {"linear", "conv"}, default "linear"
        Embedding of the values; see `TokenEmbedding`.
    calendar : sequence of str, optional
        Names of the calendar fields to embed.
    positions : bool, default False
        Learn positional embeddings.
    parts : int, default 1
        Number of vectors of C values per token: the samples of a patch, or value and difference.

    Examples
    --------
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
        """Embed tokens x [B, L, parts * C] with their times, from position `start` on."""
        y: Tensor = self.values(x, key_mask)
        if self.calendar is not None and calendar is not None:
            y = y + self.calendar(calendar, key_mask)
        if self.positions is not None:
            y = self.positions(y, start, key_mask)
        return self.dropout(y)

    def check(self, x: Tensor, calendar: Tensor | None, key_mask: Tensor | None = None) -> None:
        """Check that x is [B, L, C], and check its mask and calendar."""
        check_series(x, self.channels, key_mask)
        self.check_calendar(calendar, x.shape[0], x.shape[1])

    def check_calendar(self, calendar: Tensor | None, B: int, L: int) -> None:
        """Check that calendar is [B, L, F] if the model has calendar fields, and None otherwise."""
        if self.calendar is None:
            if calendar is not None:
                raise ValueError(
                    "calendar must be None for a model without calendar fields:"
                    " build it with calendar=('month', 'day', ...)"
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


def check_series(x: Tensor, channels: int, key_mask: Tensor | None) -> None:
    """Check that x is [B, L, channels], and check its mask."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a floating-point tensor, got {kind}")
    if x.dim() != 3 or x.shape[2] != channels or not x.shape[1]:
        raise ValueError(
            f"x must be [B, L, {channels}] with L >= 1, as channels = {channels}, got shape"
            f" {tuple(x.shape)}"
        )
    if key_mask is not None:
        check_mask(key_mask, x)


def to_front(
    key_mask: Tensor, x: Tensor, calendar: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Move valid tokens to the front of their rows, so that neighbours and positions are right.

    Returns the new mask [B, L], x [B, L, C] and calendar [B, L, F], with 0 for masked tokens.
    """
    position, count = front_positions(key_mask)
    front = torch.arange(key_mask.shape[1], device=key_mask.device) < count

    def move(series: Tensor) -> Tensor:
        there = position.unsqueeze(-1).expand_as(series)
        return zero_masked(torch.zeros_like(series).scatter(1, there, series), front)

    return front, move(x), None if calendar is None else move(calendar)


def from_front(key_mask: Tensor, y: Tensor) -> Tensor:
    """Undo `to_front`: move tokens y [B, L, D] back, with 0 for masked tokens."""
    position = (key_mask.cumsum(1) - 1).clamp(min=0)
    return zero_masked(y.gather(1, position.unsqueeze(-1).expand_as(y)), key_mask)


def in_patches(
    patch: int, x: Tensor, key_mask: Tensor | None, calendar: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Join each `patch` samples to one token, x [B, L, C] -> [B, ceil(L / patch), patch * C].

    Valid samples must be in front, as after `to_front`. The last patch is padded with 0. Each token
    has the mask and the time of its first sample.
    """
    B, L, C = x.shape
    count = (L + patch - 1) // patch
    if exporting():  # torch.export cannot trace an axis that may have size 1
        count = torch.sym_max(count, 2)
    missing = count * patch - L

    def first(column: Tensor | None, *after: int) -> Tensor | None:
        return None if column is None else F.pad(column, (*after, 0, missing))[:, ::patch]

    tokens = F.pad(x, (0, 0, 0, missing)).reshape(B, count, patch * C)
    return tokens, first(key_mask), first(calendar, 0, 0)
