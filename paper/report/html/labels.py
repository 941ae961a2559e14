"""Numbers and axes in words."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paper.report import plots
from paper.report.html.panel import Tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUMBER = re.compile(r"^[−-]?[\d.,]+(e[−+-]?\d+)?[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*\s*[kM%]?$")
POWER = re.compile(r"\$\\mathdefault\{(.*)\}\$")
RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")


def words(value: float) -> str:
    """A number as people read it: 16,384 or 0.01234 or −3.5."""
    if abs(value) >= 1e4 or (abs(value) >= 1e3 and value == round(value)):
        return plots.minus(f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.3g}")
    return plots.minus(f"{value:.4g}")


def is_number(label: str) -> bool:
    """Whether a tick counts, and does not name."""
    return NUMBER.match(label) is not None


def ticks(axes: "Axes", which: str) -> Iterator[Tick]:
    """Those with a label, inside the frame."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    places = axis.get_majorticklocs()
    # Not the labels shown: of neighbours that share an axis only one shows them.
    labels = axis.get_major_formatter().format_ticks(list(places))
    for place, text in zip(places, labels, strict=True):
        label = _plain(text)
        point = (place, axes.get_ylim()[0]) if which == "x" else (axes.get_xlim()[0], place)
        at = axes.transAxes.inverted().transform(axes.transData.transform(point))
        fraction = float(at[0 if which == "x" else 1])
        if label and -1e-6 <= fraction <= 1 + 1e-6:
            yield Tick(fraction, label)


def _plain(label: str) -> str:
    """`$\\mathdefault{10^{2}}$` as 10²."""
    if found := POWER.fullmatch(label):
        base, _, power = found[1].partition("^")
        return plots.minus(base) + power.strip("{}").translate(RAISED)
    return plots.minus(label) if is_number(label) else label


def nearest(ticks: Sequence[Tick], at: float) -> str:
    """The label of the tick nearest to a place."""
    return min(ticks, key=lambda tick: abs(tick.at - at)).label if ticks else ""


def y_label(axes: "Axes") -> str:
    """Its own, or that of the panel it shares the axis with."""
    alike = [axes, *axes.get_shared_y_axes().get_siblings(axes)]
    return next((label for other in alike if (label := other.get_ylabel())), "")
