"""Fill the marked places of README.md from results/: no number there is typed by hand.

A place is `<!-- bench:op -->` ... `<!-- /bench:op -->`; its table comes from results/op.jsonl.
Run `make readme` after new rows were measured.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def last_run(path: Path) -> list[Row]:
    """The rows that were measured last: those that share the last row's date."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if not rows:
        raise ValueError(f"{path} has no rows")
    return [row for row in rows if row["date"] == rows[-1]["date"]]


def op_table(rows: Sequence[Row]) -> str:
    """The promises of the operator, kept or not, and where they were measured."""
    lines = ["| ratio | measured | must | goal |", "|---|---|---|---|"]
    for row in rows:
        if row["what"] == "ratio":
            sign = "≤" if row["at_most"] else "≥"
            value = f"{row['value']:.3g}{row['unit']}"
            goal = "" if row["goal"] is None else f"{sign} {row['goal']:g}"
            miss = " (missed)" if row["verdict"] == "miss" else ""
            lines.append(f"| {row['name']} | {value}{miss} | {sign} {row['must']:g} | {goal} |")
    last = rows[-1]
    lines += ["", f"{last['hardware']}, torch {last['torch']}, {last['date'][:10]}."]
    return "\n".join(lines)


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "bench:op": ("op.jsonl", op_table),
}


def fill(text: str, results: Path) -> str:
    """`text` with every marked place filled; places without results keep what they have."""
    for place, (name, table) in TABLES.items():
        path = results / name
        if not path.exists():
            continue
        start, end = f"<!-- {place} -->", f"<!-- /{place} -->"
        before, opened, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"no place {start} ... {end} to fill")
        text = f"{before}{start}\n{table(last_run(path))}\n{end}{after}"
    return text


def main() -> None:
    readme = Path("README.md")
    readme.write_text(fill(readme.read_text(encoding="utf-8"), Path("results")), encoding="utf-8")


if __name__ == "__main__":
    main()
