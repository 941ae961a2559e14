"""Figure 5: what inference costs."""

from collections.abc import Iterator, Sequence

from paper.report import fig5
from paper.report.html.section import Section, better
from paper.report.runs import Row

OURS = "ea-6"
COSTS = {
    "latency": ("p50", "position", "takes less time per token than"),
    "memory": ("peak_bytes", "position", "needs less memory than"),
    "prefill": ("seconds", "L", "reads a prompt faster than"),
}


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Points at which SA costs less than EA-6."""
    for what, (field, axis, words) in COSTS.items():
        of = [row for row in rows if row["what"] == what and field in row]
        ours = {(row["batch"], row[axis]): row[field] for row in of if row["mixer"] == OURS}
        for row in of:
            own = ours.get((row["batch"], row[axis]))
            if own is None or row["mixer"].startswith("ea-") or not better(row[field], own):
                continue
            where = f"batch {row['batch']}, {axis} = {row[axis]:,}"
            yield f"`{row['mixer']}` {words} EA-6 at {where}: by {own / row[field]:.2f} ×."


SECTION = Section(
    key="fig5",
    title="Figure 5: the cost of inference",
    intro="BERT-base, causal, generating token by token: EA through its recurrent state, SA with a"
    " preallocated cache of keys and values; memory and time per token at each position.",
    command="eattn reproduce fig5",
    paper=(
        "EA’s memory is constant in L and hardly depends on the batch; SA’s grows with both.",
        "EA takes the same time for every token, SA longer and longer; the batch matters little to"
        " EA and much to SA.",
        "EA-2 and EA-6 cost nearly the same.",
    ),
    draw=fig5.draw,
    markdown=fig5.markdown,
    losses=losses,
    highlights={
        "batch 8, position 16384: SA / EA-6": "faster per token than softmax attention with its"
        " cache, BERT-base at position 16,384, batch 8",
    },
)
