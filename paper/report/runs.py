"""Which rows of a file belong together: one file keeps many runs, each with a date of its own."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def last_run(rows: Sequence[Row]) -> list[Row]:
    """The rows measured last; of runs that can be continued, the last one that came to its end.

    Empty when there is none. A run that can be continued has a `plan`, and a closing row.
    """
    ends = [row for row in rows if "plan" not in row or row["what"] == "finished"]
    return [row for row in rows if row["date"] == ends[-1]["date"]] if ends else []
