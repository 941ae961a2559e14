"""Beyond the paper: how near expansions are to exact EA."""

from collections.abc import Iterator, Sequence

from paper.report import faithful
from paper.report.html.section import Section
from paper.report.runs import Row


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Where the paper's series is far from what it stands for."""
    for row in rows:
        if row["what"] == "error" and row["expansion"] == "ea-6" and row["error"] > 0.1:
            spread, share = row["spread"], f"{row['error']:.0%}".replace("%", " %")
            yield f"At a spread of {spread:g} of q and k, EA-6 is {share} away from exact EA."


SECTION = Section(
    key="faithful",
    title="Beyond the paper: faithful in linear time",
    intro="The series stands for exact EA, and is it only near 0. A quadrature of positive bells is"
    " EA on all of its grid, at the same complexity: errors, costs, and what training makes of it.",
    command="eattn reproduce faithful",
    draw=faithful.draw,
    markdown=faithful.markdown,
    losses=losses,
)
