"""Figure 4 from its rows: memory, longest sequence and throughput of training BERT-base."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paper.report import plots, runs
from paper.report.costs import (
    GIB,
    is_bert,
    legend,
    lines,
    number,
    place,
    points,
    size,
    tokens,
)
from paper.report.plots import Row
from paper.report.promises import promise_table, source
from paper.report.table1 import LOOKS
from paper.report.tables import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Table = tuple[str, list[str], list[list[str]]]  # title, head, lines
Cell = Callable[[Row], str]
INVERSE = "L = c / batch"


def redraw(path: Path) -> list[Path]:
    """fig4.jsonl -> fig4.png and fig4.svg."""
    return plots.redraw(path, lambda rows: draw(runs.last_run(rows)))


def draw(rows: Sequence[Row]) -> "Figure":
    """Memory against L, the BS-L curve, throughput along it, and throughput at batch 1."""
    figure = plots.new_figure(8.2)
    panels = figure.subplot_mosaic([["memory", "longest"], ["along", "time"]])
    of = {what: _of(rows, what) for what in ("memory", "longest", "time")}
    peaks = points(of["memory"], "L", "peak_bytes", GIB)
    lines(panels["memory"], peaks, "(a) Memory of a step, batch 1", "L, tokens", "GiB")
    longest = points(of["longest"], "batch", "L")
    room = size(of["longest"][0]["budget"]) if of["longest"] else "the budget"
    lines(panels["longest"], longest, f"(b) Longest L within {room}", "batch size", "L, tokens")
    inverse(panels["longest"], longest)
    along = points(of["longest"], "L", "tokens_per_second")
    title = "(c) Throughput at the points of (b)"
    lines(panels["along"], along, title, "L, tokens", "tokens/s")
    rates = points(of["time"], "L", "tokens_per_second")
    lines(panels["time"], rates, "(d) Throughput at batch 1", "L, tokens", "tokens/s")
    legend(figure, INVERSE)
    figure.suptitle(caption(rows), x=0.01, ha="left", fontsize=9.5)
    return figure


def inverse(axes: "Axes", longest: dict[str, Sequence[tuple[float, float]]]) -> None:
    """L = c / batch through each first point: the same number of tokens all along."""
    label: str | None = INVERSE
    for curve in longest.values():
        (batch, length), last = curve[0], curve[-1][0]
        ends = [batch, last], [length, length * batch / last]
        axes.plot(*ends, ":", color=plots.BLACK, linewidth=1.2, label=label, zorder=3)
        label = None


def caption(rows: Sequence[Row]) -> str:
    """What was trained, and what counts as its memory."""
    first = _of(rows, "memory")[0]
    model = "BERT-base" if is_bert(first["dim"], first["depth"]) else "A small model, for a test"
    return (
        f"{model}: {first['depth']} blocks of {first['dim']} channels, non-causal, float32,"
        f" on {place(first['device'])}. A step: forward and backward,"
        f" dropout {first['dropout']:g}, no optimizer.\n"
        f"Memory in (a) is what a step adds to weights and gradients, {size(first['model_bytes'])};"
        " in (b) these count too."
    )


# ---- tables --------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Memory and throughput against L, and what fits the budget at every batch size."""
    peaks, times, longest = (_of(rows, what) for what in ("memory", "time", "longest"))
    if peaks:
        title = "memory of a step above weights and gradients, batch 1, GiB"
        yield title, *_grid(peaks, "L", _peak)
    if longest:
        title = f"longest L within {size(longest[0]['budget'])}, and tokens/s there"
        yield title, *_grid(longest, "batch", _longest)
    if times:
        yield "tokens/s at batch 1", *_grid(times, "L", _rate)


def _grid(rows: Sequence[Row], axis: str, cell: Cell) -> tuple[list[str], list[list[str]]]:
    """A line per mixer, a column per value of the axis."""
    places = sorted({row[axis] for row in rows})
    found = {(row["mixer"], row[axis]): row for row in rows}
    mixers = [mixer for mixer in LOOKS if any(row["mixer"] == mixer for row in rows)]
    body = [
        [mixer, *(cell(found[mixer, x]) if (mixer, x) in found else "" for x in places)]
        for mixer in mixers
    ]
    return [axis, *map(tokens, places)], body


def _peak(row: Row) -> str:
    return number(row["peak_bytes"] / GIB) if "peak_bytes" in row else "—"


def _rate(row: Row) -> str:
    return f"{row['tokens_per_second']:,.0f}" + "*" * (row.get("runs") == 1)


def _longest(row: Row) -> str:
    return f"{row['L']:,}, {_rate(row)}/s" if "L" in row else "—"


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """How to read the tables, and what could not be measured."""
    longest = [row for row in _of(rows, "longest") if "L" in row]
    if longest:
        model = size(longest[0]["model_bytes"])
        yield (
            f"The budget holds weights and gradients ({model}) and the step, no optimizer. Every"
            " longest L was run, once, in a process of its own."
        )
        yield from (_bound(row) for row in longest if not _ran_out(row))
        if any(map(_ran_out, longest)):
            further = max(row["fails"] / row["L"] for row in longest if _ran_out(row))
            start = "One" if all(map(_ran_out, longest)) else "Of the others, one"
            yield f"{start} up to {100 * further - 100:.1f} % longer did not fit."
    if any(row["runs"] == 1 for row in _of(rows, "time")):
        yield "* One run."
    for row in rows:
        if row["what"] == "exponent":
            where = f"L = {row['points'][0]} to {row['points'][-1]}"
            yield f"{row['mixer']}: memory grows as L^{row['value']:.2f} ({where})."
    for row in rows:
        if row["what"] == "memory" and "reason" in row:
            yield f"{row['mixer']}, L = {row['L']}: {row['reason']}."
        if row["what"] == "longest" and "reason" in row:
            yield f"{row['mixer']}, batch {row['batch']}: {row['reason']}."


def _ran_out(row: Row) -> bool:
    """Whether a longer one was run and took too much memory."""
    return str(row.get("failed", "")).startswith("out of memory")


def _bound(row: Row) -> str:
    """Why a longest L may not be the longest."""
    place = f"{row['mixer']}, batch {row['batch']}"
    if row.get("fails") is None:
        return f"{place}: the search ended at L = {row['L']:,}, more may fit."
    return f"{place}: L = {row['fails']:,} gave no answer ({row['failed']}), more may fit."


def markdown(rows: Sequence[Row]) -> str:
    """The promises, the tables and their notes for the README."""
    parts = [promise_table(rows), ""]
    for title, head, body in tables(rows):
        parts += [f"{title[0].upper()}{title[1:]}:", "", table(head, body), ""]
    parts += [f"- {note}" for note in notes(rows)]
    return "\n".join([*parts, "", source(rows[-1])])


def _of(rows: Sequence[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]
