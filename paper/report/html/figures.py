"""Figures for the page: matplotlib draws one, it is saved for papers, and read for the page."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from paper.report import plots
from paper.report.html import svg
from paper.report.html.extract import panels
from paper.report.html.panel import Mark, Panel
from paper.report.runs import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 40  # of a table of values; dense curves are read off the picture

Draw = Callable[[Sequence[Row]], "Figure"]


@dataclass(frozen=True)
class Values:
    """The numbers of one panel as a table: x, then a column for each series."""

    title: str
    head: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Drawn:
    """A figure on the page: pictures of its panels, a legend, values, and files for papers."""

    name: str
    panels: list[Panel]
    files: list[Path]

    @property
    def pictures(self) -> list[tuple[Panel, list[tuple[str, Markup]]]]:
        """Each panel, and its pictures: of a wide one two, for phones and for screens."""
        numbers = count(1)

        def all_of(panel: Panel) -> Iterator[tuple[str, Markup]]:
            wider = svg.WIDER.get(panel.columns)
            sizes = [("any", svg.NARROW)]
            if wider is not None:
                sizes = [(f"narrow-{panel.columns}", svg.NARROW), (f"wide-{panel.columns}", wider)]
            for name, width in sizes:
                yield name, svg.draw(panel, width, key=f"{self.name}-{next(numbers)}")

        return [(panel, list(all_of(panel))) for panel in self.panels]

    @property
    def legend(self) -> list[tuple[str, Markup]]:
        """Every series of any panel, once, with a piece of its line."""
        found: dict[str, Mark] = {}
        for panel in self.panels:
            for name, mark in panel.named.items():
                found.setdefault(name, mark)
        return [(name, svg.swatch(mark)) for name, mark in found.items()]

    @property
    def values(self) -> list[Values]:
        """For those who cannot see the pictures, and to copy."""
        return [table for panel in self.panels if (table := _values(panel)) is not None]


def drawn(name: str, draw: Draw, rows: Sequence[Row], out: Path) -> Drawn:
    """Draw once; write name.png and name.svg to `out`, and take the panels for the page."""
    with plots.style():
        figure = draw(rows)
        plots.settle(figure)
        files = [plots.save(figure, out / f"{name}{suffix}") for suffix in plots.SUFFIXES]
        return Drawn(name, panels(figure), files)


def _values(panel: Panel) -> Values | None:
    named = [(mark.names[0], mark.points) for mark in panel.marks if len(mark.names) == 1]
    points = [(point.at[0], point, name) for name, points in named for point in points]
    cells: dict[str, dict[str, str]] = {}
    for _, point, name in sorted(points, key=lambda entry: entry[0]):
        cells.setdefault(point.x, {}).setdefault(name, point.y)
    names = list(dict.fromkeys(name for name, points in named if points))
    if not cells or len(cells) > MOST_LINES:
        return None
    unit = f" ({panel.y_label})" if panel.y_label else ""
    lines = [[x, *(line.get(name, "") for name in names)] for x, line in cells.items()]
    return Values(panel.title + unit, [panel.x_label, *names], lines)
