"""The rows of `eattn bench op` as a picture: who takes how long, and how it grows."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from paper.report import plots, table1
from paper.report.plots import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHO = {
    "ours": "EA-6",
    "quadrature": "EA, 25 nodes",
    "sdpa": "softmax (SDPA)",
    "paper": "the paper's code",
}
COLOURS = {
    "ours": plots.BLUE,
    "quadrature": plots.SKY,
    "sdpa": plots.GREEN,
    "paper": plots.GREY,
}
PASSES = {"forward": (plots.SKY, "s", "--"), "forward+backward": (plots.BLUE, "o", "-")}


def draw(rows: Sequence[Row]) -> "Figure":
    """Three panels: the contenders, growth with L, growth with the order."""
    figure = plots.new_figure(7.4)
    panels = figure.subplot_mosaic([["who", "who"], ["L", "order"]], height_ratios=[0.8, 1])
    contenders(panels["who"], [row for row in rows if "grows" not in row])
    growth(panels["L"], [row for row in rows if row.get("grows") == "L"], "L")
    growth(panels["order"], [row for row in rows if row.get("grows") == "order"], "order")
    panels["L"].set_title("(b) Time per element along L")
    panels["order"].set_title("(c) Time per element along the order")
    plots.legend_below(panels["L"], 2)
    return figure


def contenders(axes: "Axes", rows: Sequence[Row]) -> None:
    """Forward and backward of ours, of softmax attention and of the paper's code: log bars."""
    found = {row["who"]: row for row in rows if row["what"] == "forward+backward"}
    axes.set_title("(a) Forward and backward, " + _shape(next(iter(found.values()))))
    names = [who for who in WHO if who in found]
    for place, who in enumerate(names):
        seconds = found[who]["p50"]
        axes.barh(place, seconds * 1e3, 0.6, color=COLOURS[who])
        text = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
        if who != "ours" and "ours" in found:
            text += f", {seconds / found['ours']['p50']:.0f} × ours"
        where = (seconds * 1e3, place)
        axes.annotate(text, where, xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), [WHO[who] for who in names])
    axes.invert_yaxis()
    axes.set_xscale("log")
    times = [found[who]["p50"] * 1e3 for who in names]
    axes.set_xlim(min(times) / 3, max(times) * 30)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel("ms, a logarithmic axis")
    axes.grid(visible=False, axis="y")


def growth(axes: "Axes", rows: Sequence[Row], axis: str) -> None:
    """Nanoseconds per element of [B, L, D]: flat where the cost is linear."""
    for what, (colour, marker, line) in PASSES.items():
        of = [row for row in rows if row["what"] == what]
        points = [(_place(row, axis), row["p50"] / prod(row["shape"]) * 1e9) for row in of]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, line, color=colour, marker=marker, markersize=4, label=what)
    places = sorted({_place(row, axis) for row in rows})
    if axis == "L":
        axes.set_xscale("log", base=2)
        axes.set_xticks([], minor=True)
    axes.set_xticks(places, [table1._short(place) for place in places])
    axes.set_ylim(bottom=0)
    axes.set(ylabel="ns per element", xlabel="L, tokens" if axis == "L" else "order")


def _place(row: Row, axis: str) -> int:
    return int(row["shape"][1] if axis == "L" else row["order"])


def _shape(row: Row) -> str:
    return "×".join(map(str, row["shape"]))
