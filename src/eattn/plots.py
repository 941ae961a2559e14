"""Plot forecasts and diagnoses; the same data always gives the same bytes.

matplotlib is imported on first use, and without pyplot, which would keep global state.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
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
def _figure(height: float, path: Path | None) -> Iterator["Figure"]:
    """Yield an empty figure with our style; when the block ends, write it to `path` if it is set.

    Notebooks show the figure although pyplot does not know it.
    """
    if path is not None:
        check_picture(path)
    need("matplotlib", extra="report")
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
        if path is not None:
            path.write_bytes(_picture(figure, path.suffix))  # if drawing fails, the file is kept
    figure._repr_png_ = partial(_picture, figure, ".png")  # type: ignore[attr-defined]


def _picture(figure: "Figure", suffix: str) -> bytes:
    """Return a figure as the content of a .png or .svg file."""
    # Dates and versions would change the bytes.
    unwanted = {".png": ["Software"], ".svg": ["Date", "Creator"]}[suffix]
    picture = io.BytesIO()
    figure.savefig(picture, format=suffix[1:], metadata=dict.fromkeys(unwanted))
    return picture.getvalue()


# ---- forecasts ----


def plot_forecast(
    history: "pd.DataFrame",
    forecast: "pd.DataFrame",
    path: Path | None = None,
    *,
    anomalies: "pd.DataFrame | None" = None,
) -> "Figure":
    """Plot the history and the forecast of each series in its own panel.

    Parameters
    ----------
    history : DataFrame
        Columns unique_id, ds and y.
    forecast : DataFrame
        Columns unique_id, ds, the forecast, and optional quantiles such as EAForecaster-q10. Two
        levels with the sum 1 are drawn as a band, and others as a line.
    path : Path, optional
        File to write, .png or .svg.
    anomalies : DataFrame, optional
        Columns unique_id, ds and y of values to mark.

    Returns
    -------
    Figure
        The matplotlib figure.
    """
    names = list(dict.fromkeys(forecast["unique_id"]))
    count = min(len(names), MAX_SERIES)
    with _figure(0.6 + 2.6 * count, path) as figure:
        panels = figure.subplots(count, squeeze=False)[:, 0]
        for name, axes in zip(names, panels, strict=False):
            parts = [history, forecast, *([] if anomalies is None else [anomalies])]
            _forecast_panel(axes, *(part[part["unique_id"] == name] for part in parts))
            axes.set_title(str(name))
        lines: dict[str, Any] = {}  # by label, of all panels
        for axes in panels:
            for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
                lines.setdefault(label, line)
        below: dict[str, Any] = dict(loc="upper center", bbox_to_anchor=(0.5, -0.16))
        panels[-1].legend(lines.values(), lines, **below, ncols=7, columnspacing=1.2)
        if len(names) > MAX_SERIES:
            figure.suptitle(f"The first {MAX_SERIES} of {len(names)} series")
    return figure


def _forecast_panel(
    axes: "Axes",
    past: "pd.DataFrame",
    ahead: "pd.DataFrame",
    marked: "pd.DataFrame | None" = None,
) -> None:
    """Draw the history in black, followed by the forecast and its quantiles."""
    label, *columns = ahead.columns[2:]
    known = past.dropna(subset="y").tail(1)
    times = [*known["ds"], *ahead["ds"]]

    def joined(column: str) -> list[float]:
        return [*known["y"], *ahead[column]]

    axes.plot(past["ds"], past["y"], color=BLACK, linewidth=1.2, label="history")
    # Quantile columns by level in per cent, ascending; NAME-q2.5 has level 2.5.
    levels = dict(sorted((float(name.rpartition("-q")[2]), name) for name in columns))
    bands = [(low, high) for low in levels if low < (high := round(100 - low, 6)) in levels]
    shade: dict[str, Any] = dict(linewidth=0, zorder=0.4)  # below the grid
    for number, (low, high) in enumerate(bands):
        shade |= dict(color=_tint(SKY, 0.22 + 0.14 * number), label=f"{low:g} to {high:g} %")
        axes.fill_between(times, joined(levels[low]), joined(levels[high]), **shade)
    for level in [level for level in levels if level not in chain.from_iterable(bands)]:
        axes.plot(times, joined(levels[level]), ":", color=BLUE, label=f"{level:g} %")
    axes.plot(times, joined(label), color=BLUE, label="forecast")
    if marked is not None and len(marked):
        circle: dict[str, Any] = dict(markersize=6, markerfacecolor="none", markeredgewidth=1.6)
        axes.plot(marked["ds"], marked["y"], "o", color=VERMILLION, **circle, label="anomaly")
    axes.margins(x=0.01)
    if ahead["ds"].dtype.kind == "M":
        from matplotlib import dates

        locator = dates.AutoDateLocator(minticks=3, maxticks=8, tz=ahead["ds"].dt.tz)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=ahead["ds"].dt.tz))


def _tint(colour: str, share: float) -> list[float]:
    """Return a colour mixed with white."""
    from matplotlib.colors import to_rgb

    return [1 - min(share, 1) * (1 - part) for part in to_rgb(colour)]


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
