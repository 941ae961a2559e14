"""`eattn bench ranks`: one long sequence trained by two processes of a thread each, and by one.

Times of both are interleaved in one run: while the first process works alone, the other waits. What
a message costs is measured too, for the model of costs in docs/scaling.md.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from eattn.ops.expansion import Taylor
from paper.bench import show
from paper.bench.experiment import carry_out, once
from paper.bench.measure import Row
from paper.bench.peak import DiedError
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.target import Promise, Rows, find

STARTED = 6.0  # seconds that processes take to start, roughly
TERMS = Taylor(6).terms


@dataclass(frozen=True)
class Plan:
    """What to measure. Smaller sizes are for tests: what is promised is promised for these."""

    length: int = 65536
    dim: int = 256
    ranks: int = 2
    budget: float = 240.0  # seconds for the interleaved steps
    sizes: tuple[int, ...] = tuple(4**n for n in range(3, 13))  # bytes of a message, 64 … 16 Mi
    rounds: int = 15  # of messages

    @classmethod
    def quick(cls) -> "Plan":
        """An eighth of the tokens, and fewer runs."""
        return cls(length=8192, budget=20.0, sizes=(64, 4096, 262144, 4194304), rounds=5)

    def costs(self) -> Iterator[tuple[Row, float]]:
        """Every row to be measured, and about how many seconds it takes."""
        yield {"what": "correctness"}, STARTED
        yield {"what": "step"}, STARTED + 1.3 * self.budget
        yield {"what": "gather"}, STARTED + 0.1 * self.rounds * len(self.sizes)


def run(plan: Plan, console: Console, json: Path | None = None) -> list[Row]:
    """Check, measure, print; rows go to the file as they come, and a cut-off run continues."""
    rows = carry_out(
        json,
        "ranks",
        asdict(plan),
        console,
        costs=plan.costs(),
        measure=partial(measure, plan),
        promises=(PROMISE,),
        summaries={"message": partial(fit, plan)},
        first="correctness",
    )
    print_rows(plan, rows, console)
    return rows


def measure(plan: Plan, journal: Journal, tick: Tick) -> None:
    """All rows of the plan, correctness first."""
    for (key, cost), work in zip(plan.costs(), (_check, _steps, _gathers), strict=True):
        once(journal, tick, key, key["what"], cost, partial(work, plan))


def _check(plan: Plan) -> list[Row]:
    return [start(plan.ranks, "check", dim=plan.dim)]


def _steps(plan: Plan) -> Iterator[Row]:
    found = start(plan.ranks, "steps", length=plan.length, dim=plan.dim, budget=plan.budget)
    about = {"shape": (1, plan.length, plan.dim), "mixer": "ea-6", "causal": True, "threads": 1}
    for name, ranks in (("alone", 1), ("together", plan.ranks)):
        yield about | {"ranks": ranks} | found[name]


def _gathers(plan: Plan) -> Iterator[Row]:
    found = start(plan.ranks, "gathers", sizes=plan.sizes, rounds=plan.rounds)
    for size, times in found.items():
        yield {"ranks": plan.ranks, "bytes": int(size)} | times


def fit(plan: Plan, rows: Rows) -> list[Row]:
    """What a message costs, latency + bytes / bandwidth, by least squares of relative errors.

    And what a layer sends in a step: its state, and as much in the backward.
    """
    measured = [(row["bytes"], row["p50"]) for row in rows if row["what"] == "gather"]
    sizes, seconds = (np.array(values, dtype=float) for values in zip(*measured, strict=True))
    matrix = np.stack([1 / seconds, sizes / seconds], 1)
    (latency, per_byte), *_ = np.linalg.lstsq(matrix, np.ones(len(sizes)), rcond=None)
    state = 4 * (plan.dim * (2 * TERMS + 1) + 2)
    return [
        {
            "latency": float(latency),
            "bandwidth": float(1 / per_byte),
            "worst": float(np.abs(matrix @ (latency, per_byte) - 1).max()),
            "ranks": plan.ranks,
            "state_bytes": state,
        }
    ]


def start(world: int, work: str, **options: Any) -> Any:
    """What `work` of paper.bench.rank gives in so many processes; DiedError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"world": world, "store": f"{folder}/store", "work": work, "options": options}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "paper.bench.rank", json.dumps({"rank": rank} | given)],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        said = [process.communicate() for process in processes]
    for rank, (process, (_, error)) in enumerate(zip(processes, said, strict=True)):
        if process.returncode:
            last = (error.strip().splitlines() or ["no output"])[-1]
            raise DiedError(f"process {rank} died (exit {process.returncode}): {last}")
    return json.loads(said[0][0].strip().splitlines()[-1])


def _speed(rows: Rows) -> float:
    alone = find(rows, what="step", ranks=1)
    together = next(row for row in rows if row["what"] == "step" and row["ranks"] > 1)
    return float(alone["p50"] / together["p50"])


PROMISE = Promise(
    "training step: one process / two, a thread each",
    _speed,
    1.7,
    at_most=False,
)


def print_rows(plan: Plan, rows: Sequence[Row], console: Console) -> None:
    """The promise, both times, and what a message costs."""
    checked = find(rows, what="correctness")
    console.print(f"slices are correct to {checked['error']:.1e}, value and gradients")
    promised = (plan.length, plan.dim, plan.ranks) == (65536, 256, 2)
    console.print(show.promises(rows, at_contract=promised))
    out = show.table(f"training step, 1×{plan.length}×{plan.dim}", "p20 s", "p50 s", "p80 s")
    for row in rows:
        if row["what"] == "step":
            name = "one process" if row["ranks"] == 1 else f"{row['ranks']} processes"
            out.add_row(name, *(f"{row[p]:.3f}" for p in ("p20", "p50", "p80")))
    console.print(out)
    cost = find(rows, what="message")
    console.print(
        f"a message costs {cost['latency'] * 1e6:.0f} µs and 1 s per"
        f" {cost['bandwidth'] / 2**20:.0f} MiB, to within {cost['worst']:.0%}; a layer sends"
        f" {cost['state_bytes']:,} bytes forward, and as many backward",
        highlight=False,
    )
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)
