"""Fill the marked places of README.md and docs/ from results/: no number is typed by hand.

A place is `<!-- bench:op -->` ... `<!-- /bench:op -->`; its table comes from results/op.jsonl.
Run `make readme` after new rows were measured.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from paper.report import (
    faithful,
    fig4,
    fig5,
    generate,
    lm,
    recall,
    runs,
    scaling,
    table1,
    table3,
    table4,
)
from paper.report.block import block_table
from paper.report.promises import promise_table, source
from paper.report.runs import Row


def last_run(path: Path) -> list[Row]:
    """The rows of the last run in a file, empty while its first one is not finished."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if not rows:
        raise ValueError(f"{path} has no rows")
    return runs.last_run(rows)


def op_table(rows: Sequence[Row]) -> str:
    """The promises of the operator, kept or not, and where they were measured."""
    return "\n".join([promise_table(rows), "", source(rows[-1])])


Tables = dict[str, tuple[str, Callable[[Sequence[Row]], str]]]
TABLES: Tables = {
    "bench:op": ("op.jsonl", op_table),
    "bench:block": ("block.jsonl", block_table),
    "bench:generate": ("generate.jsonl", generate.markdown),
    "reproduce:table1": ("table1.jsonl", table1.markdown),
    "reproduce:table3": ("table3.jsonl", table3.markdown),
    "reproduce:table4": ("table4.jsonl", table4.markdown),
    "reproduce:fig4": ("fig4.jsonl", fig4.markdown),
    "reproduce:fig5": ("fig5.jsonl", fig5.markdown),
    "reproduce:faithful": ("faithful.jsonl", faithful.markdown),
    "reproduce:lm": ("lm.jsonl", lm.markdown),
    "reproduce:recall": ("recall.jsonl", recall.markdown),
}
SCALING: Tables = {"bench:ranks": ("ranks.jsonl", scaling.markdown)}


def fill(text: str, results: Path, tables: Tables = TABLES) -> str:
    """`text` with every marked place filled; places without results keep what they have."""
    for place, (name, table) in tables.items():
        path = results / name
        rows = last_run(path) if path.exists() else []
        if rows:
            text = put(text, place, table(rows))
    return text


def put(text: str, place: str, filling: str) -> str:
    """`text` with one marked place filled."""
    start, end = f"<!-- {place} -->", f"<!-- /{place} -->"
    before, opened, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"no place {start} ... {end} to fill")
    return f"{before}{start}\n{filling}\n{end}{after}"


def fill_scaling(text: str, results: Path) -> str:
    """docs/scaling.md: measured rows, and what the same model says on paper."""
    return put(fill(text, results, SCALING), "paper:scaling", scaling.paper())


DOCUMENTS: dict[str, Callable[[str, Path], str]] = {
    "README.md": fill,
    "docs/scaling.md": fill_scaling,
}


def main() -> None:
    for name, filled in DOCUMENTS.items():
        document = Path(name)
        text = document.read_text(encoding="utf-8")
        document.write_text(filled(text, Path("results")), encoding="utf-8")


if __name__ == "__main__":
    main()
