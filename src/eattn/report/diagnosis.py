"""What `eattn diagnose` found, as a picture: errors by the number of terms, and spreads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn.report import plots
from eattn.report.plots import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = (plots.BLUE, plots.VERMILLION, plots.GREEN, plots.PURPLE, plots.SKY, plots.GREY)


def plot(rows: Sequence[Row], tolerance: float, path: Path) -> None:
    """Draw layers and their candidates to a .png or .svg."""
    plots.check_picture(path)
    with plots.style():
        figure = draw(rows, tolerance)
        plots.settle(figure)
        plots.save(figure, path)


def draw(rows: Sequence[Row], tolerance: float) -> "Figure":
    """Two panels: the error that each number of terms leaves, and how far q and k spread."""
    layers = [row for row in rows if row["what"] == "layer"]
    figure = plots.new_figure(4.8)
    left, right = figure.subplots(1, 2, width_ratios=[1.4, 1])
    shades = {row["layer"]: SHADES[i % len(SHADES)] for i, row in enumerate(layers)}
    errors(left, rows, shades, tolerance)
    spreads(right, layers, shades)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def errors(axes: "Axes", rows: Sequence[Row], shades: dict[str, str], tolerance: float) -> None:
    """Powers solid and bells dashed, one colour for each layer; a ring where the model is now."""
    axes.set_title("(a) Error relative to exact EA")
    for layer, colour in shades.items():
        own = next(row for row in rows if row["what"] == "layer" and row["layer"] == layer)
        of = [row for row in rows if row["what"] == "candidate" and row["layer"] == layer]
        for line, bells in (("-", False), ("--", True)):
            points = [(row["terms"], row["error"]) for row in of if (row["radius"] > 0) == bells]
            x, y = zip(*sorted(points), strict=True)
            label = None if bells else layer
            axes.plot(x, y, line, color=colour, marker=".", markersize=5, label=label)
        for row in of:
            if row["expansion"] == own["expansion"]:
                ring: Any = dict(markersize=10, markerfacecolor="none", markeredgewidth=1.6)
                axes.plot(row["terms"], row["error"], "o", color=colour, **ring)
    axes.axhline(tolerance, color=plots.GREY, linewidth=1, linestyle=":")
    place: Any = dict(xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.annotate("tolerance", (1, tolerance * 1.1), **place)
    axes.set_yscale("log")
    axes.set(xlabel="terms (powers solid, bells dashed; ring: as it is)", ylabel="error")


def spreads(axes: "Axes", layers: Sequence[Row], shades: dict[str, str]) -> None:
    """The standard deviation of q and of k in every channel, layer by layer."""
    axes.set_title("(b) Spread of q and k by channel")
    places = []
    for number, row in enumerate(layers):
        for side, part in enumerate("qk"):
            place = 2.5 * number + side
            places.append((place, f"{part}\n{number}" if side == 0 else part))
            values = row["spreads"][part]
            style: Any = dict(color=shades[row["layer"]], alpha=0.4, markersize=4)
            axes.plot([place] * len(values), values, "_", **style)
    axes.set_xticks(*map(list, zip(*places, strict=True)))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="layer", ylabel="standard deviation")
