"""Input of the classifier: arrays [channels, length], NaN where missing, made into batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn.timeseries.scaling import Scaler

Case = NDArray[Any]  # one series [channels, length]
LIMIT = 100.0  # standard deviations at which scaled values are clipped
MIN_VALIDATION = 10  # fewer cases cannot tell one epoch from another


def fit_scaler(X: Iterable[Case]) -> tuple[Scaler, bool]:
    """Return the scaler of each channel, and whether any value is missing inside a series."""
    values = np.concatenate([trim(case) for case in X], axis=1).astype(np.float64)
    missing = np.isnan(values)
    if missing.all():
        raise ValueError("X must hold values, got none but NaN")
    return Scaler.fit(values, limit=LIMIT), bool(missing.any())


def to_tensors(X: Iterable[Case], scaler: Scaler, *, flag_missing: bool) -> list[Tensor]:
    """Return each series as a scaled float32 tensor [length, channels] with 0 for missing values.

    `flag_missing` adds a channel for each one that is 1 for observed and 0 for missing values. Time
    points before the first observed one and after the last are left out.
    """
    tensors = []
    for case in map(trim, X):
        missing = np.isnan(case)
        x = np.where(missing, 0.0, scaler.transform(case))
        if flag_missing:
            x = np.concatenate([x, ~missing])
        tensors.append(torch.from_numpy(np.ascontiguousarray(x.T, dtype=np.float32)))
    return tensors


def trim(case: Case) -> Case:
    """Cut off the time points at either end at which no channel was observed."""
    seen = np.flatnonzero(~np.isnan(case).all(axis=0))
    return case[:, seen[0] : seen[-1] + 1] if len(seen) else case[:, :0]


def check_finite(X: Iterable[Case]) -> None:
    """Raise on infinite values, which would spoil the statistics."""
    for number, case in enumerate(X):
        if np.isinf(case).any():
            channel, time = (int(i) for i in np.argwhere(np.isinf(case))[0])
            raise ValueError(
                f"X must be finite, or NaN where a value is missing, got {case[channel, time]}"
                f" in case {number}, channel {channel}, time point {time}"
            )


def check_channels(X: Sequence[Case]) -> None:
    """Raise unless all cases have as many channels as the first."""
    for number, case in enumerate(X):
        if len(case) != len(X[0]):
            raise ValueError(
                f"X must have the same number of channels in every case, got {len(X[0])}"
                f" in case 0 and {len(case)} in case {number}"
            )


def pad(series: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return tensors [length, C] as a batch [B, L, C] and its mask [B, L], None if all is valid."""
    lengths = [len(x) for x in series]
    batch = torch.nn.utils.rnn.pad_sequence(list(series), batch_first=True)
    if min(lengths) == max(lengths) > 0:
        return batch, None
    if not batch.shape[1]:
        batch = batch.new_zeros(len(series), 1, batch.shape[2])
    return batch, torch.arange(batch.shape[1]) < torch.tensor(lengths).unsqueeze(1)


def split_long(x: Tensor, max_len: int) -> list[Tensor]:
    """Return x [L, C] itself, or as few evenly spread pieces of `max_len` as cover it.

    >>> [piece.flatten().tolist() for piece in split_long(torch.arange(5).unsqueeze(1), 3)]
    [[0, 1, 2], [2, 3, 4]]
    """
    if len(x) <= max_len:
        return [x]
    count = -(-len(x) // max_len)
    starts = [round(i * (len(x) - max_len) / (count - 1)) for i in range(count)]
    return [x[start : start + max_len] for start in starts]


def validation_cases(y: NDArray[np.int64], fraction: float, *, seed: int) -> NDArray[np.int64]:
    """Draw that fraction of each class for validation, but never a whole class.

    Returns no cases at all if there would be fewer than 10.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        cases = rng.permutation(np.flatnonzero(y == label))
        chosen.append(cases[: min(int(fraction * len(cases) + 0.5), len(cases) - 1)])
    together = np.sort(np.concatenate(chosen))
    return together if len(together) >= MIN_VALIDATION else together[:0]
