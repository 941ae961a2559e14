"""Charts in Vega-Altair: one definition gives the interactive page, SVG and PNG.

A chart has panels. `lines`, `dots` and `bars` make the common ones from points, which are dicts
with `series`, `x`, `y` and optionally `low` and `high`. Any other panel is an Altair chart on
`base(points)`. Encode `series:N` by color, fill, strokeDash or shape: the looks of the series are
filled in, and the page's legend can hide each of them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import vl_convert

# Colours of Okabe and Ito, distinct with any kind of colour vision. On the page they are custom
# properties of page.css, with other values in dark mode.
BLACK, GREY, VERMILLION, BLUE = "#000000", "#777777", "#D55E00", "#0072B2"
GREEN, PURPLE, SKY = "#009E73", "#CC79A7", "#56B4E9"
PALETTE = (VERMILLION, BLUE, GREEN, PURPLE, SKY, BLACK)
INK, SOFT, RULE, PANEL = "#1c2024", "#586069", "#e3e0da", "#ffffff"
COLOURS = "BLACK GREY VERMILLION BLUE GREEN PURPLE SKY INK SOFT RULE PANEL"
PROPERTIES = {globals()[name]: f"var(--{name.lower()})" for name in COLOURS.split()}
SOLID, DASHED, DOTTED = [1, 0], [6, 4], [2, 3]
POWERS_OF_2 = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + 'M' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + 'k' : format(datum.value, '~g')"
)
LINES = "split(datum.label, '/')"  # a line per part of a label
COLUMN = 145  # pixels of a sixth of a picture
Point = Mapping[str, Any]
Points = Iterable[Point]


class Look(NamedTuple):
    """Colour, dash and shape of a series; a hollow shape marks a number of the paper."""

    colour: str
    dash: list[int] = SOLID
    shape: str = "circle"
    hollow: bool = False


Looks = Mapping[str, Look]
LOOKS = {
    "ea-6": Look(BLUE),
    "ea-2": Look(VERMILLION),
    "ea-q17": Look(SKY, SOLID, "diamond"),
    "ea-q25": Look(GREEN, SOLID, "diamond"),
    "ea-q25r12": Look(PURPLE, SOLID, "diamond"),
    "ea-q33r16": Look(VERMILLION, SOLID, "diamond"),
    "ea-q65r16": Look(BLACK, SOLID, "diamond"),
    "ea-6+decay": Look(BLUE, DASHED, "diamond"),
    "ea-6+gate": Look(VERMILLION, DASHED, "diamond"),
    "ea-q25r12+decay": Look(PURPLE, DASHED, "diamond"),
    "ea-q25r12+gate": Look(SKY, DASHED, "diamond"),
    "ea": Look(BLACK, DASHED, "square"),
    "sa": Look(GREEN, DASHED, "square"),
    "sa-math": Look(PURPLE, DASHED, "square"),
    "aft": Look(GREY, DASHED, "square"),
    "la": Look(SKY, DOTTED, "triangle-up"),
    "sa+rope": Look(BLACK, DOTTED, "square"),
    "la+gate": Look(BLUE, DOTTED, "triangle-up"),
    "deltanet": Look(VERMILLION, DOTTED, "triangle-up"),
    "taylor": Look(PURPLE, DOTTED, "triangle-up"),
    "gru": Look(GREY, DOTTED, "triangle-up"),
    "linear-rnn": Look(GREEN, DOTTED, "triangle-up"),
}


@dataclass(frozen=True)
class Panel:
    """An Altair chart without size, title and legend, and the looks of the series in it."""

    title: str
    body: alt.Chart | alt.LayerChart | alt.FacetChart
    looks: Looks
    columns: int = 3  # of six, on a wide screen
    height: int = 250
    legend: bool = True  # whether the legend lists the series


@dataclass(frozen=True)
class Chart:
    """Panels side by side, with one legend."""

    panels: Sequence[Panel]

    @property
    def legend(self) -> Looks:
        """Looks of the series in the legend."""
        return {n: look for panel in self.panels if panel.legend for n, look in panel.looks.items()}

    def specs(self) -> Iterator[str]:
        """Yield each panel as Vega-Lite JSON for the page."""
        for panel in self.panels:
            chart = panel.body.properties(width="container", height=panel.height)
            text = json.dumps(self._spec(chart, pictures=False))
            for colour, name in PROPERTIES.items():
                text = text.replace(colour, name)
            yield text.replace("</", "<\\/")

    def save(self, path: Path, *, png: bool = False) -> Path:
        """Write the panels as one picture, name.svg, and optionally also as name.png."""
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
        shared: Any = dict.fromkeys(("color", "fill", "strokeDash", "shape"), "shared")
        spec = self._spec(whole.resolve_scale(**shared), pictures=True)
        picture = vl_convert.vegalite_to_svg(spec)
        path.write_text(picture, encoding="utf-8")
        if png:
            path.with_suffix(".png").write_bytes(vl_convert.svg_to_png(picture, scale=2))
        return path

    def _spec(self, chart: Any, *, pictures: bool) -> dict[str, Any]:
        """Return a chart as Vega-Lite with the style, the looks and the parameter `hidden`."""
        spec: dict[str, Any] = chart.add_params(alt.param(name="hidden", value=[])).to_dict()
        axis = {"gridColor": RULE, "domainColor": SOFT, "tickColor": SOFT, "labelColor": SOFT}
        words = {"titleColor": INK, "titleFontWeight": "normal", "titleFontSize": 12}
        spec["config"] = {
            "font": "DejaVu Sans, Helvetica, Arial, sans-serif",
            "background": PANEL,
            "view": {"stroke": None},
            "title": {"anchor": "start", "color": INK, "fontSize": 13},
            "axis": axis | words | {"labelFontSize": 11, "labelFlush": False},
            "legend": {"orient": "bottom", "columns": 4, "labelColor": INK},
            "text": {"color": INK},
        }
        looks = {name: look for panel in self.panels for name, look in panel.looks.items()}
        shown = pictures and len(self.legend) > 1
        _fill_in(spec, looks, {"values": list(self.legend), "title": None} if shown else None)
        if pictures:
            _remove_hover(spec)
        return spec


def base(points: Points) -> alt.Chart:
    """Return a chart of points without those of hidden series."""
    values = alt.Data(values=list(points))
    return alt.Chart(values).transform_filter("indexof(hidden, datum.series) < 0")


def lines(
    title: str,
    points: Points,
    *,
    x: str,
    y: str,
    log: str = "",
    zero: bool = True,
    looks: Looks = LOOKS,
    markers: bool = True,
    columns: int = 3,
) -> Panel:
    """Draw a line per series, with a band from `low` to `high` where points have them.

    `x` and `y` are the titles of the axes; `log` names the logarithmic ones ("x", "y" or "xy"). A
    logarithmic x axis has a tick at each value, written as a power of two. With `zero` a linear y
    axis includes 0.
    """
    points = list(points)
    x_axis = alt.X("x:Q", title=x)
    if "x" in log:
        ticks = sorted({point["x"] for point in points})
        x_axis = x_axis.scale(type="log", base=2, nice=False)
        x_axis = x_axis.axis(values=ticks, labelExpr=POWERS_OF_2)
    y_axis = _value_axis(alt.Y, y, points, log="y" in log, zero=zero)
    chart = base(points).encode(x=x_axis, y=y_axis, color="series:N")
    layers = [chart.mark_line(strokeWidth=2).encode(strokeDash="series:N")]
    if any("low" in point for point in points):
        layers.insert(0, chart.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q"))
    if markers:
        layers.append(chart.mark_point(filled=True, size=36, opacity=1).encode(shape="series:N"))
    near = chart.mark_point(filled=True, size=220, opacity=0)  # large, so easy to hover over
    layers.append(near.encode(tooltip=tooltip(alt.Tooltip("x:Q", title=x, format=","), y)))
    return Panel(title, alt.layer(*layers), present(points, looks), columns)


def dots(
    title: str, points: Points, *, y: str, log: bool = False, looks: Looks = LOOKS, columns: int = 3
) -> Panel:
    """Draw a dot per series at each category `x`, and rules from `low` to `high` if given."""
    points = list(points)
    looks = present(points, looks)
    order = list(dict.fromkeys(point["x"] for point in points))
    y_axis = alt.Y("y:Q", title=y).scale(zero=False)
    if log:  # with few ticks, so that none lacks its label
        y_axis = alt.Y("y:Q", title=y).scale(type="log", nice=False, padding=12)
        y_axis = y_axis.axis(values=[m * 10.0**n for n in range(-6, 7) for m in (1, 2, 5)])
    chart = base(points).encode(
        x=alt.X("x:N", sort=order, title=None).axis(labelAngle=0, labelExpr=LINES),
        xOffset=alt.XOffset("series:N", sort=list(looks)),
        y=y_axis,
        color="series:N",
    )
    shown = chart.mark_point(size=50, opacity=1, strokeWidth=1.5).encode(
        shape="series:N", fill="series:N", tooltip=tooltip(alt.Tooltip("x:N", title="at"), y)
    )
    layers = [shown]
    if any("low" in point for point in points):
        layers.insert(0, chart.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"))
    return Panel(title, alt.layer(*layers), looks, columns)


def bars(
    title: str, points: Points, *, x: str, log: bool = False, looks: Looks = LOOKS, columns: int = 3
) -> Panel:
    """Draw a horizontal bar of length `y` per series, with its `text`."""
    points = list(points)
    looks = present(points, looks)
    values = [point["y"] for point in points]
    start, end = (min(values) / 3, max(values) * 30) if log else (0, max(values) * 1.3)
    axis = _value_axis(alt.X, x, points, log=log)
    chart = base(points).encode(
        y=alt.Y("series:N", sort=list(looks), title=None).axis(grid=False, labelLimit=200),
        x=axis.scale(type="log" if log else "linear", domain=[start, end], nice=False),
        color="series:N",
        tooltip=tooltip(None, x),
    )
    bar = chart.mark_bar(height={"band": 0.6}).encode(x2=alt.datum(start))
    text = chart.mark_text(align="left", dx=5).encode(text="text:N", color=alt.value(INK))
    body, height = alt.layer(bar, text), 28 * len(points) + 30
    return Panel(title, body, looks, columns, height, legend=False)


def present(points: Points, looks: Looks) -> dict[str, Look]:
    """Return the looks of the series that have points, grey for unknown ones."""
    return {point["series"]: looks.get(point["series"], Look(GREY)) for point in points}


def tooltip(place: alt.Tooltip | None, y: str) -> list[alt.Tooltip]:
    """Return what a pointer shows: the series, the place, and the value under its title."""
    value = alt.Tooltip("y:Q", title=y, format=".4~g")
    return [alt.Tooltip("series:N"), *([place] if place else []), value]


def _value_axis(
    channel: Any, title: str, points: Sequence[Point], *, log: bool, zero: bool = True
) -> Any:
    """Return the axis of `y`; a logarithmic one that spans decades has ticks at powers of ten."""
    axis = channel("y:Q", title=title)
    powers = [math.log10(point["y"]) for point in points if point["y"] > 0] if log else [0.0]
    decades = range(math.floor(min(powers)), math.ceil(max(powers)) + 2)
    ticks = {"values": [10.0**power for power in decades]} if len(decades) > 3 else {}
    scale: dict[str, Any] = {"type": "log"} if log else {"type": "linear", "zero": zero}
    notation = "~g" if min(powers) < -3 else "~r"  # never 5e+3
    return axis.scale(**scale).axis(format=notation, **ticks)


def _fill_in(node: Any, looks: Looks, legend: Mapping[str, Any] | None) -> None:
    """Give every encoding of the series the looks that belong to its channel."""
    ranges: dict[str, list[Any]] = {
        "color": [look.colour for look in looks.values()],
        "fill": ["transparent" if look.hollow else look.colour for look in looks.values()],
        "strokeDash": [look.dash for look in looks.values()],
        "shape": [look.shape for look in looks.values()],
    }
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        if key in ranges and isinstance(child, dict) and child.get("field") == "series":
            child |= {"scale": {"domain": list(looks), "range": ranges[key]}, "legend": legend}
        elif key != "data" and isinstance(child, (dict, list)):
            _fill_in(child, looks, legend)


def _remove_hover(node: dict[str, Any]) -> None:
    """Remove the invisible points of `lines`, which are most of a picture's bytes."""
    for name in {"layer", "hconcat", "vconcat"} & node.keys():
        node[name] = [part for part in node[name] if part.get("mark", {}).get("opacity") != 0]
        for part in node[name]:
            _remove_hover(part)
