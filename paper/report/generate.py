"""One long text: what its first tokens cost and its last, in a table and a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paper.report import plots, table1, tables
from paper.report.promises import promise_table, source
from paper.report.runs import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_mixer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The windows of each mixer's text, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["what"] == "tokens":
            found.setdefault(row["mixer"], []).append(row)
    return found


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and lines, one for each mixer."""
    found = by_mixer(rows)
    first, *_, last = next(iter(found.values()))
    head = [
        "mixer",
        *(f"tokens {row['first']:,} to {row['last']:,}" for row in (first, last)),
        "×",
        *(f"kept after token {count:,}" for count in (first["first"], last["last"])),
    ]
    lines = []
    for mixer, (start, *_, end) in found.items():
        times = [f"{1000 * row['p50']:.1f} ms" for row in (start, end)]
        held = [f"{count / 2**20:,.2f} MiB" for count in (start["bytes_first"], end["bytes_last"])]
        lines.append([mixer, *times, f"{end['p50'] / start['p50']:.2f}", *held])
    return head, lines


def markdown(rows: Sequence[Row]) -> str:
    """The table, how it came about, and what must hold."""
    return "\n".join(
        [tables.table(*table(rows)), "", *_about(rows), promise_table(rows), "", source(rows[-1])]
    )


def _about(rows: Sequence[Row]) -> list[str]:
    plan = rows[-1].get("config")
    if not plan:
        return []
    row = next(row for row in rows if row["what"] == "tokens")
    return [
        f"{plan['depth']} blocks of {plan['dim']} channels, {row['parameters'] / 1e6:.0f} M"
        f" parameters, a short convolution, {row['threads']} threads; the median time of a token of"
        " one greedy text, and the bytes of the cache.",
        "",
    ]


def draw(rows: Sequence[Row]) -> "Figure":
    """Two panels along the text: time per token, and bytes kept."""
    figure = plots.new_figure(4.2)
    left, right = figure.subplots(1, 2)
    for mixer, of in by_mixer(rows).items():
        colour, line, marker = table1.LOOKS.get(mixer, (plots.GREY, "-", "o"))
        look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 3.5}
        last = [row["last"] for row in of]
        left.plot(last, [1000 * row["p50"] for row in of], label=mixer, **look)
        right.plot(last, [row["bytes_last"] / 2**20 for row in of], label=mixer, **look)
    left.set(xlabel="token", ylabel="milliseconds", ylim=(0, None))
    left.set_title("(a) Time per token")
    right.set(xlabel="token", ylabel="MiB", ylim=(0, None))
    right.set_title("(b) What is kept of the text")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
