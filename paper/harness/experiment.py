"""Experiments: their shape, how they are found, and how one runs.

Every module or package in the folders below is an experiment and has the shape of `Experiment`. The
first paragraph of its docstring is its summary; the paragraphs after it introduce it to readers.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paper.harness.chart import Chart
from paper.harness.runlog import Report, Row, RunLog, read_rows
from paper.harness.table import Table, verdict_table
from paper.harness.target import Target, Verdict, judge

PAPER = Path(__file__).parents[1]
RESULTS = PAPER / "results"
FOLDERS = ("tables", "figures", "beyond", "benchmarks")


class Experiment(Protocol):
    """Module-level names of an experiment; PAPER, TARGETS, `draw` and `losses` are optional."""

    TITLE: str
    PAPER: Mapping[str, Any]  # "claims": sentences of the paper; other keys: its numbers
    TARGETS: Sequence[Target]

    def plan(self, quick: bool) -> Any:
        """Return what to run, a frozen dataclass."""

    def rows(self, plan: Any, log: RunLog) -> Iterator[Row]:
        """Yield the rows of the plan; measure those that the log does not have."""

    def tables(self, rows: Sequence[Row]) -> Iterator[Table]:
        """Yield tables of the rows."""

    def draw(self, rows: Sequence[Row]) -> Chart | None:
        """Return a chart of the rows, or None when there is nothing to draw."""

    def losses(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield sentences that state where something else is better."""


@dataclass(frozen=True)
class Result:
    """An experiment with the rows that exist of it."""

    name: str
    module: Experiment
    rows: list[Row]
    quick: bool = False

    @property
    def about(self) -> str:
        """The docstring without its first paragraph."""
        text = inspect.getdoc(self.module) or ""
        return " ".join(text.partition("\n\n")[2].split())

    @property
    def claims(self) -> Sequence[str]:
        return getattr(self.module, "PAPER", {}).get("claims", ())

    @property
    def verdicts(self) -> list[Verdict]:
        return judge(getattr(self.module, "TARGETS", ()), self.rows, quick=self.quick)

    @property
    def losses(self) -> list[str]:
        return list(self.module.losses(self.rows)) if self._has("losses") else []

    @property
    def tables(self) -> list[Table]:
        return list(self.module.tables(self.rows)) if self.rows else []

    @cached_property
    def chart(self) -> Chart | None:
        return self.module.draw(self.rows) if self._has("draw") else None

    def _has(self, part: str) -> bool:
        return bool(self.rows) and hasattr(self.module, part)

    @property
    def source(self) -> str:
        """Machine, version of torch, and date of the newest row."""
        row = max(self.rows, key=lambda row: str(row["date"]))
        return f"{row['hardware']}, torch {row['torch']}, {row['date'][:10]}."


def names() -> list[str]:
    """Return the names of all experiments, in the order of FOLDERS."""
    return [name for folder in FOLDERS for name in _modules(folder)]


def load(name: str) -> Experiment:
    """Import an experiment by its name."""
    for folder in FOLDERS:
        if name in _modules(folder):
            return cast(Experiment, importlib.import_module(f"paper.{folder}.{name}"))
    raise ValueError(f"no experiment is called {name!r}; there are {', '.join(names())}")


def result(name: str, results: Path = RESULTS) -> Result:
    """Read the rows of a full run; else those of a quick one; else none."""
    module = load(name)
    for quick in (False, True):
        rows = read_rows(path_of(name, results, quick=quick))
        if rows:
            return Result(name, module, rows, quick)
    return Result(name, module, [])


def path_of(name: str, out: Path, *, quick: bool) -> Path:
    return out / f"{name}{'-quick' * quick}.jsonl"


def run(
    name: str,
    console: Console,
    *,
    quick: bool = False,
    out: Path = RESULTS,
    fresh: bool = False,
    changes: Mapping[str, str] | None = None,
) -> Result:
    """Measure the rows of a plan that the run log in `out` does not have, or all if `fresh`.

    A quick run has its own plan and run log, NAME-quick.jsonl. `changes` are fields of the
    plan and their values as text, with commas between those of a tuple.
    """
    module = load(name)
    plan = change(module.plan(quick), changes or {})
    with _progress(console) as report:
        log = RunLog(path_of(name, out, quick=quick), name, fresh=fresh, report=report)
        for _ in module.rows(plan, log):
            pass
    return Result(name, module, log.rows, quick)


def show(found: Result, console: Console) -> None:
    """Print the tables, the verdicts and the source of a result."""
    for table in found.tables:
        console.print(table.rich())
    if found.verdicts:
        console.print(verdict_table(found.verdicts).rich())
    console.print(found.source, highlight=False, markup=False)


def change(plan: Any, changes: Mapping[str, str]) -> Any:
    """Return a plan with some fields replaced, each read as the type of its present value."""
    known = {field.name: getattr(plan, field.name) for field in fields(plan)}
    for name in changes:
        if name not in known:
            raise ValueError(f"the plan has no field {name!r}; it has {', '.join(known)}")
    return replace(plan, **{name: _read(text, known[name]) for name, text in changes.items()})


def _read(text: str, example: Any) -> Any:
    """Read a value of the type of an example; None reads a whole number where the text is one."""
    if isinstance(example, tuple):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return tuple(_read(part, example[0] if example else "") for part in parts)
    if isinstance(example, bool):
        return text.lower() in ("1", "true", "yes")
    if example is None:
        return int(text) if text.isdigit() else text
    return type(example)(text)


def _modules(folder: str) -> Iterable[str]:
    found = pkgutil.iter_modules([str(PAPER / folder)])
    return sorted(module.name for module in found)


@contextmanager
def _progress(console: Console) -> Iterator[Report]:
    """Show a bar of measured keys; it starts no thread, which would disturb timed work."""
    words = "{task.description:<32.32}"
    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    options: Any = {"transient": True, "auto_refresh": False, "speed_estimate_period": 3600.0}
    with Progress(*columns, console=console, **options) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int, label: str) -> None:
            total = max(done, total)
            bar.update(task, completed=done, total=total or None, description=label, refresh=True)

        yield report
