"""Classifier of time series by random convolutions with a linear map of their pooled outputs.

A kernel has two kinds of features: the shares of its outputs above thresholds, as in ROCKET
(Dempster et al., 2020), and how strongly and how often it responds most and least within its group
of kernels, as in Hydra (Dempster et al., 2023). Masked samples do not count.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn._checks import check_size
from eattn.models.series_embedding import check_series, to_front
from eattn.nn.padding import zero_masked
from eattn.ops.traceable import exporting

WIDTH = 9  # of a kernel
GROUPS, GROUP_SIZE = 16, 8  # of the kernels of one source and dilation
KERNELS = GROUPS * GROUP_SIZE
SOURCES = 2  # the series and its differences
MOST_CHANNELS = 8  # that a kernel reads
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly over [0, 1]
VALUES = 2048  # number of outputs of which a threshold is a quantile
FLAT = 1e-4  # smaller differences may be rounding, as where a series is constant
CACHED = 2**18  # outputs computed at a time, so that they stay in the cache


class KernelClassifier(nn.Module):
    """logits = W features(x) + b, x [B, L, channels] -> [B, classes].

    `draw` draws the kernels and sets the thresholds; W and b are zero until they are fitted, in
    closed form, with `eattn.timeseries.ridge`.

    Parameters
    ----------
    channels : int
        Number of channels C of the series.
    classes : int
        Number of classes.
    dilations : sequence of int
        Distances between the samples that a kernel reads.
    thresholds : int
        Number of thresholds per kernel.

    Examples
    --------
    >>> model = KernelClassifier(3, classes=4, dilations=(1, 2), thresholds=2)
    >>> x = torch.randn(2, 20, 3)
    >>> model.draw([x], torch.Generator().manual_seed(0))
    >>> model.features(x).shape, model(x).shape
    (torch.Size([2, 1536]), torch.Size([2, 4]))
    """

    def __init__(
        self, channels: int, classes: int, *, dilations: Sequence[int], thresholds: int
    ) -> None:
        super().__init__()
        self.channels = check_size("channels", channels)
        self.classes = check_size("classes", classes)
        self.dilations = tuple(dilations)
        count, thresholds = len(self.dilations), check_size("thresholds", thresholds)
        self.kernels: Tensor
        self.thresholds: Tensor  # of the series' outputs; those of its differences have none
        self.register_buffer("kernels", torch.zeros(count, SOURCES, KERNELS, channels, WIDTH))
        self.register_buffer("thresholds", torch.zeros(count, thresholds, KERNELS))
        size = count * KERNELS * (thresholds + 2 * SOURCES)
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
        """Return the pooled outputs of all kernels, [B, features]."""
        check_series(x, self.channels, key_mask)
        if exporting():
            return self._features(x, key_mask)
        rows = max(1, CACHED // (KERNELS * x.shape[1]))
        masks = [None] * len(x) if key_mask is None else key_mask.split(rows)
        parts = zip(x.split(rows), masks, strict=False)
        return torch.cat([self._features(part, mask) for part, mask in parts])

    def _features(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is not None:
            key_mask, x, _ = to_front(key_mask, x, None)
        found = []
        holds = x.new_empty(x.shape[0], KERNELS, x.shape[1])  # where comparisons hold
        for source, (values, mask) in enumerate(_sources(x, key_mask)):
            count = mask.sum(1, keepdim=True).clamp(min=1)
            hidden = torch.where(mask, 0.0, torch.inf).to(x.dtype).unsqueeze(1)  # [B, 1, L]
            for number in range(len(self.dilations)):
                y = self._convolve(values, source, number)
                found += [(each / count).sqrt() for each in _responses(y, hidden, holds)]
                if source == 0:
                    y = y - hidden
                    thresholds = self.thresholds[number].unsqueeze(-1)
                    for each in thresholds:
                        found.append(_compare(torch.gt, y, each, holds).sum(-1) / count)
        return torch.cat(found, 1)

    def draw(self, series: Sequence[Tensor], generator: torch.Generator) -> None:
        """Draw the kernels, and set the thresholds to quantiles of their outputs.

        Parameters
        ----------
        series : sequence of Tensor, shape (B, L, C)
            Training series, all samples of which are valid.
        generator : torch.Generator
            Source of random numbers.
        """
        self.kernels.copy_(_draw_kernels(self.kernels, generator))
        each = VALUES // len(series) + 1
        for number, thresholds in enumerate(self.thresholds):
            outputs = []
            for x in series:
                y = self._convolve(x.transpose(1, 2), 0, number).transpose(0, 1).flatten(1)
                outputs.append(y[:, torch.randperm(y.shape[1], generator=generator)[:each]])
            share = torch.arange(1, thresholds.numel() + 1) * GOLDEN % 1
            quantiles = _quantiles(torch.cat(outputs, 1), share.view(thresholds.shape).T)
            thresholds.copy_(quantiles.T)

    def _convolve(self, x: Tensor, source: int, number: int) -> Tensor:
        """Convolve x [B, C, L] with the kernels of a dilation, zero-padded to [B, KERNELS, L]."""
        dilation = self.dilations[number]
        kernels = self.kernels[number, source]
        return F.conv1d(x, kernels, padding=WIDTH // 2 * dilation, dilation=dilation)


def choose_dilations(length: int) -> tuple[int, ...]:
    """Return the powers of two whose kernels fit into a series.

    >>> choose_dilations(100)
    (1, 2, 4, 8)
    """
    largest = max((length - 1) // (WIDTH - 1), 1)
    return tuple(2**i for i in range(largest.bit_length()))


def _responses(y: Tensor, hidden: Tensor, holds: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the outputs y [B, KERNELS, L] within each group.

    Returns the sum of the positive outputs of each kernel that are the largest of their group, and
    the number of the negative ones that are the smallest, both [B, KERNELS]. Samples do not count
    where `hidden` [B, 1, L] is infinite; elsewhere, it is 0.
    """
    y, holds = (each.unflatten(1, (GROUPS, GROUP_SIZE)) for each in (y, holds))
    largest = y.amax(2, keepdim=True) - hidden.unsqueeze(1)
    smallest = y.amin(2, keepdim=True).clamp(max=-FLAT) + hidden.unsqueeze(1)
    most = (_compare(torch.eq, y, largest, holds) * F.threshold(largest, FLAT, 0.0)).sum(-1)
    return most.flatten(1), _compare(torch.eq, y, smallest, holds).sum(-1).flatten(1)


def _compare(compare: Callable[..., Tensor], x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """Return 1.0 where the comparison holds and 0.0 elsewhere; `out` is overwritten."""
    if exporting():
        return compare(x, y).to(x.dtype)
    return compare(x, y, out=out)  # summed several times as fast as bools


def _quantiles(y: Tensor, share: Tensor) -> Tensor:
    """Return quantiles of each row of y [K, n] at share [K, T], each in a gap between values.

    Values may be equal but for rounding, so a quantile is the mean of a value and the next one
    that is larger by FLAT.
    """
    y = y.sort(1).values
    value = y.gather(1, (share * y.shape[1]).long())
    after = torch.searchsorted(y, value + FLAT, right=True)
    y = torch.cat([y, y[:, -1:] + 2 * FLAT], 1)
    return (value + y.gather(1, after)) / 2


def _sources(x: Tensor, key_mask: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Return the series and its differences as [B, C, L], each with its mask."""
    if key_mask is None:
        key_mask = x.new_ones(x.shape[:2], dtype=torch.bool)
    # Shifted by padding, as torch.export cannot trace an axis that may have size 0.
    known = key_mask & F.pad(key_mask, (1, -1))
    difference = zero_masked(x - F.pad(x, (0, 0, 1, -1)), known)
    # `contiguous` keeps the strides of a single channel, with which convolutions are slow.
    rows, differences = (
        each.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        for each in (x, difference)
    )
    return [(rows, key_mask), (differences, known)]


def _draw_kernels(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw kernels of mean 0; a group reads half of the channels or MOST_CHANNELS of them."""
    count, sources, _, channels, _ = like.shape
    weight = torch.randn(like.shape, generator=generator)
    weight = weight - weight.mean(-1, keepdim=True)
    rank = torch.rand(count, sources, GROUPS, channels, generator=generator).argsort(-1).argsort(-1)
    read = rank < min((channels + 1) // 2, MOST_CHANNELS)
    weight = weight * read.repeat_interleave(GROUP_SIZE, 2).unsqueeze(-1)
    return weight / weight.abs().sum((3, 4), keepdim=True)
