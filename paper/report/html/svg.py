"""A panel as SVG, drawn for one width in pixels, with its values beside it as JSON for the script.

Colours are classes and custom properties of the style sheet, so that dark pages have their own.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from paper.report import plots
from paper.report.html.panel import Map, Mark, Panel, Place, Tick

NARROW = 420
HEIGHT, TALL = 290, 400  # tall where a panel stands between two others
WIDER = {4: 640, 6: 900}  # columns of a panel -> its width where these columns have room
LETTER, LINE = 8.0, 14.0  # rough width and height of text, in pixels
POINT = 1.15  # pixels of a point, as large as text is here beside matplotlib's
EDGE = 14.0  # right of the frame
MOST_MARKERS = 60  # of a line; more would only thicken it
PALETTE = {
    plots.BLACK: "black",
    plots.GREY: "grey",
    plots.VERMILLION: "vermillion",
    plots.BLUE: "blue",
    plots.GREEN: "green",
    plots.PURPLE: "purple",
    plots.SKY: "sky",
}
DASHES = {"--": "6 4", ":": "1.5 4", "-.": "6 3 1.5 3"}
SHAPES = {
    "s": "M-3.2-3.2h6.4v6.4h-6.4z",
    "^": "M0-4.2 4 3H-4z",
    "v": "M0 4.2 4-3H-4z",
    "D": "M0-4.4 4.4 0 0 4.4-4.4 0z",
    "d": "M0-4.6 3 0 0 4.6-3 0z",
    "x": "M-3.2-3.2 3.2 3.2M-3.2 3.2 3.2-3.2",
    "X": "M-3.2-3.2 3.2 3.2M-3.2 3.2 3.2-3.2",
    "+": "M-4 0H4M0-4V4",
    "_": "M-6 0H6",
    "o": "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0z",
}


@dataclass(frozen=True)
class Frame:
    """Where the frame lies in the picture, in pixels; and the height of the picture."""

    left: float
    top: float
    width: float
    height: float
    whole: float

    def place(self, at: Place) -> Place:
        """Fractions of the frame, y upwards -> pixels, y downwards."""
        return self.left + at[0] * self.width, self.top + (1 - at[1]) * self.height


def draw(panel: Panel, width: int, *, key: str) -> Markup:
    """One `<svg>` and its values; `key` is a name no other picture of the page has."""
    frame = _frame(panel, width)
    parts = [
        *_axes(panel, frame),
        f'<clipPath id="{key}-clip"><rect {_box(frame)}/></clipPath>',
        *([_image(panel.map, frame)] if panel.map else []),
        f'<g clip-path="url(#{key}-clip)">',
        *(_mark(mark, frame) for mark in panel.marks),
        "</g>",
        *_markers(panel.marks, frame),
        *_notes(panel, frame),
        '<g class="cursor"></g>',
    ]
    label = escape(f"{panel.title}. Arrow keys read out values.")
    return Markup(
        f'<svg viewBox="0 0 {width} {frame.whole:g}" role="img" tabindex="0" aria-label="{label}"'
        f' data-frame="{frame.left:g} {frame.top:g} {frame.width:g} {frame.height:g}">'
        f"{''.join(parts)}</svg>"
        f'<script type="application/json">{_json(_values(panel, frame))}</script>'
    )


def swatch(mark: Mark) -> Markup:
    """A small piece of a mark, for the legend."""
    look = f'class="{_class(mark)}"{_style(mark)}'
    if mark.kind != "line":
        return Markup(f'<svg viewBox="0 0 26 12" {look}><rect x="4" width="18" height="12"/></svg>')
    line = f'<path class="line" d="M0 6H26"{_dash(mark)}/>' if mark.dash else ""
    sign = _sign(mark, (13, 6)) if mark.marker else ""
    return Markup(f'<svg viewBox="0 0 26 12" {look}>{line}{sign}</svg>')


def _frame(panel: Panel, width: int) -> Frame:
    longest = max((len(tick.label) for tick in panel.y_ticks), default=0)
    left = max(26.0, LETTER * longest + 10)
    top = 24.0 if panel.y_label else 10.0
    bottom = 42.0 if panel.x_label else 26.0
    whole = TALL if panel.columns == 2 else HEIGHT
    return Frame(left, top, width - left - EDGE, whole - top - bottom, whole)


def _box(frame: Frame) -> str:
    return f'x="{frame.left:g}" y="{frame.top:g}" width="{frame.width:g}" height="{frame.height:g}"'


# ---- axes ----------------------------------------------------------------------------------------


def _axes(panel: Panel, frame: Frame) -> Iterator[str]:
    floor, right = frame.top + frame.height, frame.left + frame.width
    for tick in panel.y_ticks:
        _, y = frame.place((0, tick.at))
        if panel.grid[1]:
            yield f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{right:.1f}"/>'
        yield _text(tick.label, frame.left - 6, y + 4, "end")
    for tick in panel.x_ticks:
        x, _ = frame.place((tick.at, 0))
        if panel.grid[0]:
            yield f'<path class="grid" d="M{x:.1f} {frame.top:.1f}V{floor:.1f}"/>'
    for tick in _apart(panel.x_ticks, frame.width):
        x, _ = frame.place((tick.at, 0))
        x = min(x, right + EDGE - LETTER * len(tick.label) / 2)  # inside the picture
        yield _text(tick.label, x, floor + 16, "middle")
    yield f'<path class="axis" d="M{frame.left:.1f} {floor:.1f}H{right:.1f}"/>'
    if panel.x_label:
        yield _text(panel.x_label, frame.left + frame.width / 2, frame.whole - 6, "middle", "label")
    if panel.y_label:
        yield _text(panel.y_label, 2, 12, "start", "label")


def _apart(ticks: Sequence[Tick], width: float) -> Iterator[Tick]:
    """Ticks from left to right, without those whose label would touch the one before."""
    free = float("-inf")
    for tick in sorted(ticks, key=lambda tick: tick.at):
        half = (LETTER * len(tick.label) + 6) / 2
        if tick.at * width - half >= free:
            free = tick.at * width + half
            yield tick


def _text(words: str, x: float, y: float, anchor: str, kind: str = "tick") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def _notes(panel: Panel, frame: Frame) -> Iterator[str]:
    for note in panel.notes:
        x, y = frame.place(note.at)
        x, y = x + POINT * note.shift[0], y - POINT * note.shift[1]
        if note.across == "start":  # what would not fit is moved over what it stands beside
            longest = max(map(len, note.lines))
            x = min(x, frame.left + frame.width + EDGE - LETTER * longest)
        above = LINE * (len(note.lines) - 1)  # the first line over the last
        first = {"top": y + 11, "center": y - above / 2 + 4}.get(note.upwards, y - above - 1)
        for number, line in enumerate(note.lines):
            yield _text(line, x, first + LINE * number, note.across, "note")


# ---- marks ---------------------------------------------------------------------------------------


def _mark(mark: Mark, frame: Frame) -> str:
    shape = "".join(_path([frame.place(at) for at in run], mark.kind) for run in mark.runs)
    if not shape or (mark.kind == "line" and not mark.dash):
        return ""
    fading = f' opacity="{mark.opacity:g}"' if mark.opacity < 1 else ""
    wide = f' stroke-width="{mark.width:g}"' if mark.kind == "line" else ""
    path = f'<path class="{mark.kind}" d="{shape}"{_dash(mark)}{wide}{fading}/>'
    return f"<g {_belongs(mark)}>{path}</g>"


def _markers(marks: Sequence[Mark], frame: Frame) -> Iterator[str]:
    """Above all lines, and not cut at the edge of the frame."""
    for mark in marks:
        if mark.marker and len(mark.points) <= MOST_MARKERS:
            signs = (_sign(mark, frame.place(point.at)) for point in mark.points)
            yield f"<g {_belongs(mark)}>{''.join(signs)}</g>"


def _sign(mark: Mark, at: Place) -> str:
    shape = SHAPES.get(mark.marker, SHAPES["o"])
    return f'<path class="sign" transform="translate({at[0]:.1f} {at[1]:.1f})" d="{shape}"/>'


def _path(places: Sequence[Place], kind: str) -> str:
    if not places:
        return ""
    line = "M" + "L".join(f"{_limit(x)} {_limit(y)}" for x, y in places)
    return line if kind == "line" else line + "Z"


def _limit(pixels: float) -> str:
    """A tenth of a pixel is enough; what lies far outside is cut off anyway."""
    return f"{min(max(pixels, -1e4), 1e4):.1f}"


def _dash(mark: Mark) -> str:
    return f' stroke-dasharray="{DASHES[mark.dash]}"' if mark.dash in DASHES else ""


def _belongs(mark: Mark) -> str:
    names = escape(json.dumps(list(mark.names), ensure_ascii=False))
    of = f' data-series="{names}"' if mark.names else ""
    return f'class="{_class(mark)}"{_style(mark)}{of}'


def _class(mark: Mark) -> str:
    return f"mark c-{PALETTE.get(mark.colour, 'other')}" + " hollow" * mark.hollow


def _style(mark: Mark) -> str:
    return "" if mark.colour in PALETTE else f' style="--c:{mark.colour}"'


# ---- values --------------------------------------------------------------------------------------


def _values(panel: Panel, frame: Frame) -> dict[str, Any]:
    """What the script shows: pixels and words."""
    found: dict[str, dict[str, Any]] = {}
    for mark in panel.marks:
        if not mark.points or len(mark.names) > 1 or (mark.kind == "line" and not mark.names):
            continue  # of lines without a name nobody could say what they are
        colour = PALETTE.get(mark.colour, mark.colour)
        series = found.setdefault("".join(mark.names), {"colour": colour, "points": []})
        for point in mark.points:
            x, y = frame.place(point.at)
            series["points"].append([round(x, 1), round(y, 1), point.x, point.y])
    values: dict[str, Any] = {"x": panel.x_label, "y": panel.y_label, "series": found}
    if panel.map:
        values["map"] = [[float(f"{value:.3g}") for value in row] for row in panel.map.values]
    return values


def _image(image: Map, frame: Frame) -> str:
    data = base64.b64encode(image.png).decode()
    return (
        f'<image class="map" {_box(frame)} preserveAspectRatio="none"'
        f' href="data:image/png;base64,{data}"/>'
    )


def _json(values: Any) -> str:
    """Safe inside a script element: no `</`."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
