"""A matplotlib figure -> its panels, for the page to draw again with values that can be read off.

So a figure is written once, for paper and page: all of matplotlib's transforms end in fractions of
the axes' frame, and everything is read from there. The figure must have been laid out.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from paper.report import plots
from paper.report.html.labels import is_number, nearest, ticks, words, y_label
from paper.report.html.panel import Map, Mark, Note, Panel, Place, Point

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

CROWDED = 8  # bars; the values written on more of them would overlap on a phone
ACROSS: dict[str, Any] = {"left": "start", "center": "middle", "right": "end"}
# How much of the figure's width a panel may have -> how many of the page's six columns it gets.
COLUMNS = ((0.34, 2), (0.5, 3), (0.65, 4), (1.0, 6))

Fractions = Callable[[Any], list[Place]]


def panels(figure: "Figure") -> list[Panel]:
    """One for each axes, except those that only explain colours."""
    return [panel(axes) for axes in figure.axes if axes.get_label() != "<colorbar>"]


def panel(axes: "Axes") -> Panel:
    """All that is drawn in one axes."""
    reader = _Reader(axes)
    title = axes.get_title(loc="left") or axes.get_title()
    gridlines = [[line.get_visible() for line in a.get_gridlines()] for a in _both(axes)]
    return Panel(
        title=" ".join(title.split()),
        x_label=axes.get_xlabel(),
        y_label=y_label(axes),
        x_ticks=reader.x_ticks,
        y_ticks=reader.y_ticks,
        marks=tuple(reader.marks()),
        notes=tuple(reader.notes()),
        map=_map(axes),
        columns=next(n for share, n in COLUMNS if axes.get_position().width <= share),
        grid=(any(gridlines[0]), any(gridlines[1])),
    )


def _both(axes: "Axes") -> "tuple[Axis, Axis]":
    return axes.xaxis, axes.yaxis


class _Reader:
    """Reads one axes; holds what belongs to which series."""

    def __init__(self, axes: "Axes") -> None:
        self.axes = axes
        self.x_ticks = tuple(ticks(axes, "x"))
        self.y_ticks = tuple(ticks(axes, "y"))
        self.bars = [c for c in axes.containers if hasattr(c, "orientation")]
        self.inside = {id(part): c for c in axes.containers for part in _parts(c)}
        self.known = dict(self._known())

    def _known(self) -> "Iterator[tuple[str, list[str]]]":
        """Colour -> names of the series that have it."""
        found: dict[str, list[str]] = {}
        drawn = (*self.axes.lines, *self.axes.patches, *self.axes.collections)
        for artist in drawn:
            if name := self._label(artist):
                names = found.setdefault(_colour(artist), [])
                names += [] if name in names else [name]
        return iter(found.items())

    def _label(self, artist: "Artist") -> str:
        """Its own name, or that of the bars or error bars it is a part of; or none."""
        for labelled in (artist, self.inside.get(id(artist))):
            label = "" if labelled is None else str(labelled.get_label() or "")
            if label and not label.startswith("_"):
                return label
        return ""

    def _names(self, artist: "Artist") -> tuple[str, ...]:
        """What has no name goes with all that have its colour."""
        name = self._label(artist)
        return (name,) if name else tuple(self.known.get(_colour(artist), ()))

    def marks(self) -> Iterator[Mark]:
        """Everything drawn, what lies below first."""
        in_bars = {id(patch): bars for bars in self.bars for patch in bars}
        drawn: list[Any] = [*self.axes.collections, *self.axes.patches, *self.axes.lines]
        for artist in sorted(drawn, key=lambda artist: float(artist.get_zorder())):
            if not artist.get_visible():
                continue
            if hasattr(artist, "get_xydata"):
                yield self._line(artist)
            elif id(artist) in in_bars:
                yield self._bar(artist, in_bars[id(artist)].orientation)
            elif hasattr(artist, "get_paths"):
                yield from self._collection(artist)
            else:
                yield self._area(artist, [artist.get_path()], artist.get_transform())

    def _line(self, line: Any) -> Mark:
        data, places = line.get_xydata(), self._fractions(line.get_transform())(line.get_xydata())
        own = line.get_transform() == self.axes.transData  # not a rule across the frame
        points = (
            Point(at, self._x_words(x, at), words(y))
            for at, (x, y) in zip(places, data, strict=True)
            if own and _inside(at)
        )
        dash = "" if line.get_linestyle() in ("None", "none", " ", "") else line.get_linestyle()
        marker = line.get_marker()
        return Mark(
            "line",
            self._names(line),
            _colour(line),
            tuple(_unbroken(places)),
            dash=dash,
            width=float(line.get_linewidth()),
            marker="" if marker in ("None", "none", None) else str(marker),
            hollow=str(line.get_markerfacecolor()).lower() == "none",
            points=tuple(points),
        )

    def _bar(self, bar: Any, orientation: str) -> Mark:
        corners = self._fractions(bar.get_transform())(bar.get_path().vertices)
        (left, bottom), (right, top) = np.min(corners, 0), np.max(corners, 0)
        x1, y1 = bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height()
        (end,) = self._fractions(self.axes.transData)([(x1, y1)])
        if orientation == "vertical":
            at = ((left + right) / 2, end[1])
            point = Point(at, self._x_words(x1 - bar.get_width() / 2, at), words(y1))
        else:
            at = (end[0], (bottom + top) / 2)
            point = Point(at, nearest(self.y_ticks, at[1]), words(x1))
        square = ((left, bottom), (right, bottom), (right, top), (left, top))
        return Mark("bar", self._names(bar), _colour(bar), (square,), points=(point,))

    def _collection(self, collection: Any) -> Iterator[Mark]:
        offsets = collection.get_offsets()
        if len(offsets) and np.any(offsets):  # scattered points
            places = self._fractions(collection.get_offset_transform())(offsets)
            pairs = zip(places, offsets, strict=True)
            points = (Point(at, self._x_words(x, at), words(y)) for at, (x, y) in pairs)
            names, colour = self._names(collection), _colour(collection)
            yield Mark("line", names, colour, (), dash="", marker="o", points=tuple(points))
        elif hasattr(collection, "get_segments"):  # error bars
            fractions = self._fractions(collection.get_transform())
            runs = tuple(run for path in collection.get_segments() for run in [fractions(path)])
            names, colour = self._names(collection), _colour(collection)
            yield Mark("line", names, colour, tuple(map(tuple, runs)), width=1.2)
        else:
            yield self._area(collection, collection.get_paths(), collection.get_transform())

    def _area(self, artist: Any, paths: Iterable[Any], transform: Any) -> Mark:
        fractions = self._fractions(transform)
        runs = tuple(tuple(fractions(path.vertices)) for path in paths)
        opacity = artist.get_alpha()
        return Mark(
            "area",
            self._names(artist),
            _colour(artist),
            runs,
            opacity=1.0 if opacity is None else float(opacity),
        )

    def notes(self) -> Iterator[Note]:
        """Words in the frame; not those on bars side by side, when these are many."""
        if sum(len(bars) for bars in self.bars if bars.orientation == "vertical") > CROWDED:
            return
        for text in self.axes.texts:
            lines = tuple(text.get_text().splitlines())
            if not text.get_visible() or not lines:
                continue
            shift = (0.0, 0.0)
            place, transform = text.get_position(), text.get_transform()
            if getattr(text, "anncoords", "") == "offset points":
                place, shift, transform = text.xy, text.xyann, self.axes.transData  # type: ignore[attr-defined]
            (at,) = self._fractions(transform)([place])
            across = ACROSS[text.get_horizontalalignment()]
            yield Note(at, lines, across, text.get_verticalalignment(), shift)

    def _fractions(self, transform: Any) -> Fractions:
        to_frame = self.axes.transAxes.inverted()

        def places(points: Any) -> list[Place]:
            with np.errstate(all="ignore"):
                found = to_frame.transform(transform.transform(np.asarray(points, dtype=float)))
            return [(float(x), float(y)) for x, y in found]

        return places

    def _x_words(self, x: float, at: Place) -> str:
        """The category, if that is what the axis has; else the number."""
        tick = nearest(self.x_ticks, at[0])
        return words(x) if not tick or is_number(tick) else tick


def _inside(at: Place) -> bool:
    return all(-1e-3 <= part <= 1 + 1e-3 for part in at)


def _unbroken(places: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """Cut where a value is missing, or has no place on a log axis."""
    run: list[Place] = []
    for place in places:
        if all(map(np.isfinite, place)):
            run.append(place)
        elif run:
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


def _colour(artist: Any) -> str:
    from matplotlib.colors import to_hex

    for name in ("get_color", "get_facecolor", "get_edgecolor"):
        found = getattr(artist, name, lambda: ())()
        if isinstance(found, str):
            return to_hex(found).upper()
        rows = np.atleast_2d(np.asarray(found, dtype=float))
        if rows.size and rows.shape[-1] in (3, 4):
            return to_hex(tuple(rows[0, :3])).upper()
    return plots.BLACK


def _parts(container: Any) -> Iterator[Any]:
    """The artists of a container, those in tuples within it too."""
    for part in container:
        if isinstance(part, tuple):
            yield from part
        elif part is not None:
            yield part


def _map(axes: "Axes") -> Map | None:
    """The first image of the axes as PNG and as numbers."""
    if not axes.images:
        return None
    from matplotlib.image import imsave

    image = axes.images[0]
    values = np.asarray(image.get_array(), dtype=float)
    coloured = image.to_rgba(values, bytes=True)
    if image.origin == "lower":
        values, coloured = values[::-1], coloured[::-1]
    png = io.BytesIO()
    imsave(png, coloured, format="png")
    return Map(png.getvalue(), tuple(map(tuple, values.tolist())))
