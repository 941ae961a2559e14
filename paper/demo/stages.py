"""The parts of the demo that take time. Each keeps its rows in a file, and is not done twice."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from paper.bench import block, contract, experiment, op, show
from paper.bench.measure import Row
from paper.bench.progress import Tick
from paper.bench.runlog import FINISHED, Journal
from paper.bench.step import SUM
from paper.bench.target import Promise
from paper.report.html.section import read
from paper.report.runs import last_run
from paper.reproduce import fig5, fig5_promises, table3
from paper.reproduce.pool import run_all


@dataclass(frozen=True)
class Plan:
    """What the demo measures: pieces of the real experiments, five minutes on two cores in all."""

    training: table3.Plan = field(
        default_factory=lambda: table3.Plan(sets=("JapaneseVowels",), seeds=2, epochs=0.5)
    )
    operator: op.Plan = field(
        default_factory=lambda: replace(op.Plan.quick(), lengths=(1024, 4096, 16384, 65536))
    )
    step: block.Plan = field(
        default_factory=lambda: block.Plan(
            mixers=(SUM, "ea-2", "ea-6", "sa"), causal=(), lengths=(512, 2048), budget=8.0
        )
    )
    decoding: fig5.Plan = field(
        default_factory=lambda: fig5.Plan(
            mixers=("ea-6", "sa"), batches=(1,), positions=(256, 2048, 16384), prompts=(1024,)
        )
    )


@dataclass(frozen=True)
class Stage:
    """One of them: `measure` fills the journal, `show` prints its rows."""

    name: str  # of its file, and of its section in the report
    title: str
    plan: Any  # a dataclass; when it changes, the stage is measured anew
    costs: Sequence[tuple[Row, float]]  # keys, and about how many seconds each takes
    measure: Callable[[Journal, Tick], None]
    promises: Iterable[Promise]
    show: Callable[[Sequence[Row], Console], None]


def stages(plan: Plan) -> Iterator[Stage]:
    """In their order."""
    yield Stage(
        "table3",
        "training EA-2, EA-6 and softmax attention on JapaneseVowels",
        plan.training,
        list(plan.training.work()),
        partial(train, plan.training),
        table3.PROMISES,
        table3.print_rows,
    )
    yield Stage(
        "op",
        "the operator beside softmax attention and the paper's code",
        plan.operator,
        [({"stage": "op"}, plan.operator.seconds)],
        partial(time_op, plan.operator),
        contract.PROMISES if plan.operator.shape == contract.SHAPE else (),
        show_op,
    )
    yield Stage(
        "block",
        "a training step of one BERT-base block",
        plan.step,
        list(plan.step.costs()),
        partial(block.measure, plan.step),
        block.PROMISES,
        partial(block.print_rows, plan.step),
    )
    yield Stage(
        "fig5",
        "generating token by token with BERT-base",
        plan.decoding,
        list(plan.decoding.costs()),
        partial(fig5.measure, plan.decoding),
        fig5_promises.PROMISES,
        partial(fig5.print_rows, plan.decoding),
    )


def train(plan: table3.Plan, journal: Journal, tick: Tick) -> None:
    """Every run of the plan, as many side by side as there are cores."""
    measure = partial(table3.measure_run, epochs=plan.epochs, data_dir=None)
    run_all(journal, list(plan.work()), measure, tick)


def time_op(plan: op.Plan, journal: Journal, tick: Tick) -> None:
    """All rows at once: what was interleaved belongs together."""
    journal.group({"stage": "op"}, lambda: op.measure(plan, tick))


def show_op(rows: Sequence[Row], console: Console) -> None:
    """The promises, if they are made for this shape, and who takes how long."""
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    main = [row for row in rows if row["what"].startswith("forward") and "grows" not in row]
    shape = "×".join(map(str, main[0]["shape"]))
    console.print(show.times(main, f"times, {shape}, {main[0]['threads']} threads"))


def carry_out(stage: Stage, console: Console, out: Path) -> list[Row]:
    """The rows of a stage: those of a finished run, or measured now, going on after a cut."""
    path = out / f"{stage.name}.jsonl"
    rows = finished(stage, path)
    if rows:
        date = rows[-1]["date"][:16].replace("T", " ")
        console.print(f"measured {date} UTC and kept; --fresh measures anew", highlight=False)
        return rows

    def measure(journal: Journal, tick: Tick) -> None:
        tick("starting", 0.0)  # the bar shows itself when it moves
        stage.measure(journal, tick)

    return experiment.carry_out(
        path,
        stage.name,
        asdict(stage.plan),
        console,
        costs=stage.costs,
        measure=measure,
        promises=stage.promises,
        first="starting",
    )


def finished(stage: Stage, path: Path) -> list[Row]:
    """The rows of the last run, if it is this stage and was closed: same plan, source, machine."""
    rows = read(path) if path.is_file() else []
    if not rows or rows[-1]["what"] != FINISHED:
        return []
    expected = Journal(None, stage.name, asdict(stage.plan)).origin
    same = all(rows[-1].get(name, ...) == expected[name] for name in expected if name != "date")
    return last_run(rows) if same else []
