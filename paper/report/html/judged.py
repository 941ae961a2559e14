"""What was promised and what came of it; and where we lose, made from the rows themselves."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from paper.report.html.section import Found
from paper.report.runs import Row

VERDICTS = {"goal": "goal met", "must": "kept", "miss": "missed"}


@dataclass(frozen=True)
class Judged:
    """One promise in words."""

    name: str
    value: str
    bound: str
    verdict: str  # goal, must or miss

    @property
    def words(self) -> str:
        return VERDICTS[self.verdict]


@dataclass(frozen=True)
class Losses:
    """Where one section loses: promises missed, and what others do better."""

    found: Found
    missed: list[Judged]
    lines: list[str]


@dataclass(frozen=True)
class Highlight:
    """A number worth to be seen first."""

    value: str
    words: str
    key: str  # of its section
    verdict: str


def judged(rows: Iterable[Row]) -> Iterator[Judged]:
    """Every promise that was judged."""
    for row in rows:
        if row["what"] == "ratio":
            sign = "≤" if row["at_most"] else "≥"
            goal = "" if row["goal"] is None else f" (goal {sign} {row['goal']:g})"
            bound = f"{sign} {row['must']:g}{goal}"
            yield Judged(row["name"], _value(row), bound, row["verdict"])


def losses(found: Sequence[Found]) -> list[Losses]:
    """Of all sections that lose anywhere."""
    every = (
        Losses(
            each,
            [promise for promise in judged(each.rows) if promise.verdict == "miss"],
            list(each.section.losses(each.rows)) if each.rows else [],
        )
        for each in found
    )
    return [each for each in every if each.missed or each.lines]


def highlights(found: Sequence[Found]) -> Iterator[Highlight]:
    """The promises that sections want to be seen first, as measured."""
    for each in found:
        rows = {row["name"]: row for row in each.promises}
        for name, words in each.section.highlights.items():
            if name in rows:
                yield Highlight(_value(rows[name]), words, each.section.key, rows[name]["verdict"])


def _value(row: Row) -> str:
    unit = f" {row['unit'].strip()}" if row["unit"] else ""
    return f"{row['value']:.3g}".replace("-", "−") + unit
