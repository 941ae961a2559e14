"""The rows of `eattn bench block` as tables for the README."""

from collections.abc import Iterator, Sequence

from paper.report.promises import promise_table, source
from paper.report.runs import Row
from paper.report.tables import table

BASE = "q+k+v"


def block_table(rows: Sequence[Row]) -> str:
    """The promises, then every mechanism at every length, and where it was measured."""
    steps = [row for row in rows if row["what"] == "step"]
    lengths = sorted({row["L"] for row in steps})
    head = ["mechanism", *(f"{name}, L = {L}" for L in lengths for name in ("step", "×", "peak"))]
    body = []
    for mixer, causal in dict.fromkeys((row["mixer"], row["causal"]) for row in steps):
        of = [row for row in steps if (row["mixer"], row["causal"]) == (mixer, causal)]
        cells = [cell for L in lengths for cell in _cells(of, steps, L)]
        name = f"`{mixer}`" + ", causal" * causal
        sizes = " / ".join(dict.fromkeys(f"{row['parameters'] / 1e6:.1f} M" for row in of))
        body.append([name, *cells, sizes])
    written = table([*head, "parameters"], body)
    return "\n".join([promise_table(rows), "", written, "", *_notes(steps), source(rows[-1])])


def _cells(of: Sequence[Row], steps: Sequence[Row], length: int) -> list[str]:
    """Seconds, multiple of q+k+v and peak memory of one mechanism at one length."""
    row: Row = next((row for row in of if row["L"] == length), {})
    if "p50" not in row:
        return ["—", "", ""]
    base = next((r for r in steps if r["L"] == length and r["mixer"] == BASE and "p50" in r), None)
    ratio = "" if base is None else f"{row['p50'] / base['p50']:.2f}"
    once = "*" * (row["runs"] == 1)
    return [f"{row['p50']:.2f} s{once}", ratio, f"{row['peak_bytes'] / 2**30:.2f} GiB"]


def _notes(steps: Sequence[Row]) -> Iterator[str]:
    if any(row.get("runs") == 1 for row in steps):
        yield "\\* One run, in a process of its own.\n"
    for row in steps:
        if "reason" in row:
            yield f"`{row['mixer']}` at L = {row['L']}: {row['reason']}.\n"
