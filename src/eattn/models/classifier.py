"""Classifier of time series: encoder, pooling and linear head (Table 3)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.distributed.context import check_not_sharded
from eattn.models.series_embedding import SeriesEmbedding, in_patches, to_front
from eattn.nn.block import TransformerConfig, TransformerOptions, configure
from eattn.nn.embedding import KINDS
from eattn.nn.encoder import TransformerEncoder
from eattn.nn.padding import last_valid, max_valid, mean_valid, zero_masked

POOLINGS = ("mean", "max", "last", "flatten")


class SequenceClassifier(nn.Module):
    """logits = head(pool(encoder(embed(x)))), x [B, L, channels] -> [B, classes].

    Masked samples have no effect, wherever they are. The logits of a row without valid samples are
    the bias of the head.

    Parameters
    ----------
    channels : int
        Number of channels C of the series.
    classes : int
        Number of classes.
    config : TransformerConfig, optional
        Configuration of the encoder; the default one if omitted. `max_len` counts samples.
    pooling : {"mean", "max", "last", "flatten"}, default "mean"
        Mean or maximum over the tokens, the last token, or all tokens concatenated. "flatten"
        requires `max_len`, as in Time-Series-Library.
    embed : {"linear", "conv"}, default "linear"
        Embedding of the values: a linear map, or a convolution of width 3 that is zero-padded
        (Time-Series-Library pads circularly).
    calendar : sequence of str, optional
        Names of the calendar fields to embed; see `calendar_fields`.
    positions : bool, default True
        Learn positional embeddings, for `max_len` samples or, by default, 512 tokens.
    patch : int, default 1
        Number of consecutive samples per token.
    **changes
        Fields of `TransformerConfig`, which take precedence over `config`.

    Examples
    --------
    >>> import torch
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
        **changes: Unpack[TransformerOptions],
    ) -> None:
        super().__init__()
        self.config = c = configure(config, changes)
        self.patch = check_size("patch", patch)
        if c.max_len is not None:  # convert from samples to tokens
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
        self.slots = c.max_len or 1 if pooling == "flatten" else 1  # vectors that the head reads
        self.head = nn.Linear(c.dim * self.slots, classes)

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
        """Classify series.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Values.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid samples.
        calendar : int Tensor, shape (B, L, F), optional
            Calendar fields of each sample, if the model was built with `calendar`.

        Returns
        -------
        logits : Tensor, shape (B, classes)
        """
        check_not_sharded("SequenceClassifier")
        self.embed.check(x, calendar, key_mask)
        limit = self.config.max_len
        if self.pooling == "flatten" and limit is not None and x.shape[1] > limit:
            raise ValueError(
                f"x of length L = {x.shape[1]} is longer than max_len = {limit}, the limit of"
                " pooling='flatten'"
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
        """Pool [B, L, D] to [B, D], or to [B, slots * D] when flattened; 0 in empty rows."""
        if self.pooling == "last":
            return self.dropout(last_valid(y, key_mask))
        if self.pooling == "flatten":
            y = self.dropout(F.gelu(y))
            y = y if key_mask is None else zero_masked(y, key_mask)
            return F.pad(y, (0, 0, 0, self.slots - y.shape[1])).flatten(1)
        pool = max_valid if self.pooling == "max" else mean_valid
        return self.dropout(pool(y, key_mask))
