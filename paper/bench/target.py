"""What a benchmark promises of the rows it measures, and whether it holds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from paper.bench.measure import Row

Rows = Sequence[Row]


@dataclass(frozen=True)
class Promise:
    """`value` of the rows is to be at most (or at least) `must`, and better still `goal`."""

    name: str
    value: Callable[[Rows], float]
    must: float
    goal: float | None = None
    at_most: bool = True
    unit: str = "×"

    def verdict(self, value: float) -> str:
        """The best of `goal`, `must`, `miss` that holds."""
        for name, bound in (("goal", self.goal), ("must", self.must)):
            if bound is not None and (value <= bound if self.at_most else value >= bound):
                return name
        return "miss"


def find(rows: Rows, **fields: object) -> Row:
    """The first row with these fields, or LookupError; None also fits a field that is not there."""
    for row in rows:
        if all(row.get(name) == value for name, value in fields.items()):
            return row
    raise LookupError(f"no row with {fields}")


def judge(rows: Rows, promises: Iterable[Promise]) -> Iterator[Row]:
    """A row for every promise the rows can answer: its `value` raises LookupError otherwise."""
    for promise in promises:
        try:
            value = promise.value(rows)
        except LookupError:  # too few cores, or a plan that left it out
            continue
        yield {
            "what": "ratio",
            "name": promise.name,
            "value": value,
            "unit": promise.unit,
            "must": promise.must,
            "goal": promise.goal,
            "at_most": promise.at_most,
            "verdict": promise.verdict(value),
        }
