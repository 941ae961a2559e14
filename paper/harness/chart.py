"""Charts in Vega-Altair: one definition gives the interactive page, SVG and PNG.

A chart has panels. `lines`, `dots` and `bars` make the common ones from points, which are dicts
with `series`, `x`, `y` and optionally `low` and `high`; any other panel is written in Altair on
`base(points)`. Series are coloured by name and can be hidden by the page's legend.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

# Colours of Okabe and Ito, distinct with any kind of colour vision.
BLACK, GREY = "#000000", "#777777"
VERMILLION, BLUE, GREEN, PURPLE, SKY = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"
INK, SOFT, RULE, CARD = "#1c2024", "#586069", "#e3e0da", "#ffffff"
# Custom properties of page.css, which has other values for dark pages.
SERIES = (BLACK, GREY, VERMILLION, BLUE, GREEN, PURPLE, SKY)
WORDS = ("black", "grey", "vermillion", "blue", "green", "purple", "sky")
NAMES = dict(zip(SERIES, WORDS, strict=True)) | {
    INK: "ink",
    SOFT: "soft",
    RULE: "rule",
    CARD: "card",
}
SOLID, DASHED, DOTTED = [1, 0], [6, 4], [2, 3]
POWERS_OF_2 = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + 'M' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + 'k' : format(datum.value, '~g')"
)
COLUMN = 145  # pixels of a sixth of a picture
Point = Mapping[str, Any]
Body = alt.Chart | alt.LayerChart | alt.FacetChart


class Look(NamedTuple):
    """Colour, dash and shape of a series; the hollow shape marks a number of the paper."""

    colour: str
    dash: list[int] = SOLID
    shape: str = "circle"
    hollow: bool = False


LOOKS = {
    "ea-6": Look(BLUE),
    "ea-2": Look(VERMILLION),
    "ea": Look(BLACK, DASHED, "square"),
    "sa": Look(GREEN, DASHED, "square"),
    "sa-math": Look(PURPLE, DASHED, "square"),
    "aft": Look(GREY, DASHED, "square"),
    "la": Look(SKY, DOTTED, "triangle-up"),
    "taylor": Look(PURPLE, DOTTED, "triangle-up"),
    "gru": Look(GREY, DOTTED, "triangle-up"),
    "linear-rnn": Look(GREEN, DOTTED, "triangle-up"),
}
Looks = Mapping[str, Look]


@dataclass(frozen=True)
class Panel:
    """One plot: an Altair chart without size, title and legend, and the series in it."""

    title: str
    body: Body
    looks: Looks
    columns: int = 3  # of six, on a wide screen
    height: int = 250


@dataclass(frozen=True)
class Chart:
    """Panels side by side, with one legend."""

    panels: Sequence[Panel]

    @property
    def looks(self) -> Looks:
        return {name: look for panel in self.panels for name, look in panel.looks.items()}

    def specs(self) -> Iterator[str]:
        """Yield each panel as Vega-Lite JSON for the page, coloured by its custom properties."""
        for panel in self.panels:
            chart = panel.body.properties(width="container", height=panel.height)
            text = json.dumps(_finish(chart, legend=False).to_dict())
            for colour, name in NAMES.items():
                text = text.replace(colour, f"var(--{name})")
            yield text.replace("</", "<\\/")

    def save(self, path: Path) -> Path:
        """Write the panels as one picture, name.svg or name.png."""
        lines: list[list[Any]] = [[]]
        used = 0
        for panel in self.panels:
            if used + panel.columns > 6:
                lines.append([])
                used = 0
            used += panel.columns
            size = {"width": panel.columns * COLUMN - 70, "height": panel.height}
            lines[-1].append(panel.body.properties(title=panel.title, **size))
        whole = alt.vconcat(*(alt.hconcat(*line, spacing=25) for line in lines), spacing=25)
        whole = whole.resolve_scale(
            color="shared", fill="shared", strokeDash="shared", shape="shared"
        )
        _finish(whole, legend=len(self.looks) > 1).save(str(path), scale_factor=2)
        return path


def base(points: Iterable[Point], looks: Looks | None = None) -> alt.Chart:
    """Return a chart of points whose hidden series are left out, coloured by series."""
    chart = alt.Chart(alt.Data(values=list(points))).transform_filter(
        "indexof(hidden, datum.series) < 0"
    )
    return chart if looks is None else chart.encode(color=_scaled(alt.Color, looks, "colour"))


def lines(
    title: str,
    points: Iterable[Point],
    *,
    x: str,
    y: str,
    log: str = "",
    looks: Looks = LOOKS,
    markers: bool = True,
    columns: int = 3,
) -> Panel:
    """Draw a line per series, with a band from `low` to `high` where points have them.

    `x` and `y` are the titles of the axes; `log` names the logarithmic ones ("x", "y" or "xy"). A
    logarithmic x axis has a tick at each value, written as a power of two.
    """
    points = list(points)
    looks = _present(points, looks)
    x_axis = alt.X("x:Q", title=x)
    if "x" in log:
        ticks = sorted({point["x"] for point in points})
        x_axis = x_axis.scale(type="log", base=2, nice=False).axis(
            values=ticks, labelExpr=POWERS_OF_2
        )
    y_axis = alt.Y("y:Q", title=y)
    y_axis = y_axis.scale(type="log") if "y" in log else y_axis
    chart = base(points, looks).encode(x=x_axis, y=y_axis.axis(format="~g"))
    layers = [chart.mark_line(strokeWidth=2).encode(strokeDash=_scaled(alt.StrokeDash, looks))]
    if any("low" in point for point in points):
        layers.insert(0, chart.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q"))
    tip = _tooltip(x, y)
    if markers:
        shape = _scaled(alt.Shape, looks, "shape")
        layers.append(chart.mark_point(filled=True, size=36, opacity=1).encode(shape=shape))
    layers.append(chart.mark_point(filled=True, size=220, opacity=0).encode(tooltip=tip))
    return Panel(title, alt.layer(*layers), looks, columns)


def dots(
    title: str, points: Iterable[Point], *, y: str, looks: Looks = LOOKS, columns: int = 3
) -> Panel:
    """Draw a dot per series at each category `x`, and a rule from `low` to `high`."""
    points = list(points)
    looks = _present(points, looks)
    order = list(dict.fromkeys(point["x"] for point in points))
    chart = base(points, looks).encode(
        x=alt.X("x:N", sort=order, title=None).axis(labelAngle=0),
        xOffset=alt.XOffset("series:N", sort=list(looks)),
        y=alt.Y("y:Q", title=y).scale(zero=False),
    )
    rules = chart.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
    shown = chart.mark_point(size=50, opacity=1, strokeWidth=1.5).encode(
        shape=_scaled(alt.Shape, looks, "shape"),
        fill=_scaled(alt.Fill, looks, "fill"),
        tooltip=_tooltip("", y),
    )
    return Panel(title, alt.layer(rules, shown), looks, columns)


def bars(
    title: str,
    points: Iterable[Point],
    *,
    x: str,
    log: bool = False,
    looks: Looks = LOOKS,
    columns: int = 3,
) -> Panel:
    """Draw a horizontal bar per series in the order of the points, of length `y`, named `text`."""
    points = list(points)
    looks = _present(points, looks)
    values = [point["y"] for point in points]
    scale = alt.Scale(domain=[0, 1.3 * max(values)])
    if log:
        scale = alt.Scale(type="log", domain=[min(values) / 3, max(values) * 30], nice=False)
    chart = base(points, looks).encode(
        y=alt.Y("series:N", sort=list(looks), title=None).axis(grid=False, labelLimit=200),
        x=alt.X("y:Q", title=x).scale(scale).axis(format="~g", tickCount=6),
        tooltip=_tooltip("", x),
    )
    bar = chart.mark_bar(height={"band": 0.6})
    bar = bar.encode(x2=alt.datum(min(values) / 3)) if log else bar
    words = chart.mark_text(align="left", dx=5).encode(text="text:N", color=alt.value(INK))
    return Panel(title, alt.layer(bar, words), looks, columns, max(120, 26 * len(points) + 40))


def paper_look(look: Look) -> Look:
    """Return the look of the paper's number beside ours."""
    return look._replace(shape="diamond", hollow=True)


def _present(points: Iterable[Point], looks: Looks) -> dict[str, Look]:
    """Return the looks of the series that have points, grey for unknown ones."""
    found = dict.fromkeys(point["series"] for point in points)
    return {name: looks.get(name, Look(GREY)) for name in found}


def _scaled(channel: Any, looks: Looks, field: str = "dash") -> Any:
    """Return an encoding of the series by one field of their looks; `fill` is hollow for some."""
    values = [
        ("transparent" if look.hollow else look.colour) if field == "fill" else getattr(look, field)
        for look in looks.values()
    ]
    return channel("series:N", title=None).scale(domain=list(looks), range=values)


def _tooltip(x: str, y: str) -> list[alt.Tooltip]:
    place = alt.Tooltip("x:Q", title=x, format=",") if x else alt.Tooltip("x:N", title="at")
    return [alt.Tooltip("series:N"), place, alt.Tooltip("y:Q", title=y, format=".4~g")]


def _finish(chart: Any, *, legend: bool) -> Any:
    """Add the parameter that hides series, and the style."""
    font = "DejaVu Sans, Helvetica, Arial, sans-serif"
    axis = {"gridColor": RULE, "domainColor": SOFT, "tickColor": SOFT, "labelColor": SOFT}
    text = {"labelFontSize": 11, "titleFontSize": 12}
    config: dict[str, Any] = {
        "font": font,
        "background": CARD,
        "view": {"stroke": None},
        "title": {"anchor": "start", "color": INK, "fontSize": 13},
        "axis": axis | text | {"titleColor": INK, "titleFontWeight": "normal", "labelFlush": False},
        "legend": {"disable": not legend, "orient": "bottom", "columns": 4, "labelColor": INK},
        "text": {"color": INK},
    }
    return chart.add_params(alt.param(name="hidden", value=[])).properties(config=config)
