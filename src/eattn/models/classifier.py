"""A label for a series, from an encoder that sees all of it at once (Table 3)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.distributed.context import check_not_sharded
from eattn.models.series_embedding import (
    SeriesEmbedding,
    in_patches,
    last_valid,
    to_front,
)
from eattn.nn.block import TransformerConfig, configure
from eattn.nn.embedding import KINDS
from eattn.nn.encoder import TransformerEncoder

POOLINGS = ("mean", "max", "last", "flatten")


class SequenceClassifier(nn.Module):
    """logits = head(pool(encoder(embed(x)))): x [B, L, channels] -> [B, classes].

    `pooling` makes one vector of the tokens: their mean, their largest value per channel, the last
    one, or "flatten", all of them side by side as Time-Series-Library does, for series of up to
    `max_len` samples. `patch` consecutive samples make one token. `embed` is "linear", or "conv"
    over three neighbours (0 beyond the ends, where that library wraps around). `calendar` names
    fields of the sampling times to embed. `positions` are learned, for `max_len` samples or 512
    tokens. The config, its fields by keyword, or both (keywords win) say the rest; causal=True is
    allowed, though a label need not wait for later tokens.

    A masked sample is none: a row gives what it gives without it, wherever the padding is. A row
    without any gives the head's bias.

    >>> model = SequenceClassifier(3, classes=4, dim=32, depth=2, mixer="ea-6")
    >>> lengths = torch.tensor([20, 13])
    >>> model(torch.randn(2, 20, 3), key_mask=torch.arange(20) < lengths[:, None]).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        config: TransformerConfig | None = None,
        *,
        pooling: Literal["mean", "max", "last", "flatten"] = "mean",
        embed: Literal["linear", "conv"] = "linear",
        calendar: Sequence[str] | None = None,
        positions: bool = True,
        patch: int = 1,
        **changes: Any,
    ) -> None:
        super().__init__()
        self.config = c = configure(config, changes)
        self.patch = check_size("patch", patch)
        if c.max_len is not None:  # in samples so far; what follows counts tokens
            c = replace(c, max_len=-(-c.max_len // patch))
        self.channels, self.classes = (
            check_size("channels", channels),
            check_size("classes", classes),
        )
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        if embed not in KINDS:
            raise ValueError(f"embed must be one of {', '.join(KINDS)}, got {embed!r}")
        if pooling == "flatten" and c.max_len is None:
            raise ValueError("pooling='flatten' needs max_len, the length of the longest series")
        self.pooling = pooling
        self.embed = SeriesEmbedding(
            channels, c, kind=embed, calendar=calendar, positions=positions, parts=patch
        )
        self.encoder = TransformerEncoder(c)
        self.dropout = nn.Dropout(c.dropout)
        self.places = c.max_len or 1 if pooling == "flatten" else 1  # vectors that reach the head
        self.head = nn.Linear(c.dim * self.places, classes)

    def extra_repr(self) -> str:
        return (
            f"channels={self.channels}, classes={self.classes}, pooling={self.pooling!r},"
            f" patch={self.patch}"
        )

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        calendar: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, classes] of x [B, L, C], its real samples [B, L] and times [B, L, F]."""
        check_not_sharded("SequenceClassifier")
        self.embed.check(x, calendar, key_mask)
        limit = self.config.max_len
        if self.pooling == "flatten" and limit is not None and x.shape[1] > limit:
            raise ValueError(
                f"x of length L = {x.shape[1]} is longer than max_len = {limit},"
                " which pooling='flatten' was made for"
            )
        if key_mask is not None:
            key_mask, x, calendar = to_front(key_mask, x, calendar)
        if self.patch > 1:
            x, key_mask, calendar = in_patches(self.patch, x, key_mask, calendar)
        y = self.embed(x, calendar=calendar, key_mask=key_mask)
        y = self.encoder(y, key_mask=key_mask)
        logits: Tensor = self.head(self._pool(y, key_mask))
        return logits

    def _pool(self, y: Tensor, key_mask: Tensor | None) -> Tensor:
        """[B, L, D] -> [B, D], or [B, places * D] when flattened; 0 for a row without tokens."""
        if self.pooling == "last":
            return self.dropout(last_valid(y, key_mask))
        if self.pooling == "flatten":
            y = self.dropout(F.gelu(y))
        hidden = None if key_mask is None else ~key_mask.unsqueeze(-1)
        if self.pooling == "max":
            return self.dropout(_largest(y, hidden))
        if hidden is not None:
            y = y.masked_fill(hidden, 0.0)
        if self.pooling == "flatten":
            return F.pad(y, (0, 0, 0, self.places - y.shape[1])).flatten(1)
        count = y.shape[1] if key_mask is None else key_mask.sum(1, keepdim=True).clamp(min=1)
        return self.dropout(y.sum(1) / count)


def _largest(y: Tensor, hidden: Tensor | None) -> Tensor:
    if hidden is None:
        return y.amax(1)
    largest = y.masked_fill(hidden, -torch.inf).amax(1)
    return largest.masked_fill(hidden.all(1), 0.0)
