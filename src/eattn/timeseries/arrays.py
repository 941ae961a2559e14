"""Input of the classifier: arrays [channels, length] with NaN for missing values."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eattn._checks import need_pandas
from eattn.timeseries.scaling import Scaler

Sample = NDArray[Any]  # one series [channels, length]
LIMIT = 100.0  # scaled values are clipped to this many standard deviations
MIN_VALIDATION = 10  # fewer samples are too noisy to compare epochs


def fit_scaler(X: Iterable[Sample]) -> tuple[Scaler, bool]:
    """Return a scaler for the channels, and whether any value is missing inside a series."""
    values = np.concatenate([trim(sample) for sample in X], axis=1).astype(np.float64)
    missing = np.isnan(values)
    if missing.all():
        raise ValueError("X must contain values, got only NaN")
    return Scaler.fit(values, limit=LIMIT), bool(missing.any())


def to_tensors(X: Iterable[Sample], scaler: Scaler, *, flag_missing: bool) -> list[Tensor]:
    """Return each series as a scaled float32 tensor [length, channels] with 0 for missing values.

    `flag_missing` adds one channel per channel, with 1 for observed and 0 for missing values. Time
    points before the first and after the last observation are dropped.
    """
    return [_to_tensor(sample, scaler, flag_missing) for sample in map(trim, X)]


def to_batch(X: Iterable[Sample], scaler: Scaler, *, flag_missing: bool) -> Tensor:
    """Return untrimmed series of equal length as one tensor [samples, length, channels]."""
    return torch.stack([_to_tensor(sample, scaler, flag_missing) for sample in X])


def _to_tensor(sample: Sample, scaler: Scaler, flag_missing: bool) -> Tensor:
    missing = np.isnan(sample)
    x = np.where(missing, 0.0, scaler.transform(sample))
    if flag_missing:
        x = np.concatenate([x, ~missing])
    return torch.from_numpy(np.ascontiguousarray(x.T, dtype=np.float32))


def trim(sample: Sample) -> Sample:
    """Drop the time points at both ends where no channel was observed."""
    seen = np.flatnonzero(~np.isnan(sample).all(axis=0))
    return sample[:, seen[0] : seen[-1] + 1] if len(seen) else sample[:, :0]


def check_finite(X: Iterable[Sample]) -> None:
    """Raise on infinite values, which would corrupt the statistics."""
    for number, sample in enumerate(X):
        if np.isinf(sample).any():
            channel, time = (int(i) for i in np.argwhere(np.isinf(sample))[0])
            raise ValueError(
                f"X must be finite or NaN (missing), got {sample[channel, time]}"
                f" in sample {number}, channel {channel}, time point {time}"
            )


def check_channels(X: Sequence[Sample]) -> None:
    """Raise unless all samples have the same number of channels."""
    for number, sample in enumerate(X):
        if len(sample) != len(X[0]):
            raise ValueError(
                f"X must have the same number of channels in every sample, got {len(X[0])}"
                f" in sample 0 and {len(sample)} in sample {number}"
            )


def to_labels(y: Any) -> NDArray[Any]:
    """Return labels as an array [samples]; raise if any is missing."""
    pd = need_pandas()
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        y = y.iloc[:, 0]
    labels: NDArray[Any] = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    missing = np.flatnonzero(pd.isna(labels))
    if len(missing):
        raise ValueError(f"y must not contain missing labels, got one in sample {missing[0]}")
    return labels


def is_fractional(labels: NDArray[Any]) -> bool:
    """Return whether labels are floats of which some are not whole."""
    return labels.dtype.kind == "f" and bool((labels != np.floor(labels)).any())


def check_not_regression(y: NDArray[Any], classes: NDArray[Any]) -> None:
    """Raise if fractional labels are almost all different, as the targets of a regression are."""
    if is_fractional(classes) and 2 * len(classes) > len(y):
        raise ValueError(
            f"y must be class labels, got {len(classes)} different numbers in {len(y)} samples;"
            " if they are labels, convert them to text with y.astype(str)"
        )


def pad(series: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Pad tensors [length, C] to a batch [B, L, C]; return it and its mask [B, L] or None."""
    lengths = [len(x) for x in series]
    batch = torch.nn.utils.rnn.pad_sequence(list(series), batch_first=True)
    if min(lengths) == max(lengths) > 0:
        return batch, None
    if not batch.shape[1]:
        batch = batch.new_zeros(len(series), 1, batch.shape[2])
    return batch, torch.arange(batch.shape[1]) < torch.tensor(lengths).unsqueeze(1)


def split_long(x: Tensor, max_len: int) -> list[Tensor]:
    """Split x [L, C] into the fewest evenly spread pieces of at most `max_len`.

    >>> [piece.flatten().tolist() for piece in split_long(torch.arange(5).unsqueeze(1), 3)]
    [[0, 1, 2], [2, 3, 4]]
    """
    if len(x) <= max_len:
        return [x]
    count = -(-len(x) // max_len)
    starts = [round(i * (len(x) - max_len) / (count - 1)) for i in range(count)]
    return [x[start : start + max_len] for start in starts]


def validation_samples(y: NDArray[np.int64], fraction: float, *, seed: int) -> NDArray[np.int64]:
    """Draw this fraction of each class for validation, but never a whole class.

    Returns no samples if there would be fewer than `MIN_VALIDATION`.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        samples = rng.permutation(np.flatnonzero(y == label))
        chosen.append(samples[: min(int(fraction * len(samples) + 0.5), len(samples) - 1)])
    together = np.sort(np.concatenate(chosen))
    return together if len(together) >= MIN_VALIDATION else together[:0]
