"""Classifier of time series by fixed convolutions: which shares of outputs exceed which thresholds.

The features follow MiniRocket (Dempster et al., 2021): 84 kernels of width 9 with weights -1 and
2, several dilations, and the share of outputs above a threshold. Here they are also computed from
the differences of the series, and masked samples do not count.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.nn.padding import zero_masked
from eattn.ops.traceable import exporting

WIDTH, TWOS = 9, 3  # of a kernel: its number of weights, and how many of them are 2
KERNELS = 84  # choices of 3 of 9 weights
SOURCES = 2  # the series and its differences
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly over [0, 1]
VALUES = 2048  # number of outputs of which a threshold is a quantile


class KernelClassifier(nn.Module):
    """logits = W features(x) + b, x [B, L, channels] -> [B, classes].

    `set_thresholds` draws the kernels' channels and sets the thresholds; W and b are zero until
    they are fitted, in closed form, with `eattn.timeseries.ridge`.

    Parameters
    ----------
    channels : int
        Number of channels C of the series.
    classes : int
        Number of classes.
    dilations : sequence of int
        Distances between the samples that a kernel reads.
    thresholds : int
        Number of thresholds per kernel and dilation.

    Examples
    --------
    >>> model = KernelClassifier(3, classes=4, dilations=(1, 2, 4), thresholds=2)
    >>> x = torch.randn(2, 20, 3)
    >>> model.set_thresholds([x], torch.Generator().manual_seed(0))
    >>> model.features(x).shape, model(x).shape
    (torch.Size([2, 1008]), torch.Size([2, 4]))
    """

    def __init__(
        self, channels: int, classes: int, *, dilations: Sequence[int], thresholds: int
    ) -> None:
        super().__init__()
        self.channels, self.classes = channels, check_size("classes", classes)
        self.dilations = tuple(dilations)
        parts = SOURCES * len(self.dilations)
        size = parts * KERNELS * check_size("thresholds", thresholds)
        self.reads: Tensor  # [parts, KERNELS, C], 1 for the channels that a kernel sums
        self.thresholds: Tensor  # [parts, thresholds, KERNELS]
        self.register_buffer("reads", torch.ones(parts, KERNELS, check_size("channels", channels)))
        self.register_buffer("thresholds", torch.zeros(parts, thresholds, KERNELS))
        self.head = nn.Linear(size, classes).requires_grad_(False)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, dilations={self.dilations}"

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Classify series.

        Parameters
        ----------
        x : Tensor, shape (B, L, C)
            Values.
        key_mask : bool Tensor, shape (B, L), optional
            True for valid samples.

        Returns
        -------
        logits : Tensor, shape (B, classes)
        """
        logits: Tensor = self.head(self.features(x, key_mask))
        return logits

    def features(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return the share of valid outputs above each threshold, [B, features]."""
        sources = _sources(x, key_mask)
        found = []
        for part, thresholds in enumerate(self.thresholds):
            values, mask = sources[part % SOURCES]
            y = self._convolve(values, part)
            if mask is not None:
                y = y.masked_fill(~mask.unsqueeze(1), -torch.inf)
                count = mask.sum(1, keepdim=True).clamp(min=1)
            above = _count_above(y, thresholds.unsqueeze(-1))
            found.append(above / (y.shape[-1] if mask is None else count))
        return torch.cat(found, 1)

    def set_thresholds(self, batches: Sequence[Tensor], generator: torch.Generator) -> None:
        """Draw the channels of each kernel, and set its thresholds to quantiles of its outputs.

        Parameters
        ----------
        batches : sequence of Tensor, shape (B, L, C)
            Training series, all samples of which are valid.
        generator : torch.Generator
            Source of random numbers.
        """
        self.reads.copy_(_draw_channels(self.reads, generator))
        sources = [_sources(x, None) for x in batches]
        for part, thresholds in enumerate(self.thresholds):
            outputs = [
                self._convolve(each[part % SOURCES][0], part).transpose(0, 1).flatten(1)
                for each in sources
            ]
            y = torch.cat(outputs, 1)
            chosen = torch.randint(y.shape[1], (VALUES,), generator=generator)
            y = y[:, chosen].sort(1).values
            y = (y[:, 1:] + y[:, :-1]) / 2  # between outputs, so that rounding decides nothing
            share = torch.arange(1, thresholds.numel() + 1) * GOLDEN % 1
            at = (share.view(thresholds.shape) * y.shape[1]).long()
            thresholds.copy_(y.gather(1, at.T).T)

    def _convolve(self, x: Tensor, part: int) -> Tensor:
        """Convolve x [B, C, L] with the kernels of a part, zero-padded to [B, KERNELS, L]."""
        dilation = self.dilations[part // SOURCES]
        weight = self.reads[part].unsqueeze(-1) * _kernels(x).unsqueeze(1)
        return F.conv1d(x, weight, padding=WIDTH // 2 * dilation, dilation=dilation)


def choose_dilations(length: int) -> tuple[int, ...]:
    """Return dilations whose kernels fit into a series: 1, 2, 3, 4, 6, 8, 12, ...

    >>> choose_dilations(100)
    (1, 2, 3, 4, 6, 8, 12)
    """
    largest = max((length - 1) // (WIDTH - 1), 1)
    powers = [2**i for i in range(largest.bit_length())]
    between = [3 * power // 2 for power in powers[1:]]
    return tuple(d for d in sorted({*powers, *between}) if d <= largest)


def _count_above(y: Tensor, thresholds: Tensor) -> Tensor:
    """Count the outputs y [B, K, L] above thresholds [T, K, 1], as floats [B, T K]."""
    if exporting():
        return (y.unsqueeze(1) > thresholds).to(y.dtype).sum(-1).flatten(1)
    # Comparisons that are written as floats are summed several times as fast as bools.
    above = torch.empty_like(y)
    return torch.cat([torch.gt(y, each, out=above).sum(-1) for each in thresholds], 1)


def _kernels(like: Tensor) -> Tensor:
    """Return all kernels [KERNELS, WIDTH] with three weights of 2 and six of -1."""
    weight = like.new_full((KERNELS, WIDTH), -1.0)
    twos = torch.tensor(list(combinations(range(WIDTH), TWOS)), device=like.device)
    return weight.scatter(1, twos, 2.0)


def _sources(x: Tensor, key_mask: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
    """Return the series and its differences as [B, C, L], each with its mask."""
    if key_mask is not None:
        x = zero_masked(x, key_mask)
    # Shifted by padding, as torch.export cannot trace an axis that may have size 0.
    known = torch.arange(x.shape[1], device=x.device) > 0
    difference = (x - F.pad(x, (0, 0, 1, -1))) * known.unsqueeze(-1)
    if key_mask is not None:
        known = key_mask & F.pad(key_mask, (1, -1))
        difference = zero_masked(difference, known)
    return [(each.transpose(1, 2).contiguous(), key_mask) for each in (x, difference)]


def _draw_channels(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the channels that each kernel sums: few more often than many, at most 9."""
    *shape, channels = like.shape
    most = torch.tensor(min(channels, WIDTH) + 1.0).log2()
    count = torch.exp2(torch.rand(*shape, 1, generator=generator) * most).floor()
    rank = torch.rand(*shape, channels, generator=generator).argsort(-1).argsort(-1)
    return (rank < count).to(like)
