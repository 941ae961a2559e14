"""Beyond the paper: associative recall."""

from collections.abc import Iterator, Sequence

from paper.report import recall
from paper.report.html.section import Section
from paper.report.runs import Row

OURS = "ea-6"
LEAST = 0.01  # below, a difference is chance


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Numbers of pairs at which another mixer answers more queries right than EA-6."""
    found = {mixer: recall.accuracies(of) for mixer, of in recall.chosen(rows).items()}
    own = found.pop(OURS, {})
    for mixer, of in found.items():
        for pairs, accuracy in of.items():
            if accuracy > own.get(pairs, 1.0) + LEAST:
                yield f"{pairs} pairs: `{mixer}` {accuracy:.3f}, EA-6 {own[pairs]:.3f}."


SECTION = Section(
    key="recall",
    title="Beyond the paper: associative recall",
    intro="Pairs of key and value, then queries (MQAR of Zoology): two-layer models, only the mixer"
    " differing, with more and more pairs to remember. A state of constant size must give up"
    " somewhere.",
    command="eattn reproduce recall",
    draw=recall.draw,
    markdown=recall.markdown,
    losses=losses,
)
