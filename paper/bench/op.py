"""`eattn bench op`: the operator beside the paper's code, softmax attention and plain streaming.

One run on one machine, the numbers checked before anything is timed, all contenders interleaved.
Everything measured is a row; what the library promises is judged from the rows (contract.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from eattn.info import cores
from eattn.ops import Quadrature, Taylor, ea_series, reference
from paper.bench import contract, show
from paper.bench.candidates import (
    CALLS,
    Shape,
    forward,
    inputs,
    one_token,
    streaming,
    training,
    value_and_gradients,
)
from paper.bench.measure import Contender, Row, interleave
from paper.bench.peak import peak_extra_bytes
from paper.bench.progress import Tick, progress
from paper.bench.runlog import Journal
from paper.bench.target import judge

SECONDS = {"ours": 0.15, "quadrature": 0.4, "sdpa": 7.0, "paper": 13.0}  # for the progress bar
OURS = ("ours", "quadrature")
BATCH = 16  # one-token calls on a batch like this are nearly all arithmetic, still in cache


@dataclass(frozen=True)
class Plan:
    """What to measure. The defaults are the contract's; smaller ones are for a quick look."""

    shape: Shape = contract.SHAPE
    order: int = contract.ORDER
    rounds: int = 30  # of what takes milliseconds
    slow_rounds: int = 3  # of what takes seconds
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    orders: tuple[int, ...] = (2, 4, 6, 8, 10, 12)
    nodes: int = contract.NODES  # of the quadrature beside softmax attention
    terms: tuple[int, ...] = contract.TERMS  # of series and quadratures beside each other
    series: Shape = contract.SERIES
    calls: int = 200  # one-token calls in every timed run
    peaks: tuple[str, ...] = ("ours", "sdpa", "paper")  # whose peak memory

    @classmethod
    def quick(cls) -> "Plan":
        """The same shape, fewer points and repetitions."""
        return cls(
            rounds=8,
            slow_rounds=1,
            lengths=(1024, 8192, 65536),
            orders=(2, 6, 12),
            terms=(7, 17),
            peaks=("ours",),
        )

    @property
    def seconds(self) -> float:
        """About how long it takes, for the progress bar."""
        slow = sum(SECONDS[who] for who in self.peaks) + self.slow_rounds * sum(SECONDS.values())
        growth = sum(length / self.shape[1] for length in self.lengths) + len(self.orders)
        return slow + 1.5 * growth + (0.5 + 0.4 * len(self.terms)) * self.rounds


def run(plan: Plan, console: Console, json: Path | None = None) -> list[Row]:
    """Check, measure, print; rows go to the file as they come."""
    journal = Journal(json, "op")
    with progress(console, plan.seconds, "correctness") as tick:
        for row in measure(plan, tick):
            journal.add(row)
    for row in judge(journal.rows, contract.PROMISES):
        journal.add(row)
    show.show(journal.rows, console, at_contract=plan.shape == contract.SHAPE)
    return journal.rows


def measure(plan: Plan, tick: Tick) -> Iterator[Row]:
    """All rows of the plan, correctness first."""
    yield check(plan)
    yield from forward_rows(plan, tick)
    yield from training_rows(plan, tick)
    yield from growth_rows(plan, tick)
    yield from expansion_rows(plan, tick)
    yield from series_rows(plan, tick)
    yield from call_rows(plan, tick)


def check(plan: Plan) -> Row:
    """Value and gradients beside the quadratic form in float64; raises when they disagree."""
    # More channels than the widest vector, and a tail: the kernels that are timed, and the others.
    shape = (1, min(plan.shape[1], 512), min(plan.shape[2], 37))
    worst = 0.0
    for causal, made in product((True, False), (Taylor(plan.order), Quadrature(plan.nodes))):
        results = []
        for op, dtype in ((reference.ea_expanded, torch.float64), (ea_series, torch.float32)):
            q, k, v, gy = (x.to(dtype) for x in inputs(shape, 4))
            options = dict(expansion=made, causal=causal)
            results.append(value_and_gradients(op, q, k, v, gy, **options))
        error = max(_distance(*pair) for pair in zip(*results, strict=True))
        # A gradient passes the polynomial twice, and sums many tokens: hence more than kappa * eps.
        if not error < 20 * reference.condition(made) * torch.finfo(torch.float32).eps:
            raise RuntimeError(f"{made!r} is wrong by {error:.1e} here, so nothing was timed")
        worst = max(worst, error)
    return {"what": "correctness", "who": "ours", "shape": shape, "error": worst}


def _distance(expected: Tensor, found: Tensor) -> float:
    return float((expected - found).abs().max() / expected.abs().max())


def forward_rows(plan: Plan, tick: Tick) -> Iterator[Row]:
    """The operator against the streaming limit, forward only."""
    limit = time_row("forward", "limit", plan.shape, order=None, causal=None)
    ours = time_row("forward", "ours", plan.shape, order=plan.order)
    rows = {
        "streaming limit": (limit, streaming(plan.shape)),
        "forward": (ours, forward(plan.shape, order=plan.order)),
        "forward, order 2": (ours | {"order": 2}, forward(plan.shape, order=2)),
        "forward, non-causal": (
            ours | {"causal": False},
            forward(plan.shape, order=plan.order, causal=False),
        ),
    }
    contenders = {name: Contender(work, cost=0.03) for name, (_, work) in rows.items()}
    times = interleave(contenders, rounds=plan.rounds, tick=tick)
    for name, (row, _) in rows.items():
        yield row | vars(times[name])


def training_rows(plan: Plan, tick: Tick) -> Iterator[Row]:
    """Forward and backward against the paper's code and softmax attention."""
    orders = {who: plan.nodes - 1 if who == "quadrature" else plan.order for who in SECONDS}
    contenders = {
        who: Contender(
            training(who, plan.shape, order=orders[who]),
            share=4 if who in OURS else 1,
            warmup=1 if who in OURS else 0,
            cost=seconds,
        )
        for who, seconds in SECONDS.items()
    }
    times = interleave(contenders, rounds=plan.slow_rounds, tick=tick)
    del contenders
    for who in SECONDS:
        row = time_row("forward+backward", who, plan.shape, order=orders[who]) | vars(times[who])
        if who in plan.peaks:
            options = {"who": who, "shape": plan.shape, "order": orders[who]}
            row["peak_bytes"] = peak_extra_bytes("paper.bench.candidates:training", **options)
            tick(f"memory of {who}", SECONDS[who])
        yield row


def growth_rows(plan: Plan, tick: Tick) -> Iterator[Row]:
    """How time grows with L and with order; one size after another, for memory's sake."""
    B, L, D = plan.shape
    points = [("L", (B, length, D), plan.order) for length in plan.lengths]
    points += [("order", plan.shape, order) for order in plan.orders]
    for axis, shape, order in points:
        contenders = {
            "forward": Contender(forward(shape, order=order)),
            "forward+backward": Contender(training("ours", shape, order=order)),
        }
        rounds = max(3, min(plan.rounds, plan.rounds * L // (4 * shape[1])))
        for what, times in interleave(contenders, rounds=rounds).items():
            row = time_row(what, "ours", shape, order=order) | vars(times)
            yield row | {"grows": axis}
        tick(f"{axis} = {shape[1] if axis == 'L' else order}", 1.5 * shape[1] / L)


def expansion_rows(plan: Plan, tick: Tick) -> Iterator[Row]:
    """Powers and bells side by side, as many of each."""
    works = {
        "forward": lambda who, order: forward(plan.shape, order=order, who=who),
        "forward+backward": lambda who, order: training(who, plan.shape, order=order),
    }
    for terms in plan.terms:
        for what, work in works.items():
            contenders = {who: Contender(work(who, terms - 1)) for who in OURS}
            times = interleave(contenders, rounds=max(3, plan.rounds // 2))
            tick(f"{terms} terms, {what}", 0.2 * plan.rounds)
            for who in OURS:
                row = time_row(what, who, plan.shape, order=terms - 1) | vars(times[who])
                yield row | {"grows": "terms"}


def series_rows(plan: Plan, tick: Tick) -> Iterator[Row]:
    """One long series of few channels: do two threads beat one?"""
    if cores() < 2:
        return
    works = {
        "forward": forward(plan.series, order=plan.order),
        "forward+backward": training("ours", plan.series, order=plan.order),
    }
    for what, work in works.items():
        # A change of the number of threads takes some calls to settle: threads find their cores,
        # and memory freed by one finds its way to the other.
        contenders = {str(n): Contender(work, threads=n, settle=8, cost=0.9) for n in (1, 2)}
        times = interleave(contenders, rounds=max(3, plan.rounds // 3))
        tick(f"long series, {what}", 0.1 * plan.rounds)
        for n in (1, 2):
            row = time_row(what, "ours", plan.series, order=plan.order) | vars(times[str(n)])
            yield row | {"threads": n, "grows": "threads"}


def call_rows(plan: Plan, tick: Tick) -> Iterator[Row]:
    """One token through the operator, and its arithmetic: the same on a large batch, per token.

    Both on one thread: a token is too little to share.
    """
    D = plan.shape[2]
    for name in CALLS:
        pair = {
            str(batch): Contender(
                one_token(name, batch, D, order=plan.order, calls=calls), calls=calls, threads=1
            )
            for batch, calls in ((1, plan.calls), (BATCH, max(1, plan.calls // 20)))
        }
        times = interleave(pair, rounds=plan.rounds)
        tick(name, 0.05 * plan.rounds)
        row = time_row("call", name, (1, 1, D), order=plan.order) | vars(times["1"])
        yield row | {"threads": 1, "arithmetic": times[str(BATCH)].p50 / BATCH}


def time_row(
    what: str, who: str, shape: Shape, *, order: int | None, causal: bool | None = True
) -> Row:
    """A row still to be given its `Times`."""
    return {
        "what": what,
        "who": who,
        "shape": shape,
        "order": order,
        "causal": causal,
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "peak_bytes": None,
    }
