"""Beyond the paper: language models."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from paper.report import lm
from paper.report.html.section import Section
from paper.report.runs import Row

OURS = "ea-6"
LEAST = 0.0005  # what three digits show


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """What needs fewer bits than EA-6, or less time for as many tokens."""
    found = lm.by_name(rows)
    if OURS not in found:
        return
    for field, unit, words in (
        ("bits_per_byte", " bits per byte", "needs fewer bits than EA-6"),
        ("seconds", " s", "takes less time than EA-6 for the same steps"),
    ):
        own = fmean(row[field] for row in found[OURS])
        for label, of in found.items():
            other = fmean(row[field] for row in of)
            if label != OURS and other < own * (1 - LEAST):
                yield f"`{label}` {words}: {other:.4g} against {own:.4g}{unit}."


SECTION = Section(
    key="lm",
    title="Beyond the paper: language models",
    intro="Byte-level models of Python’s own sources with the same blocks, parameters and steps,"
    " only the mixer differing; every evaluation on held-out files is a point.",
    command="eattn reproduce lm",
    draw=lm.draw,
    markdown=lm.markdown,
    losses=losses,
)
