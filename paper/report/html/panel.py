"""What an interactive chart is made of: the parts of one panel, placed within its frame.

Places are fractions of the frame, x to the right and y upwards. So whoever draws them needs to know
neither scales nor units, and whoever makes them needs to know nothing of pixels.
"""

from dataclasses import dataclass
from typing import Literal

Place = tuple[float, float]


@dataclass(frozen=True)
class Point:
    """A value that can be read off: where it is, and x and y in words."""

    at: Place
    x: str
    y: str


@dataclass(frozen=True)
class Mark:
    """A line, a filled area or a bar. It is there while one of the series in `names` is shown."""

    kind: Literal["line", "area", "bar"]
    names: tuple[str, ...]  # none: always there
    colour: str
    runs: tuple[tuple[Place, ...], ...]  # unbroken runs of places
    dash: str = "-"  # as matplotlib has it: - -- : -.
    width: float = 1.8
    marker: str = ""  # as matplotlib has it: o s ^ ...
    hollow: bool = False
    opacity: float = 1.0
    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Note:
    """Words within the frame, aligned as SVG names it across, and as matplotlib does upwards."""

    at: Place
    lines: tuple[str, ...]
    across: Literal["start", "middle", "end"] = "start"
    upwards: str = "baseline"  # of the place: top, center, bottom, baseline
    shift: Place = (0.0, 0.0)  # from the place, in points


@dataclass(frozen=True)
class Map:
    """A picture of numbers that fills the frame, row 0 on top."""

    png: bytes
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Panel:
    """One frame with everything in it."""

    title: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...] = ()
    notes: tuple[Note, ...] = ()
    map: Map | None = None
    columns: int = 3  # of six, where there is room
    grid: tuple[bool, bool] = (True, True)  # along x, along y

    @property
    def named(self) -> dict[str, Mark]:
        """The mark that stands for each series: the first that has values, else the first."""
        found: dict[str, Mark] = {}
        for mark in self.marks:
            if len(mark.names) == 1:
                known = found.setdefault(mark.names[0], mark)
                if mark.points and not known.points:
                    found[mark.names[0]] = mark
        return found
