"""Plot forecasts and diagnoses; the same data always gives the same bytes.

matplotlib is imported on first use, and without pyplot, which would keep global state.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn._checks import need

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

# Palette of Okabe and Ito, which colour-blind readers can distinguish.
BLACK, GREY = "#000000", "#777777"
VERMILLION, BLUE, GREEN, PURPLE, SKY = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"

MAX_SERIES = 6  # largest number of series in one plot
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, SKY, GREY)
SUFFIXES = (".png", ".svg")
WIDTH = 9.0  # inches
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
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "eattn",  # give elements the same ids in every run
}


def check_picture(path: Path) -> None:
    """Raise unless matplotlib is installed and `path` ends with .png or .svg.

    Commands call it before long work.
    """
    need("matplotlib", extra="report")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a plot must be a .png or .svg file, got {path}")


@contextmanager
def _figure(height: float, path: Path) -> Iterator["Figure"]:
    """Yield an empty figure with our style, and write it to `path` when the block ends."""
    check_picture(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the settings of the user
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        # Lay out once and round positions, because the last bits of the solver vary between runs.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:
            x, y, width, height = (round(float(value), 5) for value in axes.get_position().bounds)
            axes.set_position((x, y, width, height))
        # Dates and versions would change the bytes.
        unwanted = {".png": ["Software"], ".svg": ["Date", "Creator"]}[path.suffix]
        picture = io.BytesIO()  # if drawing fails, the previous file is kept
        figure.savefig(picture, format=path.suffix[1:], metadata=dict.fromkeys(unwanted))
        path.write_bytes(picture.getvalue())


# ---- forecasts ----


def plot_forecast(history: "pd.DataFrame", forecast: "pd.DataFrame", path: Path) -> None:
    """Plot the history and the forecast of each series in its own panel.

    Parameters
    ----------
    history : DataFrame
        Columns unique_id, ds and y.
    forecast : DataFrame
        Columns unique_id, ds, the forecast, and optional quantiles such as EAForecaster-q10.
    path : Path
        File to write, .png or .svg.
    """
    names = list(dict.fromkeys(forecast["unique_id"]))
    count = min(len(names), MAX_SERIES)
    with _figure(0.6 + 2.6 * count, path) as figure:
        panels = figure.subplots(count, squeeze=False)[:, 0]
        for name, axes in zip(names, panels, strict=False):
            past = history[history["unique_id"] == name]
            _forecast_panel(axes, past, forecast[forecast["unique_id"] == name])
            axes.set_title(str(name))
        below: dict[str, Any] = dict(loc="upper center", bbox_to_anchor=(0.5, -0.16))
        panels[-1].legend(**below, ncols=5, columnspacing=1.2)
        if len(names) > MAX_SERIES:
            figure.suptitle(f"The first {MAX_SERIES} of {len(names)} series")


def _forecast_panel(axes: "Axes", past: "pd.DataFrame", ahead: "pd.DataFrame") -> None:
    """Draw the history in black, followed by the forecast and its quantile bands."""
    label, *columns = ahead.columns[2:]
    known = past.dropna(subset="y").tail(1)
    times = [*known["ds"], *ahead["ds"]]

    def joined(column: str) -> list[float]:
        return [*known["y"], *ahead[column]]

    axes.plot(past["ds"], past["y"], color=BLACK, linewidth=1.2, label="history")
    # Quantile columns by level in per cent, ascending; NAME-q2.5 has level 2.5.
    levels = dict(sorted((float(name.rpartition("-q")[2]), name) for name in columns))
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

        locator = dates.AutoDateLocator(maxticks=8, tz=ahead["ds"].dt.tz)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=ahead["ds"].dt.tz))


# ---- diagnoses ----


def plot_diagnosis(rows: Sequence[Row], tolerance: float, path: Path) -> None:
    """Plot the error by number of terms and the spread of q and k for each layer.

    Parameters
    ----------
    rows : sequence of dict
        Result of `eattn.diagnosis.rows`.
    tolerance : float
        Error to mark with a line.
    path : Path
        File to write, .png or .svg.
    """
    layers = [row for row in rows if row["what"] == "layer"]
    colours = {row["layer"]: COLOURS[i % len(COLOURS)] for i, row in enumerate(layers)}
    with _figure(4.8, path) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.4, 1])
        _plot_errors(left, rows, colours, tolerance)
        _plot_spreads(right, layers, colours)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _plot_errors(
    axes: "Axes", rows: Sequence[Row], colours: dict[str, str], tolerance: float
) -> None:
    """Draw errors of Taylor features solid and of Gaussian features dashed."""
    axes.set_title("(a) Error relative to exact EA")
    for layer, colour in colours.items():
        own = next(row for row in rows if row["what"] == "layer" and row["layer"] == layer)
        of = [row for row in rows if row["what"] == "candidate" and row["layer"] == layer]
        for line, gaussian in (("-", False), ("--", True)):
            points = [
                (row["terms"], row["error"])
                for row in of
                if (row["radius"] > 0) == gaussian and row["radius"] <= (row["terms"] - 1) / 4
            ]  # without coarse grids, whose nodes are more than 0.5 apart
            x, y = zip(*sorted(points), strict=True)
            label = None if gaussian else layer
            axes.plot(x, y, line, color=colour, marker=".", markersize=5, label=label)
        for row in of:
            if row["expansion"] == own["expansion"]:
                ring: Any = dict(markersize=10, markerfacecolor="none", markeredgewidth=1.6)
                axes.plot(row["terms"], row["error"], "o", color=colour, **ring)
    axes.axhline(tolerance, color=GREY, linewidth=1, linestyle=":")
    place: Any = dict(xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.annotate("tolerance", (1, tolerance * 1.1), **place)
    axes.set_yscale("log")
    axes.set(xlabel="terms (Taylor solid, Gaussian dashed; ring: current)", ylabel="error")


def _plot_spreads(axes: "Axes", layers: Sequence[Row], colours: dict[str, str]) -> None:
    """Draw the standard deviation of q and of k in every channel, by layer."""
    axes.set_title("(b) Spread of q and k by channel")
    ticks = []
    for number, row in enumerate(layers):
        for side, part in enumerate("qk"):
            x = 2.5 * number + side
            ticks.append((x, f"{part}\n{number}" if side == 0 else part))
            values = row["spreads"][part]
            style: Any = dict(color=colours[row["layer"]], alpha=0.4, markersize=4)
            axes.plot([x] * len(values), values, "_", **style)
    axes.set_xticks(*map(list, zip(*ticks, strict=True)))
    axes.set_ylim(bottom=0)
    axes.set(xlabel="layer", ylabel="standard deviation")
