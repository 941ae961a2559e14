"""What the tables of the README share: how one is written, and what many seeds come to."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple


class Mean(NamedTuple):
    """Of one figure over the seeds, with its standard deviation."""

    value: float
    spread: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values))


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
