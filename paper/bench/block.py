"""`eattn bench block`: a training step of one BERT-base block, with every mechanism in it.

A step is forward, backward into parameters and input, and clearing the gradients; the optimizer is
left out, as it costs the same whatever the mixer. Every mechanism first runs once in a process of
its own, for its peak memory and because it may die; those fast enough are then timed interleaved.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from eattn.nn import MIXERS, check_mixer
from paper.bench import peak, show
from paper.bench.experiment import carry_out
from paper.bench.measure import Contender, Row, interleave
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.step import SUM, check, parameters, step
from paper.bench.target import Promise, Rows, find

LENGTHS = (2048, 8192)  # the promises are made for
OFTEN = (SUM, "ea-6", "sa")  # timed three times as often: what is promised rests on them
# Seconds of a step at L = 2048 that grow with L^2, roughly; the rest of a block takes LINEAR.
QUADRATIC = {"ea": 13.0, "sa": 0.3, "sa-math": 0.7, "aft": 0.5}
LINEAR = {"gru": 4.0, "taylor": 1.5}


@dataclass(frozen=True)
class Plan:
    """What to measure. A smaller `dim` is for tests: what is promised is promised for 768."""

    mixers: tuple[str, ...] = (SUM, "ea-2", "ea-6", *(m for m in MIXERS if m[:3] != "ea-"))
    causal: tuple[str, ...] = ("ea-6", "sa")  # measured causal too
    lengths: tuple[int, ...] = LENGTHS
    dim: int = 768
    patience: float = 15.0  # seconds of a step; what takes longer is timed once
    budget: float = 150.0  # seconds for the interleaved steps of one length
    limit: float = 600.0  # seconds after which a step is given up

    def __post_init__(self) -> None:
        for name in self.mixers:
            if name != SUM:
                check_mixer(name)
        if min(self.lengths) < 1:
            raise ValueError(f"lengths must be at least 1, got {min(self.lengths)}")

    @classmethod
    def quick(cls) -> "Plan":
        """The shorter length, without exact EA, and fewer runs."""
        mixers = tuple(name for name in cls.mixers if name != "ea")
        return cls(mixers=mixers, lengths=LENGTHS[:1], budget=30.0)

    def changed(self, *, lengths: str | None, mixers: str | None) -> "Plan":
        """With lengths or mixers from the command line, written with commas between them."""
        changes: dict[str, Any] = {}
        if lengths is not None:
            if not all(part.strip().isdecimal() for part in lengths.split(",")):
                raise ValueError(f"lengths must be numbers with commas between, got {lengths!r}")
            changes["lengths"] = tuple(map(int, lengths.split(",")))
        if mixers is not None:
            changes["mixers"] = tuple(name.strip() for name in mixers.split(","))
        return replace(self, **changes)

    def contenders(self) -> list[tuple[str, bool]]:
        """Mixers, and whether causal."""
        causal = [(name, True) for name in self.causal if name in self.mixers]
        return [(name, False) for name in self.mixers] + causal

    def costs(self) -> Iterator[tuple[Row, float]]:
        """Every row to be measured, and about how many seconds it takes."""
        for length in self.lengths:
            for name, causal in self.contenders():
                yield _key(name, causal, length), guess(name, length)
            yield {"what": "step", "L": length}, self.budget


def _key(name: str, causal: bool, length: int) -> Row:
    return {"what": "trial", "mixer": name, "causal": causal, "L": length}


def guess(name: str, length: int) -> float:
    """Roughly the seconds of a trial, with a process to start."""
    L = length / 2048
    return 3.0 + LINEAR.get(name, 0.7) * L + QUADRATIC.get(name, 0.0) * L * L


# ---- rows ----------------------------------------------------------------------------------------


def run(plan: Plan, console: Console, json: Path | None = None) -> list[Row]:
    """Check, measure, print; rows go to the file as they come, and a cut-off run continues."""
    rows = carry_out(
        json,
        "block",
        asdict(plan),
        console,
        costs=plan.costs(),
        measure=partial(measure, plan),
        promises=PROMISES,
        first="correctness",
    )
    print_rows(plan, rows, console)
    return rows


def measure(plan: Plan, journal: Journal, tick: Tick) -> None:
    """All rows of the plan, correctness first."""
    journal.row({"what": "correctness", "who": "ea-6"}, check)
    for length in plan.lengths:
        trials = {}
        for name, causal in plan.contenders():
            key = _key(name, causal, length)
            trials[name, causal] = journal.row(key, partial(trial, plan, key, tick))
        key = {"what": "step", "L": length}
        journal.group(key, partial(times, plan, length, trials, tick))


def trial(plan: Plan, key: Row, tick: Tick) -> Row:
    """One step in a process of its own."""
    name, causal, length = key["mixer"], key["causal"], key["L"]
    options = {"name": name, "causal": causal, "length": length, "dim": plan.dim}
    row = peak.trial("paper.bench.step:step", limit=plan.limit, **options)
    tick(f"{label(key)}, L = {length}", guess(name, length))
    return row


def times(
    plan: Plan, length: int, trials: Mapping[tuple[str, bool], Row], tick: Tick
) -> Iterator[Row]:
    """Interleaved times of what is fast and small enough; the one time of the rest, or why none."""
    room = peak.available_bytes() or float("inf")
    together = [
        who
        for who, row in trials.items()
        if row.get("seconds", float("inf")) <= plan.patience and row["peak_bytes"] <= room / 4
    ]
    shares = {who: 3 if who[0] in OFTEN else 1 for who in together}
    round_ = sum(share * trials[who]["seconds"] for who, share in shares.items())
    rounds = int(min(15, max(3, plan.budget / max(round_, 1e-9))))
    contenders = {}
    for who in together:
        work = step(who[0], length=length, dim=plan.dim, causal=who[1])
        cost = plan.budget * trials[who]["seconds"] / (round_ * rounds)
        contenders[str(who)] = Contender(work, share=shares[who], cost=cost)
    seconds = interleave(contenders, rounds=rounds, tick=lambda _, cost: tick("steps", cost))
    for who, row in trials.items():
        yield _row(plan, row, vars(seconds[str(who)]) if who in together else _once(row))


def _once(trial: Row) -> Row:
    """The time of a trial as the quantiles of one run; nothing of a trial that died."""
    if "reason" in trial:
        return {}
    return dict.fromkeys(("p20", "p50", "p80"), trial["seconds"]) | {"runs": 1}


def _row(plan: Plan, trial: Row, quantiles: Row) -> Row:
    """All there is to say about one mechanism at one length."""
    row = {name: trial[name] for name in ("mixer", "causal") if name in trial} | quantiles
    row |= {name: trial[name] for name in ("reason", "peak_bytes") if name in trial}
    if quantiles:
        row["tokens_per_second"] = trial["L"] / quantiles["p50"]
    return row | {
        "shape": (1, trial["L"], plan.dim),
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "parameters": parameters(trial["mixer"], trial["L"], plan.dim),
    }


def _ratio(slow: str, fast: str, length: int) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        found = (find(rows, what="step", mixer=m, causal=False, L=length) for m in (slow, fast))
        a, b = (row["p50"] for row in found)
        return float(a / b)

    return value


PROMISES = tuple(
    promise
    for length in LENGTHS
    for promise in (
        Promise(f"L = {length}: EA-6 / q+k+v", _ratio("ea-6", SUM, length), 1.15),
        Promise(f"L = {length}: SA / EA-6", _ratio("sa", "ea-6", length), 1.0, at_most=False),
    )
)


# ---- tables --------------------------------------------------------------------------------------


def print_rows(plan: Plan, rows: Sequence[Row], console: Console) -> None:
    """The promises, every mechanism, and where it was measured."""
    checked = find(rows, what="correctness")
    console.print(f"EA-6's layer is correct to {checked['error']:.1e}, beside float64")
    if any(row["what"] == "ratio" for row in rows):
        console.print(show.promises(rows, at_contract=plan.dim == 768))
    for length in plan.lengths:
        console.print(table([r for r in rows if r["what"] == "step" and r["L"] == length]))
    console.print("* one run, in a process of its own, the first after a warm-up at 64 tokens")
    console.print(show.source(rows[-1]), highlight=False, soft_wrap=True)


def table(rows: Sequence[Row]) -> Table:
    """Every mechanism at one length, with the reason of those that have no time."""
    shape = "×".join(map(str, rows[0]["shape"]))
    columns = ("p20 s", "p50 s", "p80 s", "token/s", "×", "peak MiB", "params M")
    title = f"training step, {shape}, {rows[0]['threads']} threads; × the step of q+k+v"
    out = show.table(title, *columns)
    base = next((row.get("p50") for row in rows if row["mixer"] == SUM), None)
    for row in rows:
        name, parameters = label(row), f"{row['parameters'] / 1e6:.1f}"
        if "p50" not in row:
            out.add_row(name, *[""] * 6, parameters)
            out.caption = f"{out.caption or ''}{name}: {row['reason']}\n"
            continue
        out.add_row(
            name + "*" * (row["runs"] == 1),
            *(_number(row[p], 3) for p in ("p20", "p50", "p80")),
            f"{row['tokens_per_second']:,.0f}",
            _number(row["p50"] / base, 2) if base else "",
            f"{row['peak_bytes'] / 2**20:,.0f}",
            parameters,
        )
    return out


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if value < 10 else f"{value:.1f}"


def label(row: Row) -> str:
    """`ea-6, causal`."""
    return row["mixer"] + ", causal" * row["causal"]
