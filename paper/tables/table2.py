"""Table 2: the classification datasets.

The shapes are counted in the files of both splits; the paper's numbers stand next to them. The
length is that of the longest series.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eattn.data import load_classification
from paper.harness.runlog import Row, RunLog
from paper.harness.table import Table

TITLE = "Table 2: classification datasets"
COUNTS = ("series", "length", "labels")
PAPER: dict[str, Any] = {
    "shapes": {
        "JapaneseVowels": (12, 29, 9),
        "SelfRegulationSCP1": (6, 896, 2),
        "SelfRegulationSCP2": (7, 1152, 2),
        "UWaveGestureLibrary": (3, 315, 8),
    }
}


@dataclass(frozen=True)
class Plan:
    """Datasets to count."""

    sets: tuple[str, ...] = tuple(PAPER["shapes"])


def plan(quick: bool) -> Plan:
    """Return all datasets, or the one that aeon ships."""
    return Plan(sets=("JapaneseVowels",)) if quick else Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Count each dataset."""
    for data in plan.sets:
        if data not in PAPER["shapes"]:
            raise ValueError(f"Table 2 has {', '.join(PAPER['shapes'])}, got {data!r}")
    work = (({"what": "shape", "data": data}, partial(count, data)) for data in plan.sets)
    yield from log.measure_all(work)


def count(data: str) -> Row:
    """Return the number of channels, the largest length and the number of labels of a dataset."""
    parts = [load_classification(data, split) for split in ("train", "test")]
    length = max(int(part.lengths.max()) for part in parts)
    labels = {str(label) for part in parts if part.y is not None for label in part.y}
    row = dict(zip(COUNTS, (parts[0].channels, length, len(labels)), strict=True))
    return row | {"train": len(parts[0].X), "test": len(parts[1].X)}


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield our counts and the paper's."""
    body, differ = [], []
    for row in rows:
        ours, paper = tuple(row[name] for name in COUNTS), PAPER["shapes"][row["data"]]
        pairs = [f"{own} / {other}" for own, other in zip(ours, paper, strict=True)]
        body.append([row["data"], *pairs, str(row["train"]), str(row["test"])])
        differ += [row["data"]] if ours != paper else []
    note = f"Different from the paper: {', '.join(differ)}." if differ else "All numbers agree."
    head = ["dataset", *COUNTS, "train", "test"]
    yield Table("Counted in the files / in the paper", head, body, [note])
