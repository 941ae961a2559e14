"""Forecasts as a picture: what came before, what is expected, and how sure that is."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eattn.report import plots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PANELS = 6  # series to show at most


def plot(history: "pd.DataFrame", forecast: "pd.DataFrame", path: Path) -> None:
    """Draw unique_id, ds, y and the forecasts that follow them, one panel for each series.

    A forecast has columns unique_id, ds, the name of the model, and quantiles NAME-q10, … after it.
    """
    plots.check_picture(path)
    names = list(dict.fromkeys(forecast["unique_id"]))
    with plots.style():
        figure = plots.new_figure(0.6 + 2.6 * min(len(names), PANELS))
        panels = figure.subplots(min(len(names), PANELS), squeeze=False)[:, 0]
        for name, axes in zip(names, panels, strict=False):
            past = history[history["unique_id"] == name]
            _panel(axes, past, forecast[forecast["unique_id"] == name])
            axes.set_title(str(name))
        plots.legend_below(panels[-1], columns=5)
        if len(names) > PANELS:
            figure.suptitle(f"The first {PANELS} of {len(names)} series")
        plots.settle(figure)
        plots.save(figure, path)


def _panel(axes: "Axes", past: "pd.DataFrame", ahead: "pd.DataFrame") -> None:
    """The past in black, and from its last known value on the forecast and its bands in blue."""
    label, *columns = ahead.columns[2:]
    known = past.dropna(subset="y").tail(1)
    times = [*known["ds"], *ahead["ds"]]

    def joined(column: str) -> list[float]:
        return [*known["y"], *ahead[column]]

    axes.plot(past["ds"], past["y"], color=plots.BLACK, linewidth=1.2, label="history")
    levels = _levels(columns)
    for number, (low, high) in enumerate(zip(levels, reversed(levels), strict=True)):
        if low < high:
            edges = joined(levels[low]), joined(levels[high])
            shade: dict[str, Any] = dict(color=plots.SKY, alpha=0.25 + 0.15 * number, linewidth=0)
            axes.fill_between(times, *edges, **shade, label=f"{low:g} to {high:g} %")
        elif low == high:
            axes.plot(times, joined(levels[low]), ":", color=plots.BLUE, label=f"{low:g} %")
    axes.plot(times, joined(label), color=plots.BLUE, label="forecast")
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
