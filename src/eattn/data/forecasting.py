"""Forecasting sets by name, and how a series is cut into windows of three parts.

A window that starts at row s is rows [s, s + window) to read and the `horizon` rows after them to
foretell. Windows are given by their starts.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eattn.data.catalog import look_up
from eattn.data.locate import Folder, find
from eattn.data.tables import Table, read_table

Split = Literal["chronological", "random"]
Part = Literal["train", "val", "test"]
# Neighbouring windows share rows: at random, nearly every row of a test target was trained on too.
LEAKING = frozenset({"random"})


class Cuts(NamedTuple):
    """Rows [0, train) are for training, [train, val) for choosing, [val, test) for testing."""

    train: int
    val: int
    test: int


def load_forecasting(
    name: str,
    *,
    data_dir: Folder | None = None,
    download: bool = True,
    progress: bool = False,
) -> Table:
    """A set by name, such as ETTh2, with `target` set to OT; as `read_table` gives it."""
    known = look_up(name)
    path = find(name, data_dir=data_dir, download=download, progress=progress)
    table = read_table(path, time="date")
    if known.target not in table.columns:
        raise ValueError(
            f"{path} must have a column {known.target!r} of numbers, to be {known.name}"
        )
    return Table(table.frame, known.name, table.time, known.target, table.text)


def cuts(name: str | None, length: int) -> Cuts:
    """Where to cut a set of `length` rows: ETT after 12, 16 and 20 months of 30 days, as the papers
    on it do (its last rows are not used); others, and a series of one's own (None), at 70/10/20 %.

    >>> cuts("ETTh2", 17420)
    Cuts(train=8640, val=11520, test=14400)
    """
    month = look_up(name).month if name is not None else None
    if month is None:
        train, test = int(length * 0.7), int(length * 0.2)
        return Cuts(train, length - test, length)
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
    """The starts of a part's windows.

    chronological: all windows whose targets lie in the part, in their order. Inputs may reach back
    into the part before, targets never do.
    random: all windows shuffled, and dealt out in the same shares. This leaks (see `LEAKING`).
    """
    for name, value in (("window", window), ("horizon", horizon)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if part not in Cuts._fields:
        raise ValueError(f"part must be one of {', '.join(Cuts._fields)}, got {part!r}")
    if split == "chronological":
        starts = _chronological(at, window, horizon, part)
    elif split == "random":
        starts = _random(at, window, horizon, part, seed)
    else:
        raise ValueError(f"split must be 'chronological' or 'random', got {split!r}")
    if not len(starts):
        raise ValueError(
            f"{at.test} rows give no window of {window} + {horizon} rows for {part}: "
            "a longer series, or a smaller window or horizon, will do"
        )
    return starts


def _chronological(at: Cuts, window: int, horizon: int, part: Part) -> NDArray[np.int64]:
    begin = {"train": 0, "val": at.train, "test": at.val}[part]
    end = getattr(at, part)
    return np.arange(max(begin - window, 0), end - horizon - window + 1)


def _random(at: Cuts, window: int, horizon: int, part: Part, seed: int) -> NDArray[np.int64]:
    count = max(at.test - window - horizon + 1, 0)
    shuffled = np.random.default_rng(seed).permutation(count)
    ends = [0, *(count * end // at.test for end in at)]
    number = Cuts._fields.index(part)
    return np.sort(shuffled[ends[number] : ends[number + 1]])
