"""How near expansions are to exact EA: tables, and a picture of error against cost."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from paper.report import plots
from paper.report.plots import Row
from paper.report.promises import promise_table, source
from paper.report.table3 import SHORT
from paper.report.tables import Mean, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = tuple[str, list[str], list[list[str]]]  # title, head without its first cell, lines
MARKS = {"powers": ("Taylor", "o", "-"), "bells": ("quadrature", "s", "--")}
SHADES = (plots.SKY, plots.BLUE, plots.GREEN, plots.VERMILLION, plots.PURPLE)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Errors and costs; what centring gains; what training made of it."""
    errors = [row for row in rows if row["what"] == "error"]
    if errors:
        yield _costs(rows, errors)
    centers = [row for row in rows if row["what"] == "center"]
    if centers:
        lines = [
            [name, *(f"{row['error']:.1e}" for row in pair)]
            for name, pair in _by(centers, "expansion").items()
        ]
        yield "error, q and k around 1 with a spread of 0.5", ["as they are", "centred"], lines
    if any(row["what"] == "forecast" for row in rows):
        yield _forecasts(rows)
    if any(row["what"] == "run" for row in rows):
        yield _accuracies(rows)
        swapped = list(_swapped(rows))
        if swapped:
            head = [f"{SHORT[data]}: accuracy, same answers" for data in _sets(rows)]
            yield "weights of exact EA, used with", head, swapped


def _costs(rows: Sequence[Row], errors: Sequence[Row]) -> Table:
    spreads = list(dict.fromkeys(row["spread"] for row in errors))
    times = {row["expansion"]: row for row in rows if row["what"] == "time"}
    head = [f"spread {spread:g}" for spread in spreads]
    lines = []
    for name, of in _by(errors, "expansion").items():
        cells = [name, *(f"{row['error']:.1e}" for row in of)]
        if name in times:
            row = times[name]
            cells += [f"{row['forward'] * 1e3:.0f}", f"{row['training'] * 1e3:.0f}"]
            cells += [f"{row['state_bytes'] / 1024:.0f}"]
        lines.append(cells)
    if times:
        head += ["forward, ms", "forward+backward, ms", "state, KiB"]
    return "error relative to exact EA, by the spread of q and k", head, lines


def _accuracies(rows: Sequence[Row]) -> Table:
    runs = [row for row in rows if row["what"] == "run"]
    lines = []
    for mixer, of in _by(runs, "mixer").items():
        cells = [mixer]
        for data in _sets(rows):
            cells.append(_mean([row["accuracy"] for row in of if row["data"] == data]))
        lines.append([*cells, f"{fmean(row['seconds'] for row in of):.0f}"])
    seeds = max(row["seed"] for row in runs) + 1
    title = f"accuracy on TEST, epoch picked on a fifth of TRAIN, {seeds} seeds; trained with"
    return title, [*(SHORT[data] for data in _sets(rows)), "s a run"], lines


def _sets(rows: Sequence[Row]) -> list[str]:
    """The data sets of Table 3 that models were trained on."""
    return [data for data in SHORT if any(row.get("data") == data for row in rows)]


def _forecasts(rows: Sequence[Row]) -> Table:
    runs = [row for row in rows if row["what"] == "forecast"]
    data = list(dict.fromkeys(row["data"] for row in runs))
    lines = []
    for mixer, of in _by(runs, "mixer").items():
        values = [[row["mae"] for row in of if row["data"] == name] for name in data]
        lines.append([mixer, *map(_mean, values)])
    for name in dict.fromkeys(name for row in runs for name in row.get("swapped", ())):
        exact = [row for row in runs if "swapped" in row]
        values = [[r["swapped"][name]["mae"] for r in exact if r["data"] == of] for of in data]
        lines.append([f"ea's weights on {name}", *map(_mean, values)])
    return "MAE, horizon 6, windows in the order of time; trained with", data, lines


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = Mean.of(values)
    return f"{mean.value:.3f} ± {mean.spread:.3f}"


def agreements(rows: Sequence[Row], expansion: str) -> dict[str, float]:
    """By data set: of the answers of exact EA's models on TEST, the share that stay the same."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["what"] == "run" and "swapped" in row:
            found[row["data"]].append(row["swapped"][expansion]["agreement"])
    return {data: fmean(values) for data, values in found.items()}


def _swapped(rows: Sequence[Row]) -> Iterator[list[str]]:
    runs = [row for row in rows if row["what"] == "run" and "swapped" in row]
    for expansion in dict.fromkeys(name for row in runs for name in row["swapped"]):
        same, cells = agreements(rows, expansion), [expansion]
        for data in _sets(rows):
            of = [row["swapped"][expansion]["accuracy"] for row in runs if row["data"] == data]
            cells.append(f"{fmean(of):.3f}, {same[data]:.2%}" if of else "")
        yield cells


def _by(rows: Sequence[Row], field: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[field]].append(row)
    return found


def markdown(rows: Sequence[Row]) -> str:
    """All tables, and what must hold."""
    parts = []
    for title, head, lines in tables(rows):
        parts += [table([title, *head], lines), ""]
    return "\n".join([*parts, promise_table(rows), "", source(rows[-1])])


# ---- the picture ---------------------------------------------------------------------------------


def redraw(path: Path) -> list[Path]:
    """faithful.jsonl -> faithful.png and faithful.svg."""
    return plots.redraw(path, draw)


def draw(rows: Sequence[Row]) -> "Figure":
    """Two panels: error against the number of terms, and against time."""
    figure = plots.new_figure(4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    errors = [row for row in rows if row["what"] == "error"]
    times = {row["expansion"]: row["training"] * 1e3 for row in rows if row["what"] == "time"}
    _panel(left, errors, {row["expansion"]: row["terms"] for row in errors})
    left.set(xlabel="terms", ylabel="error relative to exact EA")
    left.set_title("(a) Bells need a range, powers a small spread")
    _panel(right, errors, times)
    right.set_xlabel("forward and backward, ms")
    right.set_title("(b) The same against time")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, columnspacing=1.2)
    return figure


def _panel(axes: "Axes", errors: Sequence[Row], cost: dict[str, float]) -> None:
    spreads = dict.fromkeys(row["spread"] for row in errors)
    for colour, spread in zip(SHADES, spreads, strict=False):
        for kind, (label, marker, line) in MARKS.items():
            of = [
                row
                for row in errors
                if row["spread"] == spread
                and (row["radius"] > 0) == (kind == "bells")
                and row["expansion"] in cost
            ]
            if of:
                x, y = [cost[row["expansion"]] for row in of], [row["error"] for row in of]
                name = f"{label}, σ = {spread:g}"
                axes.plot(x, y, line, color=colour, marker=marker, markersize=3.5, label=name)
    axes.set_yscale("log")
