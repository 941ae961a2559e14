"""Plots of forecasts and diagnoses: one style, and the same bytes for the same data.

matplotlib is imported where it is used, and never pyplot: figures are objects, drawn by Agg.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

# Okabe and Ito's colours: told apart with any kind of colour vision.
BLACK, GREY = "#000000", "#777777"
VERMILLION, BLUE, GREEN, PURPLE, SKY = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"

PANELS = 6  # series to show at most
SHADES = (BLUE, VERMILLION, GREEN, PURPLE, SKY, GREY)
SUFFIXES = (".png", ".svg")
WIDTH = 9.0  # inches; at a width of 900 pixels a point is 1.4 pixels
STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "eattn",  # and ids the same from run to run
}


def need_matplotlib() -> None:
    """Raise before the work, and say what to install, where there is nothing to draw with."""
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(
            'drawing needs matplotlib, which is not here: pip install "eattn[report]"'
        ) from error


def check_picture(path: Path) -> None:
    """Raise before the work where nothing could be drawn there."""
    need_matplotlib()
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a plot must be called name.png or name.svg, got {path}")


@contextmanager
def style() -> Iterator[None]:
    """The house style over matplotlib's defaults, whatever the user's own settings are."""
    need_matplotlib()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(height: float) -> "Figure":
    """An empty figure of the common width, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def settle(figure: "Figure") -> None:
    """Lay out once and round the places: the solver's last bits differ from run to run."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        x, y, width, height = (round(float(value), 5) for value in axes.get_position().bounds)
        axes.set_position((x, y, width, height))


def save(figure: "Figure", path: Path) -> Path:
    """Without the date and the version of what drew it: the same rows give the same bytes."""
    unwanted = {".png": ["Software"], ".svg": ["Date", "Creator"]}[path.suffix]
    picture = io.BytesIO()  # a failure while drawing leaves the old file
    figure.savefig(picture, format=path.suffix[1:], metadata=dict.fromkeys(unwanted))
    path.write_bytes(picture.getvalue())
    return path


def legend_below(axes: "Axes", columns: int) -> None:
    """The legend under the axis label, never on data."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, columnspacing=1.2)


# ---- forecasts ----


def plot_forecast(history: "pd.DataFrame", forecast: "pd.DataFrame", path: Path) -> None:
    """Draw unique_id, ds, y and the forecasts that follow them, one panel for each series.

    A forecast has columns unique_id, ds, the name of the model, and quantiles NAME-q10, … after it.
    """
    check_picture(path)
    names = list(dict.fromkeys(forecast["unique_id"]))
    with style():
        figure = new_figure(0.6 + 2.6 * min(len(names), PANELS))
        panels = figure.subplots(min(len(names), PANELS), squeeze=False)[:, 0]
        for name, axes in zip(names, panels, strict=False):
            past = history[history["unique_id"] == name]
            _forecast_panel(axes, past, forecast[forecast["unique_id"] == name])
            axes.set_title(str(name))
        legend_below(panels[-1], columns=5)
        if len(names) > PANELS:
            figure.suptitle(f"The first {PANELS} of {len(names)} series")
        settle(figure)
        save(figure, path)


def _forecast_panel(axes: "Axes", past: "pd.DataFrame", ahead: "pd.DataFrame") -> None:
    """The past in black, and from its last known value on the forecast and its bands in blue."""
    label, *columns = ahead.columns[2:]
    known = past.dropna(subset="y").tail(1)
    times = [*known["ds"], *ahead["ds"]]

    def joined(column: str) -> list[float]:
        return [*known["y"], *ahead[column]]

    axes.plot(past["ds"], past["y"], color=BLACK, linewidth=1.2, label="history")
    levels = _levels(columns)
    for number, (low, high) in enumerate(zip(levels, reversed(levels), strict=True)):
        if low < high:
            edges = joined(levels[low]), joined(levels[high])
            shade: dict[str, Any] = dict(color=SKY, alpha=0.25 + 0.15 * number, linewidth=0)
            axes.fill_between(times, *edges, **shade, label=f"{low:g} to {high:g} %")
        elif low == high:
            axes.plot(times, joined(levels[low]), ":", color=BLUE, label=f"{low:g} %")
    axes.plot(times, joined(label), color=BLUE, label="forecast")
    axes.margins(x=0.01)
    if ahead["ds"].dtype.kind == "M":
        from matplotlib import dates

        locator = dates.AutoDateLocator(maxticks=8)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _levels(columns: Sequence[str]) -> dict[float, str]:
    """Columns of quantiles by their level in per cent, rising: NAME-q2.5 is 2.5."""
    found = {float(name.rpartition("-q")[2]): name for name in columns}
    return dict(sorted(found.items()))


# ---- diagnoses ----


def plot_diagnosis(rows: Sequence[Row], tolerance: float, path: Path) -> None:
    """Draw layers and their candidates to a .png or .svg."""
    check_picture(path)
    with style():
        figure = _diagnosis_figure(rows, tolerance)
        settle(figure)
        save(figure, path)


def _diagnosis_figure(rows: Sequence[Row], tolerance: float) -> "Figure":
    """Two panels: the error that each number of terms leaves, and how far q and k spread."""
    layers = [row for row in rows if row["what"] == "layer"]
    figure = new_figure(4.8)
    left, right = figure.subplots(1, 2, width_ratios=[1.4, 1])
    shades = {row["layer"]: SHADES[i % len(SHADES)] for i, row in enumerate(layers)}
    _errors(left, rows, shades, tolerance)
    _spreads(right, layers, shades)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _errors(axes: "Axes", rows: Sequence[Row], shades: dict[str, str], tolerance: float) -> None:
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
    axes.axhline(tolerance, color=GREY, linewidth=1, linestyle=":")
    place: Any = dict(xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.annotate("tolerance", (1, tolerance * 1.1), **place)
    axes.set_yscale("log")
    axes.set(xlabel="terms (powers solid, bells dashed; ring: as it is)", ylabel="error")


def _spreads(axes: "Axes", layers: Sequence[Row], shades: dict[str, str]) -> None:
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
