"""Table 2: shapes of the classification datasets, the paper's numbers next to ours."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from eattn.data import load_classification

TITLE = "Classification datasets"


class Shape(NamedTuple):
    """A row of Table 2; `length` is that of the longest series."""

    series: int
    length: int
    labels: int


PAPER = {
    "JapaneseVowels": Shape(12, 29, 9),
    "SelfRegulationSCP1": Shape(6, 896, 2),
    "SelfRegulationSCP2": Shape(7, 1152, 2),
    "UWaveGestureLibrary": Shape(3, 315, 8),
}


def count(name: str, **options: Any) -> Shape:
    """Return the shape of a dataset, counted in its files; the options are those of `find`."""
    parts = [load_classification(name, split, **options) for split in ("train", "test")]
    return Shape(
        parts[0].channels,
        max(int(part.lengths.max()) for part in parts),
        len({str(label) for part in parts if part.y is not None for label in part.y}),
    )


def compare(**options: Any) -> Iterator[tuple[str, Shape, Shape]]:
    """Yield the name, our shape and the paper's shape of each dataset."""
    for name, paper in PAPER.items():
        yield name, count(name, **options), paper
