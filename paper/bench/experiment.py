"""A long measurement from its first row to its closing one; one that was cut off goes on."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from paper.bench import show
from paper.bench.measure import Row
from paper.bench.progress import Tick, progress
from paper.bench.runlog import Journal
from paper.bench.target import Promise, Rows, judge

Summary = Callable[[Rows], Iterable[Row]]  # what follows from the rows before


def carry_out(
    path: Path | None,
    bench: str,
    plan: Mapping[str, Any],
    console: Console,
    *,
    costs: Iterable[tuple[Row, float]],
    measure: Callable[[Journal, Tick], None],
    promises: Iterable[Promise],
    summaries: Mapping[str, Summary] | None = None,
    first: str = "",
) -> list[Row]:
    """All rows: what `measure` adds, a group for each of the `summaries`, and the verdicts.

    `costs` are keys and about how many seconds each takes; `first` is what the bar says at once.
    """
    journal = Journal(path, bench, plan)
    show.resumed(journal.kept, journal.origin, console)
    with progress(console, journal.left(costs), first) as tick:
        measure(journal, tick)
    for what, summary in (summaries or {}).items():
        journal.group({"what": what}, lambda summary=summary: summary(journal.rows))  # type: ignore[misc]
    journal.group({"what": "ratio"}, lambda: judge(journal.rows, promises))
    journal.finish()
    return journal.rows


def once(
    journal: Journal,
    tick: Tick,
    key: Row,
    label: str,
    cost: float,
    work: Callable[[], Iterable[Row]],
) -> None:
    """Measure the rows of `key` together, and move the bar on, unless they are there already."""
    if not journal.has(key):
        journal.group(key, work)
        tick(label, cost)
