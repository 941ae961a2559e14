"""What Figures 4 and 5 share: what a row says of the model, and the tables on the console."""

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import torch
from rich.console import Console

from paper.bench import show
from paper.bench.measure import Row
from paper.report.costs import is_bert


class Sized(Protocol):
    """A plan that says which model, and where."""

    @property
    def dim(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def device(self) -> str: ...


def conditions(plan: Sized, model_bytes: int) -> Row:
    """What every measured row says about the model."""
    return {
        "model": "BERT-base" if is_bert(plan.dim, plan.depth) else "smaller, for a test",
        "dim": plan.dim,
        "depth": plan.depth,
        "device": torch.cuda.get_device_name() if plan.device == "cuda" else plan.device,
        "dtype": "float32",
        "model_bytes": model_bytes,
        "threads": torch.get_num_threads(),
    }


def print_rows(plan: Sized, rows: Sequence[Row], console: Console, report: ModuleType) -> None:
    """The promises, the tables and notes of `report`, and where it was measured."""
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows, at_contract=is_bert(plan.dim, plan.depth)))
    for title, head, lines in report.tables(rows):
        table = show.table(f"{title}, by {head[0]}", *head[1:])
        for cells in lines:
            table.add_row(*cells)
        console.print(table)
    for note in report.notes(rows):
        console.print(note, highlight=False, markup=False)
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
