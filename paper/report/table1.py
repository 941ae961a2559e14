"""Table 1 from its rows: the paper's complexity beside measured exponents, and their curves."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paper.report import plots, runs
from paper.report.plots import Row
from paper.report.promises import promise_table, source
from paper.report.tables import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = "ea-N"  # the curve along t: one EA-series after another
COLUMNS = (
    "mechanism",
    "time",
    "L",
    "D",
    "t",
    "memory",
    "L",
    "D",
    "t",
    "inference",
    "p",
    "bytes, p",
)
TRAINING, DECODING = range(9), (0, 9, 10, 11)  # columns of either


class Paper(NamedTuple):
    """What the paper says of a mechanism, and the exponents that follow from it."""

    time: str
    memory: str
    inference: str
    exponents: dict[tuple[str, str], int]  # (what, axis) -> exponent


def _expect(time: str, memory: str, inference: str) -> dict[tuple[str, str], int]:
    """`L2 D1` and its like as exponents; where the paper says nothing there is none."""
    expected: dict[tuple[str, str], int] = {}
    for what, formula in (("time", time), ("memory", memory), ("decoding time", inference)):
        for term in formula.split():
            expected[what, "position" if term[0] == "p" else term[0]] = int(term[1:])
    return expected


_SA = Paper("O(L²D)", "O(L²)", "O(LD)", _expect("L2 D1", "L2 D0", "p1"))
_EA = Paper("O(tLD)", "O(tLD)", "O(tD)", _expect("L1 D1 t1", "L1 D1 t1", "p0"))
_RNN = Paper("—", "—", "O(D)", _expect("", "", "p0"))
# Table 1 has SA, LA, AFT and the EA-series; the rest is from Sections 1 and 3.
PAPER = {
    "sa-math": _SA,
    "sa": _SA,
    "la": Paper("O(LD²)", "O(LD)", "O(D²)", _expect("L1 D2", "L1 D1", "p0")),
    "aft": Paper("O(L²D)", "O(LD)", "O(LD)", _expect("L2 D1", "L1 D1", "p1")),
    "taylor": Paper("O(LDᵗ)", "—", "O(Dᵗ)", _expect("L1 D2", "", "p0")),
    "gru": _RNN,
    "linear-rnn": _RNN,
    "ea": Paper("quadratic", "—", "—", _expect("L2", "", "")),
    "ea-2": _EA,
    "ea-6": _EA,
}
# Why a measured exponent is another than the paper's, where it is.
REASONS = {
    ("sa-math", "time", "D"): "the softmax of [L, L] weights is the same for every D",
    ("sa", "memory", "L"): "SDPA never holds the weights [L, L]",
    ("sa", "memory", "D"): "it holds q, k, v and their gradients instead",
    ("la", "time", "D"): "work within chunks is O(LD), and wider products run at a higher rate",
    ("aft", "time", "D"): "e^w of [L, L] biases is the same for every D",
    ("aft", "memory", "L"): "e^w and the gradient of the biases w [L, L] are held",
    ("aft", "memory", "D"): "the biases [L, L] outweigh [L, D]",
    ("taylor", "time", "D"): "D²/2 features meet D values",
    (SERIES, "time", "t"): "what all orders share costs more than their terms",
    (SERIES, "memory", "t"): "the backward makes the powers anew instead of keeping them",
}
TOLERANCE = 0.3  # between exponents; what differs by more contradicts the paper


def cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A line of COLUMNS for every mechanism that was measured."""
    found = {(r["mixer"], r["of"], r["axis"]): r["value"] for r in rows if r["what"] == "exponent"}

    def powers(mixer: str, of: str, *axes: str) -> list[str]:
        names = [SERIES if axis == "t" and mixer[:3] == "ea-" else mixer for axis in axes]
        known = [found.get((name, of, axis)) for name, axis in zip(names, axes, strict=True)]
        return ["" if value is None else f"{round(value, 2) + 0.0:.2f}" for value in known]

    for mixer, paper in PAPER.items():
        if any(name == mixer for name, *_ in found):
            line = [mixer, paper.time, *powers(mixer, "time", "L", "D", "t")]
            line += [paper.memory, *powers(mixer, "memory", "L", "D", "t")]
            line += [paper.inference, *powers(mixer, "decoding time", "position")]
            yield [*line, *powers(mixer, "state bytes", "position")]


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """How to read the table, where it differs from the paper, and what could not be measured."""
    yield (
        "Time, memory and inference are the paper's; then, measured here, the power with which the"
        " cost grows with L tokens, D channels, t the order of an EA-series, p the position while"
        " decoding: its time per token, and the bytes of its state."
    )
    expected = {(m, *what): n for m, paper in PAPER.items() for what, n in paper.exponents.items()}
    expected |= {(SERIES, of, "t"): 1 for of in ("time", "memory")}
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["what"] != "exponent":
            continue
        key = (row["mixer"], row["of"], row["axis"])
        said = expected.get(key)
        # What is constant cannot shrink: less than 0 is noise.
        if said is not None and abs(max(row["value"], 0.0) - said) > TOLERANCE:
            found.setdefault(row["mixer"], []).append(_difference(row, said, REASONS.get(key)))
    for mixer, differences in found.items():
        yield f"{mixer}: {'; '.join(differences)}."
    for row in rows:
        if row["what"] == "memory" and "reason" in row:
            yield f"{row['mixer']}, L = {row['L']}, D = {row['D']}: {row['reason']}."


def _difference(row: Row, said: int, reason: str | None) -> str:
    """How an exponent differs from the paper's, and why."""
    axis = "p" if row["axis"] == "position" else row["axis"]
    where = f"{axis} = {row['points'][0]} to {row['points'][-1]}"
    found = f"{row['of']} grows as {axis}^{row['value']:.2f} ({where}), not {axis}^{said}"
    return found + (f", as {reason}" if reason else "")


def markdown(rows: Sequence[Row]) -> str:
    """The promises, the table and its notes for the README."""
    lines = [
        promise_table(rows),
        "",
        table(COLUMNS, cells(rows)),
        "",
        *(f"- {note}" for note in notes(rows)),
    ]
    return "\n".join([*lines, "", source(rows[-1])])


# ---- the picture ---------------------------------------------------------------------------------

# (colour, line style, marker): EA in full lines, caches that grow dashed, other states dotted.
LOOKS = {
    "ea-6": (plots.BLUE, "-", "o"),
    "ea-2": (plots.VERMILLION, "-", "o"),
    "ea": (plots.BLACK, "--", "s"),
    "sa": (plots.GREEN, "--", "s"),
    "sa-math": (plots.PURPLE, "--", "s"),
    "aft": (plots.GREY, "--", "s"),
    "la": (plots.SKY, ":", "^"),
    "taylor": (plots.PURPLE, ":", "^"),
    "gru": (plots.GREY, ":", "^"),
    "linear-rnn": (plots.GREEN, ":", "^"),
}


def redraw(path: Path) -> list[Path]:
    """table1.jsonl -> table1.png and table1.svg."""
    return plots.redraw(path, lambda rows: draw(runs.last_run(rows)))


def draw(rows: Sequence[Row]) -> "Figure":
    """Four panels: training time and memory along L, decoding time and state along the position."""
    figure = plots.new_figure(8.6)
    panels = figure.subplot_mosaic([["time", "memory"], ["decoding", "state"]])
    of_length = [row for row in rows if row.get("axis") == "L"]
    decoded = [row for row in rows if row["what"] == "decoding"]
    D = decoded[0]["D"] if decoded else of_length[0]["D"]
    times = [row for row in of_length if row["what"] == "time"]
    peaks = [row for row in of_length if row["what"] == "memory"]
    curves(panels["time"], times, "p50", 1e-3, "(a) Training, time", "ms")
    curves(panels["memory"], peaks, "peak_bytes", 2**20, "(b) Training, peak extra memory", "MiB")
    curves(panels["decoding"], decoded, "p50", 1e-6, "(c) Decoding, time per token", "µs")
    curves(panels["state"], decoded, "state_bytes", 2**10, "(d) Decoding, size of the state", "KiB")
    name_states(panels["state"], decoded)
    for name in ("time", "memory"):
        panels[name].set_xlabel("L, tokens")
    for name in ("decoding", "state"):
        panels[name].set_xlabel("position, tokens before")
    handles, labels = panels["time"].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, handlelength=3)
    figure.suptitle(
        f"Causal, one sequence of D = {D} channels, one head. (a), (b): the mechanism alone,"
        " forward and backward;\n(c), (d): the layer with its projections.",
        x=0.01,
        ha="left",
        fontsize=9.5,
    )
    return figure


def curves(
    axes: "Axes", rows: Sequence[Row], field: str, unit: float, title: str, label: str
) -> None:
    """One line per mechanism, on log axes; what is 0 has no place there."""
    rows = [row for row in rows if row.get(field, 0) > 0]
    axes.set_title(title)
    axes.set_ylabel(label)
    if not rows:
        return
    for mixer, (colour, line, marker) in LOOKS.items():
        points = [(row["x"], row[field] / unit) for row in rows if row["mixer"] == mixer]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, line, color=colour, marker=marker, markersize=4, label=mixer)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    places = sorted({row["x"] for row in rows})
    axes.set_xticks(places, [_short(x) for x in places])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")


def name_states(axes: "Axes", rows: Sequence[Row]) -> None:
    """Names on the lines themselves: mechanisms that hold the same share one."""
    shared: dict[tuple[int, ...], list[str]] = {}
    for mixer in LOOKS:
        sizes = [row["state_bytes"] for row in rows if row["mixer"] == mixer]
        if sizes:
            shared.setdefault(tuple(sizes[:2]), []).append(mixer)
    left = min((row["x"] for row in rows), default=0)
    for held, names in shared.items():
        below = len(set(held)) > 1  # beside a line that rises, above one that does not
        place = (12, -12) if below else (8, 5)
        where = (left, held[0] / 2**10)
        axes.annotate(", ".join(names), where, xytext=place, textcoords="offset points", fontsize=9)


def _short(tokens: int) -> str:
    """16384 as 16k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
