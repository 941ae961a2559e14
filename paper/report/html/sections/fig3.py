"""Figure 3: the exponential and its Taylor polynomials."""

from collections.abc import Iterator, Sequence

from paper.report import fig3, plots
from paper.report.html.section import Section
from paper.report.runs import Row


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """How wrong the polynomials of even order are where many products fall."""
    for row in rows:
        if row["what"] == "polynomial" and row["order"] % 2 == 0:
            share = plots.percent(abs(row["error_at"]["-2"]))
            yield f"At 2qk = −2 the polynomial of order {row['order']} is {share} off eˣ."


SECTION = Section(
    key="fig3",
    title="Figure 3: eˣ and its Taylor polynomials",
    intro="What the series replaces the exponential by: how near it is, where most products 2qk"
    " fall, and why the order must be even.",
    command="eattn reproduce fig3",
    paper=(
        "Weights must be positive, so the order is even.",
        "The polynomials follow eˣ near 0, where activations are expected to stay.",
    ),
    draw=fig3.draw,
    losses=losses,
)
