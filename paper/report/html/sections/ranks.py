"""Beyond the paper: one long sequence by two processes."""

from paper.report import scaling
from paper.report.html.section import Section

SECTION = Section(
    key="ranks",
    title="Beyond the paper: one sequence, two processes",
    intro="A training step of a block on one long sequence, of which each process holds a half and"
    " tells the other its state; beside it what a model of costs says, fitted to one process and to"
    " messages.",
    command="eattn bench ranks --json results/ranks.jsonl",
    draw=scaling.draw,
    markdown=scaling.markdown,
)
