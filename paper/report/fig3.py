"""Figure 3 from its rows: e^x with its Taylor polynomials, their error, and their sign."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper.report import plots
from paper.report.plots import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X_LABEL = "x  (= 2qk)"
NEGATIVE = "#f7e6df"


def redraw(path: Path) -> list[Path]:
    """fig3.jsonl -> fig3.png and fig3.svg."""
    return plots.redraw(path, draw)


def draw(rows: Sequence[Row]) -> "Figure":
    """Four panels: values, errors, signs, and how often weights are negative."""
    exp = next(row for row in rows if row["what"] == "exp")
    polynomials = [row for row in rows if row["what"] == "polynomial"]
    even = [row for row in polynomials if row["order"] % 2 == 0]
    shades = plots.colours([row["order"] for row in even])
    shades |= {order - 1: colour for order, colour in shades.items()}  # an odd one like its even
    figure = plots.new_figure(8.2)
    panels = figure.subplot_mosaic([["values", "errors"], ["signs", "shares"]])
    values(panels["values"], exp, even, shades)
    errors(panels["errors"], even, [row for row in rows if row["what"] == "range of 2qk"], shades)
    signs(panels["signs"], exp, polynomials, shades)
    shares(panels["shares"], polynomials, shades)
    return figure


def values(axes: "Axes", exp: Row, even: Sequence[Row], shades: dict[int, str]) -> None:
    """e^x, wide and grey, under the polynomials of even order."""
    axes.set_title("(a) Near 0 the polynomials follow eˣ,\nfarther out they leave it")
    axes.plot(exp["x"], exp["y"], **plots.UNDER, label="eˣ")
    for row in even:
        axes.plot(row["x"], row["y"], color=shades[row["order"]], label=_name(row))
    axes.set(xlim=(-4, 3), ylim=(-0.5, 15), xlabel=X_LABEL, ylabel="value")
    plots.legend_below(axes, 3)


def errors(
    axes: "Axes", even: Sequence[Row], ranges: Sequence[Row], shades: dict[int, str]
) -> None:
    """Relative errors on a log axis, over the range that holds most 2qk of normal q and k."""
    said = " and ".join(
        f"{plots.percent(abs(row['error_at']['-2']))} (order {row['order']})"
        for row in {row["order"]: row for row in (even[0], even[-1])}.values()
    )
    axes.set_title(f"(b) Right only near 0: at x = −2 off by\n{said}")
    for row in even:
        axes.plot(row["x"], row["error"], color=shades[row["order"]], label=_name(row))
    axes.set_yscale("log")
    axes.set(xlim=(-4, 4), ylim=(1e-7, 1e4), ylabel="error relative to eˣ")
    axes.set_xlabel("x  (= 2qk; grey: q and k normal)")
    for row in ranges:
        axes.axvspan(-row["bound"], row["bound"], color="#000000", alpha=0.07, linewidth=0)
    inner, *outer = ranges
    note: dict[str, Any] = dict(va="top", fontsize=8.5, transform=axes.get_xaxis_transform())
    axes.text(0, 0.98, _range(inner), ha="center", **note)
    for row in outer:
        axes.text(row["bound"] - 0.08, 0.98, _range(row), ha="right", **note)
    ticks = {1e-6: "0.0001 %", 1e-4: "0.01 %", 1e-2: "1 %", 1: "100 %", 100: "10,000 %"}
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_yticks([], minor=True)
    plots.legend_below(axes, 3)


def _range(row: Row) -> str:
    return f"{row['share']:.0%} of\n2qk at\nσ = {row['sigma']:g}".replace("%", " %")


def signs(axes: "Axes", exp: Row, rows: Sequence[Row], shades: dict[int, str]) -> None:
    """Even orders solid, odd ones dashed, with the place where they turn negative."""
    axes.set_title("(c) Even orders stay positive,\nodd ones cross zero")
    axes.plot(exp["x"], exp["y"], **plots.UNDER, label="eˣ")
    axes.axhspan(-100, 0, color=NEGATIVE, linewidth=0, label="negative", zorder=0)
    axes.axhline(0, color="#000000", linewidth=0.8)
    for row in sorted(rows, key=lambda row: (-(-row["order"] // 2), row["order"] % 2)):
        line = "--" if row["order"] % 2 else "-"
        axes.plot(row["x"], row["y"], line, color=shades[row["order"]], label=_name(row))
    odd = [row for row in rows if row["order"] % 2]
    for number, row in enumerate(odd):
        axes.plot(row["zero"], 0, "o", color=shades[row["order"]], markersize=6, zorder=4)
        axes.annotate(
            plots.minus(f"{row['zero']:.2f}"),
            (row["zero"], 0),
            xytext=(4, -14 - 15 * (number % 2 if len(odd) > 2 else 0)),  # many would overlap
            textcoords="offset points",
            bbox={"facecolor": NEGATIVE, "edgecolor": "none", "pad": 1},
        )
    left = math.floor(min(row["zero"] for row in odd)) - 1
    axes.set(xlim=(max(left, -6), 1), ylim=(-3, 3), xlabel=X_LABEL, ylabel="value")
    plots.legend_below(axes, 3)


def shares(axes: "Axes", rows: Sequence[Row], shades: dict[int, str]) -> None:
    """One bar per order: how many weights are negative."""
    axes.set_title("(d) Share of negative weights,\nq and k standard normal")
    for place, row in enumerate(rows):
        share = row["negative_share"]
        axes.barh(place, share, color=shades[row["order"]], height=0.6)
        text = plots.percent(share) if share else "none"
        axes.annotate(text, (share, place), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(row["negative_share"] for row in rows) or 1)
    axes.set_xticks([])
    axes.spines.bottom.set_visible(False)
    axes.grid(visible=False)


def _name(row: Row) -> str:
    return f"order {row['order']}"
