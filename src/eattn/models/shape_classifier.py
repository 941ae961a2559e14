"""Classifier of time series: a convolutional stem that sees shapes, attention, and pooling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_bool, check_size
from eattn.distributed.context import check_not_sharded
from eattn.models.series_embedding import check_series, to_front
from eattn.nn.block import TransformerConfig
from eattn.nn.decoding_state import StateBase
from eattn.nn.encoder import EncoderState, TransformerEncoder
from eattn.nn.padding import max_valid, mean_valid
from eattn.ops.traceable import exporting

FIRST_WIDTHS, NEXT_WIDTHS = (9, 19, 39), (5, 11, 21)  # of the convolutions, in tokens; all odd
BOTTLENECK = 32  # channels that the convolutions after the first layer read
DROPOUT = 0.2  # of the pooled vector
NETWORK_WEIGHT = 1 / 3  # of the networks' log-probabilities, next to those of the kernels


@dataclass(frozen=True, eq=False)
class ShapeState(StateBase):
    """State of a causal `ShapeClassifier` after some samples; its size is constant."""

    windows: tuple[Tensor, ...]  # last inputs of each layer of the stem, [B, channels, width - 1]
    encoder: EncoderState
    total: Tensor  # sum of the tokens, [B, D]
    largest: Tensor  # maximum of the tokens, [B, D]
    count: Tensor  # number of samples, [B, 1]


class ShapeClassifier(nn.Module):
    """logits = head(mean and maximum of encoder(stem(x))), x [B, L, channels] -> [B, classes].

    The stem is two layers of parallel convolutions of several widths with batch normalisation.
    Masked samples have no effect, wherever they are; the batch statistics skip them.

    Parameters
    ----------
    channels : int
        Number of channels C of the series.
    classes : int
        Number of classes.
    mixer : str, default "ea-6"
        Any name that `make_mixer` accepts.
    dim : int, default 64
        Number of channels D of the model.
    depth : int, default 2
        Number of Transformer blocks; 0 for a purely convolutional model.
    heads : int, default 8
        Number of heads, for mixers that have heads.
    ffn : int, optional
        Width of the feed-forward layers; by default 2 dim.
    dropout : float, default 0.0
        Dropout rate in the blocks.
    causal : bool, default False
        Read only earlier samples, so that `step` can classify a stream.
    stride : int, default 1
        Number of samples that are averaged to one token after the first layer of the stem; must
        be 1 if `causal`.
    max_len : int, optional
        Longest series in samples, for mixers that need it.

    Examples
    --------
    >>> model = ShapeClassifier(3, classes=4, dim=16, stride=2).eval()
    >>> lengths = torch.tensor([20, 13])
    >>> model(torch.randn(2, 20, 3), key_mask=torch.arange(20) < lengths[:, None]).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        mixer: str = "ea-6",
        dim: int = 64,
        depth: int = 2,
        heads: int = 8,
        ffn: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        stride: int = 1,
        max_len: int | None = None,
    ) -> None:
        super().__init__()
        self.channels = check_size("channels", channels)
        self.classes = check_size("classes", classes)
        self.stride = check_size("stride", stride)
        if check_bool("causal", causal) and stride > 1:
            raise ValueError(f"stride must be 1 for a causal model, got {stride}")
        self.config = c = TransformerConfig(
            dim=dim,
            depth=depth or 1,
            mixer=mixer,
            heads=heads,
            causal=causal,
            ffn=2 * dim if ffn is None else ffn,
            norm="pre",
            dropout=dropout,
            max_len=None if max_len is None else -(-max_len // stride),
        )
        self.stem = nn.ModuleList(
            [
                MultiScaleConv(channels, c.dim, FIRST_WIDTHS, causal=causal),
                MultiScaleConv(c.dim, c.dim, NEXT_WIDTHS, bottleneck=BOTTLENECK, causal=causal),
            ]
        )
        self.encoder = TransformerEncoder(c) if depth else None
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(2 * c.dim, classes)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, classes={self.classes}, stride={self.stride}"

    def forward(self, x: Tensor, key_mask: Tensor | None = None, *, every: bool = False) -> Tensor:
        """Classify series.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Values.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid samples.
        every : bool, default False
            Return the logits after every sample of a causal model. Valid samples must come first.

        Returns
        -------
        logits : Tensor, shape (B, classes), or (B, L, classes) with `every`
        """
        check_not_sharded("ShapeClassifier")
        check_series(x, self.channels, key_mask)
        if every and not self.config.causal:
            raise ValueError("every=True needs a causal model, whose tokens read no later samples")
        if key_mask is not None:
            key_mask, x, _ = to_front(key_mask, x, None)
        first, second = self._layers()
        y = F.gelu(first(x.transpose(1, 2), key_mask))
        if self.stride > 1:
            y, key_mask = _mean_of_patches(y, key_mask, self.stride)
        y = F.gelu(y + second(y, key_mask)).transpose(1, 2)
        if self.encoder is not None:
            y = self.encoder(y, key_mask=key_mask)
        logits: Tensor = self.head(self.dropout(_pool_every(y) if every else _pool(y, key_mask)))
        return logits

    def step(self, x_t: Tensor, state: ShapeState | None = None) -> tuple[Tensor, ShapeState]:
        """Classify streams after one more sample of each.

        Parameters
        ----------
        x_t : Tensor, shape (B, C)
            Next sample of each stream.
        state : ShapeState, optional
            State after the samples before; None if x_t is the first sample.

        Returns
        -------
        logits : Tensor, shape (B, classes)
        state : ShapeState
        """
        if not self.config.causal:
            raise ValueError("only a causal classifier has a step: build it with causal=True")
        state = self.empty_state(x_t) if state is None else state
        first, second = self._layers()
        y, window = first.step(x_t.unsqueeze(-1), state.windows[0])
        y = F.gelu(y)
        z, hidden = second.step(y, state.windows[1])
        y = F.gelu(y + z).squeeze(-1)
        encoder = state.encoder
        if self.encoder is not None:
            y, encoder = self.encoder.step(y, encoder if encoder.layers else None)
        total, largest = state.total + y, torch.maximum(state.largest, y)
        count = state.count + 1
        logits: Tensor = self.head(torch.cat([total / count, largest], -1))
        return logits, ShapeState((window, hidden), encoder, total, largest, count)

    def empty_state(self, like: Tensor) -> ShapeState:
        """Return the state of new streams with the rows, dtype and device of `like`."""
        B, dim = len(like), self.config.dim
        first, second = self._layers()
        return ShapeState(
            (like.new_zeros(B, *first.window), like.new_zeros(B, *second.window)),
            EncoderState(()),
            like.new_zeros(B, dim),
            like.new_full((B, dim), -torch.inf),
            like.new_zeros(B, 1),
        )

    def _layers(self) -> "tuple[MultiScaleConv, MultiScaleConv]":
        first, second = self.stem
        assert isinstance(first, MultiScaleConv) and isinstance(second, MultiScaleConv)
        return first, second


class MultiScaleConv(nn.Module):
    """Parallel convolutions of several odd widths, [B, C, L] -> [B, dim, L], then batch norm.

    Masked inputs must be 0, as must be the inputs before and after the series; masked outputs are
    0.
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        widths: Sequence[int],
        *,
        bottleneck: int | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal, self.widths, self.reach = causal, tuple(widths), max(widths) - 1
        inner = channels if bottleneck is None else min(bottleneck, channels)
        self.narrow: nn.Module = nn.Identity()
        if inner < channels:
            self.narrow = nn.Conv1d(channels, inner, 1, bias=False)
        parts = [len(part) for part in torch.arange(dim).tensor_split(len(widths))]
        self.convs = nn.ModuleList(
            nn.Conv1d(inner, part, width, bias=False)
            for part, width in zip(parts, widths, strict=True)
            if part
        )
        self.norm = _ValidBatchNorm(dim)
        self.window = (inner, self.reach)  # shape of the inputs that `step` keeps

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        half = self.reach // 2
        sides = (self.reach, 0) if self.causal else (half, half)
        y = self.norm(self._convolve(F.pad(self.narrow(x), sides)), key_mask)
        return y if key_mask is None else y.masked_fill(~key_mask.unsqueeze(1), 0.0)

    def step(self, x_t: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve one input [B, C, 1] after the last inputs; return the next ones, too."""
        window = torch.cat([window, self.narrow(x_t)], -1)
        return self.norm(self._convolve(window), None), window[..., 1:]

    def _convolve(self, window: Tensor) -> Tensor:
        """Convolve [B, C, L + reach] to [B, dim, L]."""
        parts = []
        for conv, width in zip(self.convs, self.widths, strict=False):
            spare = self.reach - (width - 1)
            start = spare if self.causal else spare // 2
            end = window.shape[-1] - (0 if self.causal else spare // 2)
            parts.append(conv(window[..., start:end]))
        return torch.cat(parts, 1)


class _ValidBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of [B, D, L] with the statistics of the valid tokens."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        if not self.training:
            return super().forward(x)
        tokens = x.transpose(1, 2)
        valid = tokens.flatten(0, 1) if key_mask is None else tokens[key_mask]
        if len(valid) < 2:  # without a variance, the running statistics are used
            options = (self.running_mean, self.running_var, self.weight, self.bias)
            return F.batch_norm(x, *options, training=False, eps=self.eps)
        if key_mask is None:
            return super().forward(x)
        y = torch.zeros_like(tokens)
        y[key_mask] = super().forward(valid)
        return y.transpose(1, 2)


def _mean_of_patches(
    y: Tensor, key_mask: Tensor | None, stride: int
) -> tuple[Tensor, Tensor | None]:
    """Average the valid of each `stride` tokens of y [B, D, L]; return y and its mask."""
    B, D, L = y.shape
    count = (L + stride - 1) // stride
    if exporting():  # torch.export cannot trace an axis that may have size 1
        count = torch.sym_max(count, 2)
    missing = count * stride - L
    if key_mask is None:
        key_mask = y.new_ones(B, L, dtype=torch.bool)
    tokens = F.pad(y.transpose(1, 2), (0, 0, 0, missing)).reshape(B, count, stride * D)
    valid = F.pad(key_mask, (0, missing)).reshape(B, count, stride).sum(-1, keepdim=True)
    mean = tokens.view(B, count, stride, D).sum(2) / valid.clamp(min=1)
    return mean.transpose(1, 2), valid.squeeze(-1) > 0


def _pool(y: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the mean and the maximum over the valid tokens, [B, 2 D]; 0 in empty rows."""
    return torch.cat([mean_valid(y, key_mask), max_valid(y, key_mask)], -1)


def _pool_every(y: Tensor) -> Tensor:
    """Return the mean and the maximum of the tokens up to each one, [B, L, 2 D]."""
    count = torch.arange(1, y.shape[1] + 1, device=y.device).unsqueeze(-1)
    return torch.cat([y.cumsum(1) / count, y.cummax(1).values], -1)


class ClassifierEnsemble(nn.Module):
    """Mean of the probabilities of several networks, combined with a `KernelClassifier` if any.

    The combination is the geometric mean, in which the kernels count twice as much as all networks.

    Parameters
    ----------
    networks : sequence of ShapeClassifier
        Networks, at least one.
    kernels : KernelClassifier, optional
        Classifier with random convolutions.
    """

    def __init__(self, networks: Sequence[nn.Module], kernels: nn.Module | None = None) -> None:
        super().__init__()
        self.networks, self.kernels = nn.ModuleList(networks), kernels

    @property
    def config(self) -> TransformerConfig:
        """Configuration of the networks' blocks."""
        config: TransformerConfig = self.networks[0].config  # type: ignore[assignment]
        return config

    def forward(self, x: Tensor, key_mask: Tensor | None = None, *, every: bool = False) -> Tensor:
        """Return logits of the combined probabilities; see `ShapeClassifier.forward`."""
        logits = self._mean([network(x, key_mask, every=every) for network in self.networks])
        if self.kernels is None:
            return logits
        if every:
            raise ValueError("every=True needs a model without kernels, which read whole series")
        other: Tensor = self.kernels(x, key_mask).log_softmax(-1)
        return torch.lerp(other, logits.log_softmax(-1), NETWORK_WEIGHT)

    def _mean(self, logits: list[Tensor]) -> Tensor:
        """Return logits of the mean probabilities."""
        if len(logits) == 1:
            return logits[0]
        return torch.stack([each.log_softmax(-1) for each in logits]).logsumexp(0)

    def step(
        self, x_t: Tensor, state: tuple[ShapeState, ...] | None = None
    ) -> tuple[Tensor, tuple[ShapeState, ...]]:
        """Classify streams after one more sample x_t [B, C] of each; see `ShapeClassifier.step`.

        The state has a part for each network.
        """
        if self.kernels is not None:
            raise ValueError("a classifier with kernels has no step, as they read whole series")
        before = (None,) * len(self.networks) if state is None else state
        found = [
            network.step(x_t, own)  # type: ignore[operator]
            for network, own in zip(self.networks, before, strict=True)
        ]
        after = tuple(own for _, own in found)
        return self._mean([logits for logits, _ in found]), after
