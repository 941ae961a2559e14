"""`eattn reproduce fig4`: what it costs to train BERT-base (Figure 4), with EA and with SA.

(a) Peak memory against L at batch 1, every point in a process of its own. (b) The longest L that
fits a memory budget at every batch size: predicted from (a), searched for, and confirmed by running
it. (c) Tokens per second, at the points of (b) and, interleaved, against L at batch 1. A step is
described in bench/training.py.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from eattn.nn import check_mixer
from paper.bench import bert, budget, peak
from paper.bench.experiment import carry_out, once
from paper.bench.measure import Contender, Row, interleave
from paper.bench.progress import Tick
from paper.bench.runlog import Journal
from paper.bench.target import Rows, find
from paper.bench.training import step
from paper.report import fig4 as report
from paper.report import plots
from paper.reproduce import costs
from paper.reproduce.fig4_promises import PROMISES, exponents

MIXERS = ("ea-2", "ea-6", "sa", "sa-math")
BUDGET = 8 * 2**30  # where there is no card
# Where a mechanism stops at batch 1: beyond, a step takes minutes.
LONGEST = {"sa": 8192, "sa-math": 8192}
# Seconds of a step on two cores, roughly: of a token, and of a pair of tokens.
LINEAR, QUADRATIC = 3.3e-3, {"sa": 1.1e-6, "sa-math": 2.5e-6}
START = 5.0  # seconds, of a process and a model
TYPICAL = 12_000  # tokens that fit the budget
CLOSE = 0.99  # of what should fit, what is tried first


@dataclass(frozen=True)
class Plan:
    """What to measure. A smaller `dim` or `depth` is for tests: only 768 and 12 are BERT-base."""

    mixers: tuple[str, ...] = MIXERS
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    batches: tuple[int, ...] = (1, 4, 16)
    budget: int = BUDGET  # bytes, for weights, gradients and the step
    dim: int = bert.DIM
    depth: int = bert.DEPTH
    dropout: float = 0.0  # BERT has 0.1; its masks are the same for all mixers, and no mechanism
    device: str = "cpu"
    patience: float = 240.0  # seconds of a step; what takes longer is not timed again
    timed: int = 8192  # tokens; what is longer is not timed again either
    seconds: float = 20.0  # for the interleaved steps of a length,
    rounds: int = 2  # of which there are so many rounds at least
    limit: float = 900.0  # seconds after which a step is given up

    def __post_init__(self) -> None:
        for name in self.mixers:
            check_mixer(name)
        model = max(map(self.model_bytes, self.mixers))
        if self.budget <= model:
            raise ValueError(
                f"budget must leave room beside weights and gradients, which take"
                f" {model / 2**30:.2f} GiB, got {self.budget / 2**30:.2f} GiB"
            )

    @classmethod
    def quick(cls) -> "Plan":
        """Fewer points, a quarter of the budget; BERT-base all the same."""
        return cls(
            mixers=("ea-6", "sa", "sa-math"),
            lengths=(512, 1024, 2048),
            batches=(1, 4),
            budget=BUDGET // 4,
            seconds=5.0,
            rounds=1,
            limit=120.0,
        )

    def here(self, size: str | None = None) -> "Plan":
        """On this machine's card, if it has one, with its memory for a budget; or with a `size`."""
        plan = replace(self, device=bert.default_device())
        if size is not None:
            return replace(plan, budget=budget.parse_bytes(size))
        if plan.device == "cuda":
            return replace(plan, budget=torch.cuda.mem_get_info()[0])
        return plan

    def model_bytes(self, mixer: str) -> int:
        """Weights and their gradients."""
        return 2 * bert.weight_bytes(mixer, dim=self.dim, depth=self.depth)

    def options(self, batch: int, length: int) -> dict[str, Any]:
        """What a step is told beside its mixer."""
        same = ("dim", "depth", "dropout", "device")
        return {"batch": batch, "length": length} | {name: getattr(self, name) for name in same}

    def points(self) -> Iterator[tuple[str, int]]:
        """Mixer and L of (a), the short ones of all mixers first."""
        for L in self.lengths:
            yield from ((name, L) for name in self.mixers if LONGEST.get(name, inf) >= L)

    def costs(self) -> Iterator[tuple[Row, float]]:
        """Every row to be measured, and about how many seconds it takes."""
        for name, L in self.points():
            yield _key("memory", name, 1, L), guess(name, 1, L)
        for name in self.mixers:
            for batch in self.batches:
                yield {"what": "longest", "mixer": name, "batch": batch}, self.searching(name)
        for L in self.lengths:
            yield {"what": "time", "L": L}, self.timing(L)

    def searching(self, name: str) -> float:
        return 1.4 * guess(name, 1, min(TYPICAL, LONGEST.get(name, TYPICAL)) // 2)

    def timing(self, L: int) -> float:
        steps = [guess(name, 1, L) for name, length in self.points() if length == L]
        again = [cost for cost in steps if cost <= self.patience and self.timed >= L]
        return max(self.seconds, self.rounds * sum(again)) if again else 0.0


def _key(what: str, mixer: str, batch: int, length: int) -> Row:
    return {"what": what, "mixer": mixer, "batch": batch, "L": length}


def guess(name: str, batch: int, length: int) -> float:
    """Roughly the seconds of a step in a process of its own."""
    return START + batch * (LINEAR * length + QUADRATIC.get(name, 0.0) * length**2)


# ---- rows ----------------------------------------------------------------------------------------


def run(plan: Plan, console: Console, out: Path, *, name: str = "fig4") -> list[Path]:
    """Rows to out/name.jsonl as they come, a picture of them, and tables on the console."""
    plots.need_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.jsonl"
    rows = carry_out(
        path,
        "fig4",
        asdict(plan),
        console,
        costs=plan.costs(),
        measure=partial(measure, plan),
        summaries={"exponent": exponents},
        promises=PROMISES,
    )
    costs.print_rows(plan, rows, console, report)
    return [path, *report.redraw(path)]


def measure(plan: Plan, journal: Journal, tick: Tick) -> None:
    """Processes of their own first: what times leave in this one's heap is not free for them."""
    rows = partial(once, journal, tick)
    for name, L in plan.points():
        work = partial(alone, plan, name, L)
        rows(_key("memory", name, 1, L), f"memory of {name}, L = {L}", guess(name, 1, L), work)
    for name in plan.mixers:
        for batch in plan.batches:
            key = {"what": "longest", "mixer": name, "batch": batch}
            label = f"longest of {name}, batch {batch}"
            rows(key, label, plan.searching(name), partial(longest, plan, journal, name, batch))
    for L in plan.lengths:
        of = [row for row in journal.rows if row["what"] == "memory" and row["L"] == L]
        rows(
            {"what": "time", "L": L}, f"time, L = {L}", plan.timing(L), partial(times, plan, L, of)
        )


def alone(plan: Plan, name: str, length: int) -> Iterator[Row]:
    """A point of (a)."""
    yield trial(plan, name, 1, length)


def trial(plan: Plan, name: str, batch: int, length: int, *, most: int | None = None) -> Row:
    """One step in a process of its own: memory above the model and seconds, or why there are none.

    It is stopped when it takes more than `most` bytes.
    """
    target, options = "paper.bench.training:measured_step", plan.options(batch, length)
    row = peak.trial(target, most, limit=plan.limit, name=name, **options)
    return row | _conditions(plan, name)


def longest(plan: Plan, journal: Journal, name: str, batch: int) -> Iterator[Row]:
    """The longest L that fits the budget, confirmed: it ran, and one a little longer did not fit.

    Every try is a row of its own, so that a search that was cut off need not try again.
    """
    room = plan.budget - plan.model_bytes(name)
    guessed = budget.fit(_points(plan, journal.rows, name, batch)).longest(batch, room)

    def fits(length: int) -> bool:
        key = _key("tried", name, batch, length)
        row = journal.row(key, partial(trial, plan, name, batch, length, most=room))
        return row.get("peak_bytes", inf) <= room

    found = budget.search(CLOSE * guessed, fits)
    row: Row = {"budget": plan.budget, "predicted": int(guessed), "fails": found.fails}
    if found.fails is not None:  # too large, or too slow to tell
        failed = find(journal.rows, **_key("tried", name, batch, found.fails))
        row["failed"] = failed.get("reason", "out of memory: took more than was left")
    row |= _conditions(plan, name)
    if found.fits is None:
        yield row | {"reason": f"not even {found.fails} tokens fit"}
        return
    ran = find(journal.rows, **_key("tried", name, batch, found.fits))
    row |= {"L": found.fits} | {name: ran[name] for name in ("peak_bytes", "seconds")}
    yield row | {"tokens_per_second": batch * found.fits / ran["seconds"]}


def _points(plan: Plan, rows: Rows, name: str, batch: int) -> list[tuple[int, int, float]]:
    """What is known before a search: after a kill it must start from the same guess."""
    earlier = plan.batches[: plan.batches.index(batch)]
    return [
        (row["batch"], row["L"], row["peak_bytes"])
        for row in rows
        if row.get("mixer") == name
        and "peak_bytes" in row
        and (row["what"] == "memory" or (row["what"] == "tried" and row["batch"] in earlier))
    ]


def times(plan: Plan, length: int, trials: Rows) -> Iterator[Row]:
    """Steps at batch 1 of what lived and is fast enough, interleaved; the one time of the rest."""
    room = (peak.available_bytes() or inf) if plan.device == "cpu" else inf
    alive = [row for row in trials if "seconds" in row]
    models = sum(plan.model_bytes(row["mixer"]) for row in alive)
    together = [
        row
        for row in alive
        if length <= plan.timed
        and row["seconds"] <= plan.patience
        and models + row["peak_bytes"] <= 0.8 * room
    ]
    contenders = {
        row["mixer"]: Contender(step(row["mixer"], **plan.options(1, length)), warmup=0)
        for row in together
    }
    round_ = sum(row["seconds"] for row in together)
    rounds = int(min(20, max(plan.rounds, plan.seconds / max(round_, 1e-9))))
    found = interleave(contenders, rounds=rounds)
    for row in alive:
        once: Row = dict.fromkeys(("p20", "p50", "p80"), row["seconds"]) | {"runs": 1}
        quantiles: Row = vars(found[row["mixer"]]) if row["mixer"] in found else once
        rate = {"tokens_per_second": length / quantiles["p50"]} | _conditions(plan, row["mixer"])
        yield {"mixer": row["mixer"], "batch": 1} | quantiles | rate


def _conditions(plan: Plan, name: str) -> Row:
    """What every measured row says about the step."""
    own = {"dropout": plan.dropout, "optimizer": False}
    return costs.conditions(plan, plan.model_bytes(name)) | own
