"""Series as they come, [channels, length] with NaN where a value is missing, made into tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Series = NDArray[Any]
LIMIT = 100.0  # standard deviations: what is farther out is cut off, so that nothing overflows
CONSTANT = 1e-12  # of a channel's largest value: a deviation this small is rounding, not signal


@dataclass(frozen=True, eq=False)
class Scaling:
    """(x - mean) / std per channel, as in training, within ±LIMIT; a missing value becomes 0.

    With `flags` a further channel for each one is 1 where a value was observed and 0 where it was
    missing. Time points before the first observed one and after the last are left out; those
    between keep their place.
    """

    mean: NDArray[np.float64]  # [C]
    std: NDArray[np.float64]  # [C]
    flags: bool

    @classmethod
    def of(cls, X: Iterable[Series]) -> "Scaling":
        """From training series; the std of a constant channel is taken to be its size."""
        values = np.concatenate([trim(case) for case in X], axis=1).astype(np.float64)
        missing = np.isnan(values)
        if missing.all():
            raise ValueError("X must hold values, got none but NaN")
        count = np.maximum((~missing).sum(1, keepdims=True), 1)
        seen = np.where(missing, 0.0, values)
        size = np.abs(seen).max(1, keepdims=True)
        size[size == 0] = 1.0
        seen /= size  # squares of large values must not overflow
        mean = seen.sum(1, keepdims=True) / count
        apart = np.where(missing, 0.0, seen - mean)
        std = np.sqrt((apart**2).sum(1, keepdims=True) / count)
        std[std <= CONSTANT] = 1.0
        return cls((mean * size)[:, 0], (std * size)[:, 0], bool(missing.any()))

    @property
    def channels(self) -> int:
        """Of the tensors it makes."""
        return len(self.mean) * (2 if self.flags else 1)

    def __call__(self, X: Iterable[Series]) -> list[Tensor]:
        """A float32 tensor [length, channels] for each series; length 0 where nothing was seen."""
        return [self._one(trim(case)) for case in X]

    def _one(self, case: Series) -> Tensor:
        missing = np.isnan(case)
        z = (case.astype(np.float64) - self.mean[:, None]) / self.std[:, None]
        z = np.where(missing, 0.0, z.clip(-LIMIT, LIMIT))
        if self.flags:
            z = np.concatenate([z, ~missing])
        return torch.from_numpy(np.ascontiguousarray(z.T, dtype=np.float32))


def trim(case: Series) -> Series:
    """Without the time points at either end at which no channel was observed."""
    seen = np.flatnonzero(~np.isnan(case).all(axis=0))
    return case[:, seen[0] : seen[-1] + 1] if len(seen) else case[:, :0]


def check_finite(X: Iterable[Series]) -> None:
    """That no value is infinite: it would say nothing, and spoil the statistics."""
    for number, case in enumerate(X):
        if np.isinf(case).any():
            channel, place = (int(i) for i in np.argwhere(np.isinf(case))[0])
            raise ValueError(
                f"X must be finite, or NaN where a value is missing, got {case[channel, place]}"
                f" in case {number}, channel {channel}, time point {place}"
            )


def check_channels(X: Sequence[Series]) -> None:
    """That all cases have as many channels as the first."""
    for number, case in enumerate(X):
        if len(case) != len(X[0]):
            raise ValueError(
                f"X must have the same number of channels in every case, got {len(X[0])}"
                f" in case 0 and {len(case)} in case {number}"
            )


def side_by_side(series: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Series [length, C] as a batch [B, L, C], and which samples are real [B, L]; None: all."""
    lengths = [len(x) for x in series]
    batch = torch.nn.utils.rnn.pad_sequence(list(series), batch_first=True)
    if min(lengths) == max(lengths) > 0:
        return batch, None
    if not batch.shape[1]:
        batch = batch.new_zeros(len(series), 1, batch.shape[2])
    return batch, torch.arange(batch.shape[1]) < torch.tensor(lengths).unsqueeze(1)


def pieces(x: Tensor, longest: int) -> list[Tensor]:
    """x [L, C] itself, or as few pieces of the `longest` length as cover it, evenly spread.

    >>> [piece.flatten().tolist() for piece in pieces(torch.arange(5).unsqueeze(1), 3)]
    [[0, 1, 2], [2, 3, 4]]
    """
    if len(x) <= longest:
        return [x]
    count = -(-len(x) // longest)
    starts = [round(i * (len(x) - longest) / (count - 1)) for i in range(count)]
    return [x[start : start + longest] for start in starts]


def held_out(y: NDArray[np.int64], fraction: float, *, seed: int) -> NDArray[np.int64]:
    """Which cases to judge by: that fraction of each class at random, rounded, never all of it.

    None at all where that makes fewer than 10: too few to tell one epoch from another.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        cases = rng.permutation(np.flatnonzero(y == label))
        chosen.append(cases[: min(int(fraction * len(cases) + 0.5), len(cases) - 1)])
    together = np.sort(np.concatenate(chosen))
    return together if len(together) >= 10 else together[:0]
