"""Windows of forecasting datasets for training, validation and testing.

A window that starts at row s reads rows [s, s + window) and predicts the `horizon` rows after them.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Split = Literal["chronological", "random"]
Part = Literal["train", "val", "test"]


class Cuts(NamedTuple):
    """Rows [0, train) are for training, [train, val) for validation, [val, test) for testing."""

    train: int
    val: int
    test: int


def cuts(name: str | None, length: int) -> Cuts:
    """Return where to cut a dataset of `length` rows into its three parts.

    ETT is cut after 12, 16 and 20 months of 30 days, as in the literature, and its last rows are
    not used. Other datasets, and a series of the user (None), are cut at 70 % and 80 %.

    >>> cuts("ETTh2", 17420)
    Cuts(train=8640, val=11520, test=14400)
    """
    if name is None or not name.startswith("ETT"):
        return Cuts(int(length * 0.7), length - int(length * 0.2), length)
    month = 30 * 24 * (4 if name.startswith("ETTm") else 1)  # m: a row every 15 minutes
    if length < 20 * month:
        raise ValueError(f"{name} must have {20 * month} rows to be cut by months, got {length}")
    return Cuts(12 * month, 16 * month, 20 * month)


def windows(
    at: Cuts,
    window: int,
    horizon: int,
    part: Part,
    *,
    split: Split = "chronological",
    seed: int = 0,
) -> NDArray[np.int64]:
    """Return the first rows of all windows of a part.

    Parameters
    ----------
    at : Cuts
        Where the rows are cut.
    window, horizon : int
        Number of rows to read and to predict.
    part : {"train", "val", "test"}
        Which windows to return.
    split : {"chronological", "random"}, default "chronological"
        Chronological: the windows whose predicted rows lie in the part; only the rows they read
        may lie before it. Random: the windows are shuffled and dealt out in the same shares. This
        leaks: neighbouring windows share rows, so that training has seen nearly every test row.
    seed : int, default 0
        Seed of the random split.
    """
    for name, value in (("window", window), ("horizon", horizon)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if part not in Cuts._fields:
        raise ValueError(f"part must be one of {', '.join(Cuts._fields)}, got {part!r}")
    number = Cuts._fields.index(part)
    if split == "chronological":
        begin, end = (0, *at)[number : number + 2]
        starts = np.arange(max(begin - window, 0), end - horizon - window + 1)
    elif split == "random":
        count = max(at.test - window - horizon + 1, 0)
        begin, end = (count * row // at.test for row in (0, *at)[number : number + 2])
        starts = np.sort(np.random.default_rng(seed).permutation(count)[begin:end])
    else:
        raise ValueError(f"split must be 'chronological' or 'random', got {split!r}")
    if not len(starts):
        raise ValueError(
            f"{at.test} rows give no window of {window} + {horizon} rows for {part}: "
            "use a longer series, or a smaller window or horizon"
        )
    return starts
