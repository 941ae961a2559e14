"""What was promised beside what was measured, as a table of the README."""

from collections.abc import Sequence

from paper.report.runs import Row
from paper.report.tables import table


def promise_table(rows: Sequence[Row]) -> str:
    """The promises, kept or not."""
    judged = [row for row in rows if row["what"] == "ratio"]
    goals = any(row["goal"] is not None for row in judged)
    body = []
    for row in judged:
        sign = "≤" if row["at_most"] else "≥"
        miss = " (missed)" if row["verdict"] == "miss" else ""
        goal = "" if row["goal"] is None else f"{sign} {row['goal']:g}"
        cells = [row["name"], f"{row['value']:.3g}{row['unit']}{miss}", f"{sign} {row['must']:g}"]
        body.append(cells + [goal] * goals)
    return table(["ratio", "measured", "must"] + ["goal"] * goals, body)


def source(row: Row) -> str:
    """Where it was measured, and when."""
    return f"{row['hardware']}, torch {row['torch']}, {row['date'][:10]}."
