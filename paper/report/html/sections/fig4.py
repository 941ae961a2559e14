"""Figure 4: what training costs."""

from collections.abc import Iterator, Sequence

from paper.report import fig4
from paper.report.html.section import Section, better
from paper.report.runs import Row

OURS = "ea-6"
COSTS = {  # what -> what is counted, whether more of it is better, and how that is said
    "memory": ("peak_bytes", False, "needs less memory than"),
    "longest": ("L", True, "fits longer sequences into the budget than"),
    "time": ("tokens_per_second", True, "trains faster than"),
}


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Points at which SA needs less, fits more or is faster than EA-6."""
    for what, (field, more, words) in COSTS.items():
        axis = "batch" if what == "longest" else "L"
        of = [row for row in rows if row["what"] == what and field in row]
        ours = {row[axis]: row[field] for row in of if row["mixer"] == OURS}
        for row in of:
            own = ours.get(row[axis])
            if own is None or row["mixer"].startswith("ea-"):
                continue
            pair = (own, row[field]) if more else (row[field], own)
            if better(*pair):
                by = max(pair) / min(pair)
                yield f"`{row['mixer']}` {words} EA-6 at {axis} = {row[axis]:,}: by {by:.2f} ×."


SECTION = Section(
    key="fig4",
    title="Figure 4: the cost of training",
    intro="BERT-base, forward and backward, not causal: peak memory against L, the longest L that"
    " fits a budget at each batch size, and tokens per second there. `sa-math` is the softmax"
    " attention of the paper, which holds its weights, `sa` the one users run today, which does"
    " not.",
    command="eattn reproduce fig4",
    paper=(
        "The memory of the EA-series grows linearly with L, that of SA quadratically.",
        "EA fits more tokens into a step; its BS-L curve follows BS × L = constant, SA’s falls"
        " below it.",
        "EA’s throughput is much higher, and does not fall with L as SA’s does.",
    ),
    draw=fig4.draw,
    markdown=fig4.markdown,
    losses=losses,
    highlights={
        "L = 8192: tokens/s, EA-6 / SA": "the tokens per second of softmax attention (SDPA),"
        " training BERT-base at 8,192 tokens",
    },
)
