"""Figure 5 from its rows: memory and time per token of generating with BERT-base."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paper.report import plots, runs
from paper.report.costs import (
    GIB,
    MIB,
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
__all__ = ["draw", "is_bert", "markdown", "notes", "redraw", "size", "tables"]

KINDS = ("memory", "latency", "prefill")
COLUMNS = (
    ("latency", "p50", 1e-3, "time per token, ms"),
    ("latency", "state_bytes", MIB, "state or cache, MiB"),
    ("memory", "peak_bytes", MIB, "memory above the weights, MiB"),
    ("prefill", "seconds", 1.0, "reading a prompt of L tokens, s"),
    ("prefill", "peak_bytes", MIB, "memory of that above weights and prompt, MiB"),
)


def redraw(path: Path) -> list[Path]:
    """fig5.jsonl -> fig5.png and fig5.svg."""
    return plots.redraw(path, lambda rows: draw(runs.last_run(rows)))


def draw(rows: Sequence[Row]) -> "Figure":
    """A column per batch size: memory above, time per token below; then the prompt."""
    batches = sorted({row["batch"] for row in rows if row["what"] == "latency"})
    figure = plots.new_figure(9.8)
    grid = figure.add_gridspec(3, 1)
    for row, what in enumerate(("memory", "latency")):
        panels = grid[row].subgridspec(1, len(batches)).subplots(sharey=True, squeeze=False)[0]
        for axes, batch in zip(panels, batches, strict=True):
            of = [r for r in rows if r["what"] == what and r["batch"] == batch]
            (memory if what == "memory" else latency)(axes, of, batch)
            axes.label_outer()
    below = grid[2].subgridspec(1, 2).subplots(squeeze=False)[0]
    prompts(list(below), [row for row in rows if row["what"] == "prefill"])
    legend(figure)
    figure.suptitle(caption(rows), x=0.01, ha="left", fontsize=9.5)
    return figure


def memory(axes: "Axes", rows: Sequence[Row], batch: int) -> None:
    """Weights and all above them."""
    total = [r | {"total": r["model_bytes"] + r["peak_bytes"]} for r in rows if "peak_bytes" in r]
    curves = points(total, "position", "total", GIB)
    lines(axes, curves, f"(a) Memory, batch {batch}", "position", "GiB")


def latency(axes: "Axes", rows: Sequence[Row], batch: int) -> None:
    """The median, with p20 to p80 as a band."""
    curves = points(rows, "position", "p50", 1e-3)
    lines(axes, curves, f"(b) Time per token, batch {batch}", "position", "ms")
    for mixer in curves:
        of = sorted((r for r in rows if r["mixer"] == mixer and "p50" in r), key=_position)
        x, low, high = zip(
            *((r["position"], 1e3 * r["p20"], 1e3 * r["p80"]) for r in of), strict=True
        )
        axes.fill_between(x, low, high, color=LOOKS[mixer][0], alpha=0.2, linewidth=0)


def prompts(panels: "Sequence[Axes]", rows: Sequence[Row]) -> None:
    """Time and memory of reading a prompt."""
    chunk = f", chunks of {rows[0]['chunk']}" if rows else ""
    seconds = points(rows, "L", "seconds")
    lines(panels[0], seconds, f"(c) Reading a prompt{chunk}", "L, tokens", "s")
    peaks = points(rows, "L", "peak_bytes", GIB)
    lines(panels[1], peaks, "(d) Memory above weights and prompt", "L, tokens", "GiB")


def _position(row: Row) -> int:
    return int(row["position"])


def caption(rows: Sequence[Row]) -> str:
    """What generates, and how it got to a position."""
    first = next(row for row in rows if row["what"] in ("memory", "latency"))
    model = "BERT-base" if is_bert(first["dim"], first["depth"]) else "A small model, for a test"
    return (
        f"{model}: {first['depth']} blocks of {first['dim']} channels, causal, float32,"
        f" on {place(first['device'])}, token by token; SA with a KV cache.\n"
        f"Memory holds the weights ({size(first['model_bytes'])}). States and caches were filled to"
        " each position directly."
    )


# ---- tables --------------------------------------------------------------------------------------


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Time per token, state and memory at every position; time and memory of a prompt."""
    of = {what: [row for row in rows if row["what"] == what] for what in KINDS}
    for what, field, unit, title in COLUMNS:
        if any(field in row for row in of[what]):
            axis = "L" if what == "prefill" else "position"
            chunk = f", in chunks of {of[what][0]['chunk']}" if what == "prefill" else ""
            yield title + chunk, *_grid(of[what], axis, field, unit)


def _grid(
    rows: Sequence[Row], axis: str, field: str, unit: float
) -> tuple[list[str], list[list[str]]]:
    """A line per mixer and batch size: empty where nothing was tried, a dash where it failed."""
    places = sorted({row[axis] for row in rows})
    found = {(row["mixer"], row["batch"], row[axis]): row for row in rows}
    lines = sorted({(batch, tuple(LOOKS).index(mixer), mixer) for mixer, batch, _ in found})
    body = []
    for batch, _, mixer in lines:
        cells = [f"{mixer}, batch {batch}"]
        for x in places:
            row = found.get((mixer, batch, x), {})
            cells.append(number(row[field] / unit) if field in row else "—" if row else "")
        body.append(cells)
    return [axis, *map(tokens, places)], body


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """How long it takes to generate a whole sequence, and what could not be measured."""
    latencies = [row for row in rows if row["what"] == "latency"]
    for batch in sorted({row["batch"] for row in latencies}):
        of = points([row for row in latencies if row["batch"] == batch], "position", "p50")
        ends = [curve[-1][0] for curve in of.values()]
        if of and len(min(of.values(), key=len)) > 1:
            end = min(ends)
            spent = (f"{mixer} {_clock(walked(curve, end))}" for mixer, curve in of.items())
            yield (
                f"Batch {batch}: to generate {end:,.0f} tokens one by one takes"
                f" {', '.join(spent)}, summed up from the points."
            )
    for row in latencies:
        if "reason" in row:
            place = f"batch {row['batch']}, position {row['position']}"
            yield f"{row['mixer']}, {place}: {row['reason']}."
    for row in rows:
        if row["what"] == "prefill" and "reason" in row:
            yield f"{row['mixer']}, prompt of {row['L']}: {row['reason']}."


def walked(curve: Sequence[tuple[float, float]], end: float) -> float:
    """Seconds to get from the first token to `end`, the time per token straight between points."""
    (x, y), total = curve[0], curve[0][0] * curve[0][1]
    for a, b in curve[1:]:
        if a <= end:
            total += (a - x) * (y + b) / 2
            x, y = a, b
    return total


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def markdown(rows: Sequence[Row]) -> str:
    """The promises, the tables and their notes for the README."""
    parts = [promise_table(rows), ""]
    for title, head, body in tables(rows):
        parts += [f"{title[0].upper()}{title[1:]}:", "", table(head, body), ""]
    parts += [f"- {note}" for note in notes(rows)]
    return "\n".join([*parts, "", source(rows[-1])])
