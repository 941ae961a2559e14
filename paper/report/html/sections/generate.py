"""Beyond the paper: one long text by `generate`."""

from collections.abc import Iterator, Sequence

from paper.report import generate
from paper.report.html.section import Section, better
from paper.report.runs import Row

OURS = "ea-6"


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Where in the text another mixer takes less time for a token, or keeps less, than EA-6."""
    found = generate.by_mixer(rows)
    own = {row["last"]: row for row in found.get(OURS, [])}
    for mixer, of in found.items():
        for field, words in (("p50", "takes less time per token"), ("bytes_last", "keeps less")):
            less = [
                row["last"]
                for row in of
                if row["last"] in own and better(row[field], own[row["last"]][field])
            ]
            if less:
                yield f"`{mixer}` {words} than EA-6 up to token {max(less):,}."


SECTION = Section(
    key="generate",
    title="Beyond the paper: one long text",
    intro="BERT-base as a language model of transformers, writing one text by `generate` with its"
    " own cache; times of the first tokens and of the last are from the same run.",
    command="eattn bench generate --json results/generate.jsonl",
    draw=generate.draw,
    markdown=generate.markdown,
    losses=losses,
)
