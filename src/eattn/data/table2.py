"""Table 2 of the paper, counted in the data itself; and the same for the forecasting sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eattn.data.catalog import CATALOG, DataSet
from eattn.data.forecasting import load_forecasting
from eattn.data.locate import Folder, Found, locate
from eattn.data.uea import Cases, load_classification

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Entry:
    """A set as it was found here: `found` is None when it is not here, `cells` what was counted."""

    known: DataSet
    found: Found | None
    cells: tuple[str, ...] = ()
    error: str | None = None

    @property
    def where(self) -> str:
        """Where it was found, or what to do."""
        if self.found is None:
            return f"not here: eattn data get {self.known.name}"
        if self.error:
            return f"cannot be read: {self.error}"
        return f"{self.found.where}, {self.found.path.parent}"


def entries(kind: str, data_dir: Folder | None = None) -> Iterator[Entry]:
    """Every known set of a kind; nothing is downloaded. What cannot be read is told in `error`."""
    for known in CATALOG.values():
        if known.kind == kind:
            found = [locate(known.name, split, data_dir=data_dir) for split in known.files]
            yield _entry(known, found[0] if all(found) else None, data_dir)


def _entry(known: DataSet, found: Found | None, data_dir: Folder | None) -> Entry:
    if found is None:
        return Entry(known, None)
    try:
        return Entry(known, found, count(known, data_dir))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        return Entry(known, found, error=str(error))


def count(known: DataSet, data_dir: Folder | None = None) -> tuple[str, ...]:
    """The cells of a set's row, from its files."""
    if known.kind == "classification":
        train, test = (
            load_classification(known.name, split, data_dir=data_dir, download=False)
            for split in ("train", "test")
        )
        return classification(train, test, known.paper)
    table = load_forecasting(known.name, data_dir=data_dir, download=False)
    ds = table.frame["ds"]
    return (
        f"{len(ds):,}",
        str(len(table.columns)),
        frequency(ds),
        f"{ds.iloc[0]:%Y-%m-%d} to {ds.iloc[-1]:%Y-%m-%d}",
        str(table.target),
    )


def classification(
    train: Cases, test: Cases, paper: tuple[int, int, int] | None = None
) -> tuple[str, ...]:
    """# of series, length of series, # of labels, cases to train and to test.

    The paper's values follow in brackets; it gives the longest length.
    """
    labels = {*map(str, _labels(train)), *map(str, _labels(test))}
    counted: tuple[str, ...] = (
        str(train.channels),
        spread(np.concatenate([train.lengths, test.lengths])),
        str(len(labels)),
    )
    if paper is not None:
        counted = tuple(f"{ours} ({said})" for ours, said in zip(counted, paper, strict=True))
    return (*counted, str(len(train.X)), str(len(test.X)))


def _labels(cases: Cases) -> Any:
    return () if cases.y is None else cases.y


def spread(lengths: Any) -> str:
    """`7–29`, or `896` where all are equal."""
    low, high = int(min(lengths)), int(max(lengths))
    return f"{low}" if low == high else f"{low}–{high}"


def frequency(ds: "pd.Series[Any]") -> str:
    """The most frequent step between rows, and how many steps are another."""
    steps = ds.diff().iloc[1:]
    if not len(steps):
        return "one row"
    usual = steps.mode().iloc[0]
    others = int((steps != usual).sum())
    every = f"every {_duration(usual)}"
    return f"{every}, {others} of {len(steps):,} steps differ" if others else every


def _duration(step: Any) -> str:
    if isinstance(step, float):  # between times that are whole numbers
        return f"{step:g}"
    seconds = step.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:g} s"
