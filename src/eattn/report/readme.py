"""Fill the marked places of README.md from results/: no number there is typed by hand.

A place is `<!-- bench:op -->` ... `<!-- /bench:op -->`; its table comes from results/op.jsonl.
Run `make readme` after new rows were measured.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from eattn.report import faithful, fig4, fig5, lm, recall, runs, table1, table3, table4
from eattn.report.block import block_table
from eattn.report.promises import promise_table, source
from eattn.report.runs import Row


def last_run(path: Path) -> list[Row]:
    """The rows of the last run in a file, empty while its first one is not finished."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if not rows:
        raise ValueError(f"{path} has no rows")
    return runs.last_run(rows)


def op_table(rows: Sequence[Row]) -> str:
    """The promises of the operator, kept or not, and where they were measured."""
    return "\n".join([promise_table(rows), "", source(rows[-1])])


TABLES: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "bench:op": ("op.jsonl", op_table),
    "bench:block": ("block.jsonl", block_table),
    "reproduce:table1": ("table1.jsonl", table1.markdown),
    "reproduce:table3": ("table3.jsonl", table3.markdown),
    "reproduce:table4": ("table4.jsonl", table4.markdown),
    "reproduce:fig4": ("fig4.jsonl", fig4.markdown),
    "reproduce:fig5": ("fig5.jsonl", fig5.markdown),
    "reproduce:faithful": ("faithful.jsonl", faithful.markdown),
    "reproduce:lm": ("lm.jsonl", lm.markdown),
    "reproduce:recall": ("recall.jsonl", recall.markdown),
}


def fill(text: str, results: Path) -> str:
    """`text` with every marked place filled; places without results keep what they have."""
    for place, (name, table) in TABLES.items():
        path = results / name
        rows = last_run(path) if path.exists() else []
        if not rows:
            continue
        start, end = f"<!-- {place} -->", f"<!-- /{place} -->"
        before, opened, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise ValueError(f"no place {start} ... {end} to fill")
        text = f"{before}{start}\n{table(rows)}\n{end}{after}"
    return text


def main() -> None:
    readme = Path("README.md")
    readme.write_text(fill(readme.read_text(encoding="utf-8"), Path("results")), encoding="utf-8")


if __name__ == "__main__":
    main()
