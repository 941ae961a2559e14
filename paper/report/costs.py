"""What the pictures of training and inference cost share: a line per mixer over lengths."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paper.report.plots import Row
from paper.report.table1 import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB, MIB = 2**30, 2**20
BERT = (768, 12)  # channels and blocks

Points = Sequence[tuple[float, float]]


def is_bert(dim: int, depth: int) -> bool:
    """Whether a model is BERT-base, or one for tests."""
    return (dim, depth) == BERT


def points(rows: Iterable[Row], x: str, y: str, unit: float = 1.0) -> dict[str, Points]:
    """(x, y) of every mixer's rows, those without y left out, in units of `unit`."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in sorted((row for row in rows if row.get(y)), key=lambda row: row[x]):
        found.setdefault(row["mixer"], []).append((row[x], row[y] / unit))
    return {mixer: found[mixer] for mixer in LOOKS if mixer in found}


def lines(axes: "Axes", curves: Mapping[str, Points], title: str, xlabel: str, ylabel: str) -> None:
    """A line per mixer on log axes, with a tick at every power of two."""
    axes.set_title(title)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    # The first ones are wider, to be seen where the others lie on them.
    for (mixer, curve), extra in zip(curves.items(), (3, 1.2, *[0] * len(curves)), strict=False):
        colour, line, marker = LOOKS[mixer]
        x, y = zip(*curve, strict=True)
        width, points = 1.6 + extra, 4 + 1.6 * extra
        axes.plot(x, y, line, c=colour, marker=marker, ms=points, lw=width, label=mixer)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _ticks(axes, [y for curve in curves.values() for _, y in curve])


def _ticks(axes: "Axes", values: Sequence[float]) -> None:
    """Numbers between the powers of ten too, where there are fewer than two of those."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    axes.xaxis.set_major_formatter(lambda value, _: tokens(round(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    if values and max(values) < 30 * min(values):
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))


def legend(figure: "Figure", *further: str) -> None:
    """One for all panels, below them: the mixers, then what else is drawn."""
    shown: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    names = [name for name in (*LOOKS, *further) if name in shown]
    handles = [shown[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=5, handlelength=3)


def tokens(count: int) -> str:
    """16384 as 16k."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def place(device: str) -> str:
    """What a row calls `cpu`, or a card by its name."""
    return "a CPU" if device == "cpu" else device


def size(value: float) -> str:
    """Bytes with three digits and a unit."""
    return f"{value / GIB:.3g} GiB" if value >= GIB else f"{value / MIB:.3g} MiB"


def number(value: float) -> str:
    """Three digits, or all before the point; two below 1."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{2 if value < 1 else 3}g}"
