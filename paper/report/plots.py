"""What all pictures share: rows from files, one style, PNG and SVG with the same bytes each time.

matplotlib is imported where it is used, and never pyplot: figures are objects, drawn by Agg.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

# Okabe and Ito's colours: told apart with any kind of colour vision.
BLACK, GREY = "#000000", "#777777"
VERMILLION, BLUE, GREEN, PURPLE, SKY = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"
ORDER_COLOURS = {2: VERMILLION, 6: BLUE}  # the paper's orders look the same in every picture

# A wide pale line that others may lie upon, and still be seen.
UNDER: dict[str, Any] = {"color": "#bbbbbb", "linewidth": 4.5, "solid_capstyle": "butt"}

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


def read_rows(path: Path) -> list[Row]:
    """Every row of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def redraw(path: Path, draw: Callable[[Sequence[Row]], "Figure"]) -> list[Path]:
    """Draw the rows of name.jsonl to name.png and name.svg beside it."""
    with style():
        figure = draw(read_rows(path))
        settle(figure)
        return [save(figure, path.with_suffix(suffix)) for suffix in SUFFIXES]


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


def colours(orders: Sequence[int]) -> dict[int, str]:
    """A colour for each order; those of the paper's orders are fixed."""
    rest = iter((GREEN, PURPLE, SKY, GREY, VERMILLION, BLUE))
    return {order: ORDER_COLOURS.get(order) or next(rest) for order in orders}


def legend_below(axes: "Axes", columns: int) -> None:
    """The legend under the axis label, never on data."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, columnspacing=1.2)


def percent(share: float) -> str:
    """Two digits or more: `639 %`, `9.3 %`, `2.5e-07 %`."""
    value = 100 * share
    return f"{value:,.0f} %" if value >= 10 else f"{value:.2g} %"


def minus(text: str) -> str:
    """With the sign that is as wide as a digit."""
    return text.replace("-", "−")


def legend_beside(axes: "Axes") -> None:
    """The legend to the right of the axes, never on data."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
