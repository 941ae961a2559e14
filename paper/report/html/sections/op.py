"""The operator's speed."""

from paper.report import op, readme
from paper.report.html.section import Section

SECTION = Section(
    key="op",
    title="The operator’s speed",
    intro="EA-6 alone, float32, causal: beside the paper’s PyTorch code, beside softmax attention"
    " as users run it today, and beside the streaming limit, which only reads and writes.",
    command="eattn bench op --json results/op.jsonl",
    draw=op.draw,
    markdown=readme.op_table,
    highlights={
        "forward+backward: SDPA / ours": "faster than softmax attention (SDPA), forward and"
        " backward of the operator",
        "forward+backward: paper's code / ours": "faster than the paper’s code, forward and"
        " backward of the operator",
        "forward / streaming limit": "the time of merely reading q, k, v and writing y",
    },
)
