"""Figure 1: EA's computation on real tensors, and how spiky its weights are."""

from collections.abc import Iterator, Sequence

from paper.report import fig1, plots
from paper.report.html.section import Section
from paper.report.runs import Row


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Spreads at which others are spikier than EA, and weight that a series misplaces."""
    found = {(row["sigma"], row["who"]): row["entropy"] for row in rows if row["what"] == "entropy"}
    for (sigma, who), entropy in found.items():
        ea = found[sigma, "EA"]
        if who in ("SA", "LA") and entropy < ea:
            entropies = f"entropy {entropy:.2f}, against {ea:.2f}"
            yield f"At σ = {sigma:g} {who} is spikier than EA: {entropies}."
    for row in rows:
        if row["what"] == "weights" and row["misplaced_all"] > 0.1:
            share = plots.percent(row["misplaced_all"])
            yield f"{row['who']} puts {share} of the weight on other keys than EA does."


SECTION = Section(
    key="fig1",
    title="Figure 1: from q and k to y",
    intro="The paper draws the computation; here one channel of a real sequence goes through it,"
    " exactly (EA) and as a series, and the entropy of the weights says how spiky they are.",
    command="eattn reproduce fig1",
    paper=(
        "Scores are −(q − k)² for every channel, softmax over keys makes them weights, and y is"
        " the weighted mean of v.",
        "The exponential brings “spikiness”, which contributes much to attention’s effectiveness;"
        " linear attention lacks it.",
    ),
    draw=fig1.draw,
    losses=losses,
)
