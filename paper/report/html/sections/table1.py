"""Table 1: complexity, measured."""

from collections.abc import Iterator, Sequence

from paper.report import table1
from paper.report.html.section import Section, better
from paper.report.runs import Row

OURS = "ea-6"
COSTS = (("time", "p50", "trains faster"), ("decoding", "p50", "decodes faster"))


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Who is faster than EA-6 at the largest size that both were measured at."""
    for what, field, verb in COSTS:
        curves: dict[str, dict[int, float]] = {}
        for row in rows:
            if row["what"] == what and row.get("axis") in ("L", "position") and field in row:
                curves.setdefault(row["mixer"], {})[row["x"]] = row[field]
        ours = curves.get(OURS, {})
        for mixer, points in curves.items():
            x = max(points.keys() & ours.keys(), default=None)
            if x is not None and not mixer.startswith("ea-") and better(points[x], ours[x]):
                ratio, where = ours[x] / points[x], "L" if what == "time" else "position"
                yield f"`{mixer}` {verb} than EA-6 at {where} = {x:,}: by {ratio:.2f} ×."


SECTION = Section(
    key="table1",
    title="Table 1: how cost grows",
    intro="The paper gives complexities; here they are measured. Every mechanism trains alone, one"
    " head, causal, and decodes as a layer; exponents are fitted to the upper half of each curve.",
    command="eattn reproduce table1",
    paper=(
        "EA-series: O(tLD) to train, O(tLD) memory, O(tD) per generated token.",
        "SA: O(L²D), O(L²), O(LD). LA: O(LD²), O(LD), O(D²). AFT: O(L²D), O(LD), O(LD).",
    ),
    draw=table1.draw,
    markdown=table1.markdown,
    losses=losses,
)
