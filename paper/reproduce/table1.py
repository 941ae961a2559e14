"""`eattn reproduce table1`: the complexity of every mechanism, measured (Table 1).

Training is a causal forward and backward of the mechanism alone, on one sequence and with one head,
as the table counts it (see bench/mechanisms.py); decoding is a step of the whole layer. Peak memory
comes from a fresh process per point, times from interleaved runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from eattn.nn import MIXERS
from paper.bench import peak, show
from paper.bench.experiment import carry_out
from paper.bench.measure import Contender, Row, Times, interleave, time_once
from paper.bench.mechanisms import Decoding, decoder, training
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.report import plots
from paper.report import table1 as report
from paper.reproduce.exponents import PROMISES, exponents

# Where a mechanism stops: beyond it takes minutes, or gigabytes.
LONGEST = {"ea": 4096, "sa-math": 8192, "aft": 8192, "gru": 8192, "sa": 16384, "taylor": 16384}
LONGEST_DECODED = {"ea": 4096, "aft": 8192}
WIDEST = {"taylor": 128}
COST = 1.5  # what the times of a curve cost, in budgets: some curves take longer than theirs


class Point(NamedTuple):
    """One size of one mechanism; `x` is its place on the curve."""

    mixer: str
    L: int
    D: int
    x: int


class Curve(NamedTuple):
    """The points of one mechanism along one axis."""

    mixer: str
    axis: str
    points: tuple[Point, ...]

    def key(self, what: str) -> Row:
        return {"what": what, "mixer": self.mixer, "axis": self.axis}


@dataclass(frozen=True)
class Plan:
    """What to measure: along L with `dim`, along D with `length`, along t with the longest L."""

    mixers: tuple[str, ...] = tuple(name for name in MIXERS if name in report.PAPER)
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    dim: int = 64
    dims: tuple[int, ...] = (32, 64, 128, 256, 512)
    length: int = 2048
    orders: tuple[int, ...] = (2, 4, 6, 8, 12, 16)
    positions: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    steps: int = 16  # tokens decoded in one timed run, of which there are three at least
    budget: float = 20.0  # seconds for the times of one curve
    limit: float = 120.0  # seconds after which a point is given up

    @classmethod
    def quick(cls) -> "Plan":
        """Fewer points, smaller D, fewer runs."""
        return cls(
            lengths=(1024, 2048, 4096, 8192, 16384),
            dims=(32, 64, 128),
            orders=(2, 6, 16),
            positions=(256, 1024, 4096, 16384),
            budget=3.0,
            limit=60.0,
        )

    def curves(self) -> Iterator[Curve]:
        """Every curve of training that has points."""
        return (curve for curve in self._curves() if curve.points)

    def _curves(self) -> Iterator[Curve]:
        for name in self.mixers:
            longest, widest = LONGEST.get(name, inf), WIDEST.get(name, inf)
            lengths = (L for L in self.lengths if longest >= L)
            yield Curve(name, "L", tuple(Point(name, L, self.dim, L) for L in lengths))
            dims = (D for D in self.dims if widest >= D)
            yield Curve(name, "D", tuple(Point(name, self.length, D, D) for D in dims))
        if any(name.startswith("ea-") for name in self.mixers):
            L = max(self.lengths)
            orders = tuple(Point(f"ea-{t}", L, self.dim, t) for t in self.orders)
            yield Curve(report.SERIES, "t", orders)

    def costs(self) -> Iterator[tuple[Row, float]]:
        """Every row to be measured, and about how many seconds it takes."""
        for curve in self.curves():
            for point in curve.points:
                yield curve.key("memory") | {"x": point.x}, 2.5
            yield curve.key("time"), COST * self.budget
        for name in self.mixers:
            yield {"what": "decoding", "mixer": name}, self.budget / 2


def run(plan: Plan, console: Console, out: Path, *, name: str = "table1") -> list[Path]:
    """Rows to out/name.jsonl as they come, a picture of them, and the table on the console."""
    plots.need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.jsonl"
    rows = carry_out(
        path,
        "table1",
        asdict(plan),
        console,
        costs=plan.costs(),
        measure=partial(measure, plan),
        summaries={"exponent": exponents},
        promises=PROMISES,
    )
    print_rows(rows, console)
    return [path, *report.redraw(path)]


def measure(plan: Plan, journal: Journal, tick: Tick) -> None:
    """Training along every curve, then decoding."""
    for curve in plan.curves():
        trials = []
        for point in curve.points:
            key = curve.key("memory") | {"x": point.x}
            trials.append(journal.row(key, partial(memory, plan, point, tick)))
        journal.group(curve.key("time"), partial(times, plan, curve, trials, tick))
    for name in plan.mixers:
        key = {"what": "decoding", "mixer": name, "axis": "position"}
        journal.group(key, partial(decoding, plan, name, tick))


def memory(plan: Plan, point: Point, tick: Tick) -> Row:
    """Peak memory in a process of its own, or why there is none."""
    options = {"name": point.mixer, "length": point.L, "dim": point.D}
    row = peak.trial("paper.bench.mechanisms:training", limit=plan.limit, **options)
    tick(f"memory of {point.mixer}, L = {point.L}, D = {point.D}", 2.5)
    return {"L": point.L, "D": point.D} | row


def times(plan: Plan, curve: Curve, trials: Sequence[Row], tick: Tick) -> Iterator[Row]:
    """The points that lived, interleaved."""
    alive = [(p, t["seconds"]) for p, t in zip(curve.points, trials, strict=True) if "seconds" in t]
    contenders = {}
    for point, seconds in alive:
        work = training(point.mixer, length=point.L, dim=point.D)
        contenders[str(point.x)] = Contender(work, cost=seconds)
    found = timed(contenders, plan.budget)
    tick(f"time of {curve.mixer} along {curve.axis}", COST * plan.budget)
    for point, _ in alive:
        size = {"x": point.x, "L": point.L, "D": point.D, "threads": torch.get_num_threads()}
        yield size | vars(found[str(point.x)])


def timed(contenders: Mapping[str, Contender], budget: float) -> dict[str, Times]:
    """Interleaved for about so many seconds, but three rounds at least; short ones more often."""
    costs = {}
    for name, contender in contenders.items():  # a first run is no measure of those that follow
        costs[name] = contender.cost if contender.cost > 1 else time_once(contender)
    slowest = max(costs.values(), default=0.0)
    shares = {n: int(min(8, max(1, slowest / cost / len(costs)))) for n, cost in costs.items()}
    round_ = sum(shares[name] * cost * contenders[name].calls for name, cost in costs.items())
    ready = {n: replace(c, share=shares[n], warmup=0) for n, c in contenders.items()}
    return interleave(ready, rounds=int(min(200, max(3, budget / max(round_, 1e-9)))))


def decoding(plan: Plan, name: str, tick: Tick) -> Iterator[Row]:
    """Seconds per token and bytes of the state, at every position."""
    longest = LONGEST_DECODED.get(name, inf)
    positions = [position for position in plan.positions if longest >= position]
    layer = decoder(name, plan.dim, max_len=max(positions) + plan.steps + 1)
    works = {str(p): Decoding(layer, p, steps=plan.steps) for p in positions}
    contenders = {
        position: Contender(work.run, prepare=work.rewind, calls=plan.steps, cost=0.0)
        for position, work in works.items()
    }
    found = timed(contenders, plan.budget / 4)
    tick(f"decoding with {name}", plan.budget / 2)
    for position, work in works.items():
        size = {"x": int(position), "D": plan.dim, "state_bytes": work.state_bytes}
        yield size | vars(found[position])


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """The promises, the table, what contradicts the paper, and where it was measured."""
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows))
    lines = list(report.cells(rows))
    for title, columns in (("training", report.TRAINING), ("decoding", report.DECODING)):
        _, *names = (report.COLUMNS[n] for n in columns)
        out = show.table(f"{title}: the paper, and the exponents measured here", *names)
        for cells in lines:
            out.add_row(*(cells[n] for n in columns))
        console.print(out)
    for line in report.notes(rows):
        console.print(line, highlight=False, markup=False)
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
