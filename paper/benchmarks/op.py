"""Time and memory of the operator, with its performance contract.

EA-6 in float32 is timed against the paper's PyTorch code, against softmax attention
(`scaled_dot_product_attention`) and against the streaming limit (`torch.addcmul`, three reads and
one write). Numbers are checked first; candidates are timed in turn. The contract is for causal
`[1, 16384, 768]`; the long series is `[1, 1048576, 8]`, the inference call `[1, 1, 768]`. Decay is
timed next to none, with the gradient of the log decay: one per channel, or a gate per token and
channel. Peak memory is what the operating system reports for a separate process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eattn.info import cores
from eattn.ops import Expansion, Quadrature, State, Taylor, ea_series, ea_series_step, reference
from paper.harness.chart import BLUE, DASHED, GREEN, GREY, SKY, Chart, Look, bars, lines
from paper.harness.measure import (
    Candidate,
    Shape,
    Work,
    exponent,
    inputs,
    interleave,
    relative_error,
    timed_rows,
    value_and_gradients,
)
from paper.harness.peak import cost
from paper.harness.runlog import Key, Row, RunLog, find_row, rows_of
from paper.harness.table import Table, seconds
from paper.harness.target import Rows, Target, ratio

TITLE = "Speed of the operator"

SHAPE = (1, 16384, 768)  # of the contract: float32, causal
SERIES = (1, 1 << 20, 8)
ORDER, NODES, TERMS = 6, 25, (7, 13, 17)
GRIDS = {made.nodes: made for made in (Quadrature(33, 16), Quadrature(65), Quadrature(513))}
HEAD = 64  # channels per head of softmax attention, as in BERT-base
BATCH = 16  # one-token calls on a batch like this are nearly all arithmetic, still in cache
OURS = ("ours", "quadrature")
DECAYS = ("decay", "gate")
CANDIDATES = (*OURS, "sdpa", "paper")
CALLS = ("ea_series", "ea_series with state", "ea_series_step")


@dataclass(frozen=True)
class Plan:
    """Shapes and repetitions; the defaults are those of the contract."""

    shape: Shape = SHAPE
    rounds: int = 30  # of work that takes milliseconds
    slow_rounds: int = 3  # of work that takes seconds
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    orders: tuple[int, ...] = (2, 4, 6, 8, 10, 12)
    terms: tuple[int, ...] = TERMS  # numbers of Taylor and Gaussian features to compare
    grids: bool = True  # time wide grids, next to softmax attention once more
    series: Shape = SERIES
    calls: int = 200  # one-token calls in every timed run
    peaks: tuple[str, ...] = ("ours", "sdpa", "paper")  # candidates whose peak memory is measured


def plan(quick: bool) -> Plan:
    """Return the full plan, or the same shape with fewer points and repetitions."""
    if not quick:
        return Plan()
    few: dict[str, Any] = {"lengths": (1024, 4096, 16384, 65536), "orders": (2, 6, 12)}
    return Plan(rounds=15, slow_rounds=3, terms=(7, 17), grids=False, peaks=("ours",), **few)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Check the numbers, then time each group of candidates."""
    return log.measure_all(groups(plan), ({"what": "correctness"}, partial(check, plan)))


def groups(plan: Plan) -> Iterator[tuple[Key, Callable[[], Iterable[Row]]]]:
    """Yield the key of each group of rows that are timed together, and how to measure them."""
    B, _, D = plan.shape
    main = {"shape": plan.shape, "grows": None}
    yield {"what": "forward"} | main, partial(forward_rows, plan)
    yield {"what": "forward+backward"} | main, partial(training_rows, plan)
    points = [("L", (B, length, D), ORDER) for length in plan.lengths]
    points += [("order", plan.shape, order) for order in plan.orders]
    for axis, shape, order in points:
        key = {"grows": axis, "shape": shape, "order": order}
        yield key, partial(growth_rows, plan, shape, order)
    for terms, what in product(plan.terms, WORK):
        key = {"grows": "terms", "what": what, "shape": plan.shape, "order": terms - 1}
        yield key, partial(expansion_rows, plan, what, terms)
    if plan.grids:
        key = {"grows": "nodes", "what": "forward+backward", "shape": plan.shape}
        yield key, partial(grid_rows, plan)
    key = {"grows": "decay", "what": "forward+backward", "shape": plan.shape}
    yield key, partial(decay_rows, plan)
    for what in WORK if cores() > 1 else ():
        key = {"grows": "threads", "what": what, "shape": plan.series}
        yield key, partial(thread_rows, plan, what)
    for name in CALLS:
        yield {"what": "call", "who": name, "shape": (1, 1, D)}, partial(call_rows, plan, name)


def check(plan: Plan) -> Row:
    """Compare values and gradients with the quadratic form in float64; raise if they differ."""
    # More channels than the widest vector, and a tail: the kernels that are timed, and the others.
    shape = (1, min(plan.shape[1], 512), min(plan.shape[2], 37))
    worst = 0.0
    expansions = (Taylor(ORDER), Quadrature(NODES), GRIDS[65])
    cases = [("ours", *case) for case in product((True, False), expansions)]
    for who, causal, made in [*cases, *((who, True, Taylor(ORDER)) for who in DECAYS)]:
        op, slow = (decayed, recurrence) if who in DECAYS else (ea_series, reference.ea_expanded)
        results = []
        for run, dtype in ((op, torch.float32), (slow, torch.float64)):
            tensors = (x.to(dtype) for x in given(who, shape))
            results.append(value_and_gradients(run, *tensors, expansion=made, causal=causal))
        error = max(relative_error(*pair) for pair in zip(*results, strict=True))
        # A gradient passes the polynomial twice, and sums many tokens: hence more than kappa * eps.
        if not error < 20 * reference.condition(made) * torch.finfo(torch.float32).eps:
            raise RuntimeError(f"{made!r} is wrong by {error:.1e}, so nothing was timed")
        worst = max(worst, error)
    return {"what": "correctness", "who": "ours", "shape": shape, "error": worst}


def forward_rows(plan: Plan) -> Iterator[Row]:
    """Time the operator and the streaming limit, forward only."""
    q, k, v = inputs(plan.shape)
    limit = time_row("forward", "limit", plan.shape, None) | {"causal": None}
    ours = time_row("forward", "ours", plan.shape, ORDER)
    work: list[tuple[Row, Work]] = [
        (limit, lambda: torch.addcmul(q, k, v)),
        (ours, forward("ours", plan.shape, ORDER)),
        (ours | {"order": 2}, forward("ours", plan.shape, 2)),
        (ours | {"causal": False}, forward("ours", plan.shape, ORDER, causal=False)),
    ]
    return timed_rows([(row, Candidate(run)) for row, run in work], rounds=plan.rounds)


def training_rows(plan: Plan) -> Iterator[Row]:
    """Time forward and backward of the operator, the paper's code and softmax attention."""
    work = []
    for who in CANDIDATES:
        order = NODES - 1 if who == "quadrature" else ORDER
        run, often = training(who, plan.shape, order), who in OURS
        candidate = Candidate(run, share=4 if often else 1, warmup=1 if often else 0)
        work.append((time_row("forward+backward", who, plan.shape, order), candidate))
    rows = list(timed_rows(work, rounds=plan.slow_rounds))
    del work
    for row in rows:
        if row["who"] in plan.peaks:
            options: dict[str, Any] = {name: row[name] for name in ("who", "shape", "order")}
            row["peak_bytes"] = cost("paper.benchmarks.op:training", **options)["peak_bytes"]
        yield row


def growth_rows(plan: Plan, shape: Shape, order: int) -> Iterator[Row]:
    """Time one point of the growth with L or with the order."""
    work = [_candidate(what, "ours", shape, order) for what in WORK]
    rounds = max(3, min(plan.rounds, plan.rounds * plan.shape[1] // (4 * shape[1])))
    return timed_rows(work, rounds=rounds)


def expansion_rows(plan: Plan, what: str, terms: int) -> Iterator[Row]:
    """Time as many Taylor as Gaussian features."""
    work = [_candidate(what, who, plan.shape, terms - 1) for who in OURS]
    return timed_rows(work, rounds=max(3, plan.rounds // 2))


def grid_rows(plan: Plan) -> Iterator[Row]:
    """Time wide grids next to softmax attention."""
    what, shape = "forward+backward", plan.shape
    slow = Candidate(training("sdpa", shape, ORDER), warmup=0)
    work = [(time_row(what, "sdpa", shape, ORDER), slow)]
    for nodes in GRIDS:
        candidate = Candidate(training("grid", shape, nodes - 1), share=4)
        work.append((time_row(what, "grid", shape, nodes - 1), candidate))
    return timed_rows(work, rounds=plan.slow_rounds)


def decay_rows(plan: Plan) -> Iterator[Row]:
    """Time forward and backward without decay, with decay per channel and with gates."""
    work = [_candidate("forward+backward", who, plan.shape, ORDER) for who in ("ours", *DECAYS)]
    return timed_rows(work, rounds=plan.rounds)


def thread_rows(plan: Plan, what: str) -> Iterator[Row]:
    """Time one long series of few channels on one thread and on two."""
    row, candidate = _candidate(what, "ours", plan.series, ORDER)
    # A change of the number of threads takes some calls to settle: threads find their cores, and
    # memory freed by one finds its way to the other.
    work = [(row | {"threads": n}, replace(candidate, threads=n, settle=8)) for n in (1, 2)]
    return timed_rows(work, rounds=max(3, plan.rounds // 3))


def call_rows(plan: Plan, name: str) -> Iterator[Row]:
    """Time one token through the operator, and its arithmetic: a large batch, per token.

    Both on one thread: a token is too little to share.
    """
    D = plan.shape[2]
    pair = {}
    for batch, calls in ((1, plan.calls), (BATCH, max(1, plan.calls // 20))):
        run = one_token(name, batch, D, calls=calls)
        pair[str(batch)] = Candidate(run, calls=calls, threads=1)
    times = interleave(pair, rounds=plan.rounds)
    row = time_row("call", name, (1, 1, D), ORDER) | vars(times["1"])
    yield row | {"threads": 1, "arithmetic": times[str(BATCH)].p50 / BATCH}


def time_row(what: str, who: str, shape: Shape, order: int | None) -> Row:
    """Return the fields that every timed row has, without its times."""
    key = {"what": what, "who": who, "shape": shape, "order": order, "causal": True}
    return key | {"dtype": "float32", "threads": torch.get_num_threads(), "peak_bytes": None}


def _candidate(what: str, who: str, shape: Shape, order: int) -> tuple[Row, Candidate]:
    return time_row(what, who, shape, order), Candidate(WORK[what](who, shape, order))


# ---- work: each function prepares inputs and returns what is timed -------------------------------


def forward(who: str, shape: Shape, order: int, *, causal: bool = True) -> Work:
    """Return the operator alone, as in inference."""
    q, k, v = inputs(shape)
    made = expansion(order + 1, who)
    return torch.no_grad()(lambda: ea_series(q, k, v, expansion=made, causal=causal))


def training(who: str, shape: Shape, order: int) -> Work:
    """Return forward and backward of a candidate: one of WHO but the limit."""
    ops: dict[str, Callable[..., Any]] = {"paper": reference.ea_series, "sdpa": sdpa}
    if who in ops:
        op = partial(ops[who], order=order)
    else:
        op = partial(decayed if who in DECAYS else ea_series, expansion=expansion(order + 1, who))
    step = partial(value_and_gradients, op, causal=True)
    step(*given(who, (1, 8, shape[2])))  # thread pools and libraries are not part of the cost
    return partial(step, *given(who, shape))


def given(who: str, shape: Shape) -> list[Tensor]:
    """Return q, k, v, the log decay of a candidate that has one, and the gradient of y."""
    q, k, v, gy = inputs(shape, 4)
    if who not in DECAYS:
        return [q, k, v, gy]
    logits = torch.linspace(-2, 6, shape[2])  # as in a new layer
    return [q, k, v, F.logsigmoid(logits + 0.1 * gy if who == "gate" else logits), gy]


def decayed(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, **options: Any) -> Tensor:
    return ea_series(q, k, v, log_decay=log_decay, **options)


def recurrence(*tensors: Tensor, expansion: Expansion, causal: bool) -> Tensor:
    return reference.ea_decayed(*tensors, expansion=expansion)[0]


WORK: dict[str, Callable[..., Work]] = {"forward": forward, "forward+backward": training}


def expansion(terms: int, who: str) -> Expansion:
    if who == "grid":
        return GRIDS[terms]
    return Quadrature(terms) if who == "quadrature" else Taylor(terms - 1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, order: int, causal: bool) -> Tensor:
    """Compute softmax attention on [B, L, D] in heads of 64; the order is ignored."""
    head = min(HEAD, q.shape[-1])
    q, k, v = (x.unflatten(-1, (-1, head)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)


def one_token(name: str, batch: int, dim: int, *, calls: int) -> Work:
    """Return `calls` inference calls on [batch, 1, dim], by one of the names in CALLS."""
    q, k, v = inputs((batch, 1, dim))
    state = State.zeros(batch, dim, order=ORDER)
    q1, k1, v1 = (x[:, 0] for x in (q, k, v))
    series = partial(ea_series, q, k, v, order=ORDER, causal=True)
    works: dict[str, Work] = {
        "ea_series": series,
        "ea_series with state": partial(series, state=state, return_state=True),
        "ea_series_step": partial(ea_series_step, q1, k1, v1, state),
    }
    call = works[name]

    @torch.inference_mode()
    def repeat() -> None:
        for _ in range(calls):
            call()

    return repeat


def _main(what: str, who: str, **fields: object) -> Row:
    """Return the key of a row at the shape of the contract, not on a growth curve."""
    return {"what": what, "who": who, "shape": SHAPE, "grows": None} | fields


def _peak_in_tensors(rows: Rows) -> float:
    row = find_row(rows, **_main("forward+backward", "ours"))
    if row["peak_bytes"] is None:
        raise LookupError("peak memory was not measured")
    return float(row["peak_bytes"] / (4 * prod(row["shape"])))


def _call_overhead(rows: Rows) -> float:
    calls = rows_of(rows, "call")
    if not calls:
        raise LookupError("no calls were measured")
    return max(float(row["p50"] - row["arithmetic"]) for row in calls) * 1e6


def _targets() -> Iterator[Target]:
    both = "forward+backward"
    limit, ours = _main("forward", "limit"), _main("forward", "ours", causal=True, order=ORDER)
    trained, quadrature = (_main(both, who) for who in OURS)
    sdpa, code = _main(both, "sdpa"), _main(both, "paper")
    times = partial(Target, unit="×")
    contract = partial(times, quick=True)
    words = "the time of merely reading q, k, v and writing y"
    value = ratio(ours, limit)
    yield contract("forward / streaming limit", value, at_most=1.3, highlight=words)
    words = "faster than the paper’s code, forward and backward of the operator"
    value = ratio(code, trained)
    yield contract(f"{both}: paper's code / ours", value, at_least=110, highlight=words)
    words = "faster than softmax attention (SDPA), forward and backward of the operator"
    yield contract(f"{both}: SDPA / ours", ratio(sdpa, trained), at_least=110, highlight=words)
    yield contract("forward: EA-6 / EA-2", ratio(ours, ours | {"order": 2}), at_most=1.2)
    name = f"{both}: peak extra memory"
    yield Target(name, _peak_in_tensors, at_most=5, unit=" [B,L,D]", quick=True)
    value = ratio(ours | {"causal": False}, limit)
    yield times("non-causal forward / streaming limit", value, at_most=1.3)
    for what, name in (("forward", "forward: 1 thread / 2"), (both, f"{both}: 1 / 2")):
        one, two = ({"grows": "threads", "what": what, "threads": n} for n in (1, 2))
        yield times(f"long series, {name}", ratio(one, two), at_least=1.6)
    yield Target("inference call above its arithmetic", _call_overhead, at_most=30, unit=" µs")
    for terms, what in product(TERMS, ("forward", both)):
        at = {"grows": "terms", "what": what, "order": terms - 1}
        value = ratio(at | {"who": "quadrature"}, at | {"who": "ours"})
        yield times(f"{what}: quadrature / Taylor, {terms} terms", value, at_most=1.5)
    name = f"{both}: SDPA / quadrature of {NODES}"
    yield times(name, ratio(sdpa, quadrature), at_least=10)
    on_grid = {"grows": "nodes", "what": both, "shape": SHAPE}
    least, middle, most = (on_grid | {"who": "grid", "order": nodes - 1} for nodes in GRIDS)
    value = ratio(on_grid | {"who": "sdpa"}, least)
    yield times(f"{both}: SDPA / 33 nodes on ±16", value, at_least=25)
    yield times(f"{both}: 513 nodes / 65", ratio(most, middle), at_most=1.4)
    none = {"grows": "decay", "what": both, "shape": SHAPE, "who": "ours"}
    for who, name, bound in (("decay", "decay per channel", 1.15), ("gate", "gates", 1.6)):
        yield times(f"{both}: {name} / no decay", ratio(none | {"who": who}, none), at_most=bound)


TARGETS = tuple(_targets())


WHO = {
    "limit": "streaming limit",
    "ours": "EA-{order}",
    "quadrature": "EA by quadrature, {terms} nodes",
    "grid": "EA on a wide grid, {terms} nodes",
    "decay": "EA-{order}, decay per channel",
    "gate": "EA-{order}, gate per token and channel",
    "paper": "paper's EA-{order}",
    "sdpa": "SDPA",
}
PASSES = {"forward": Look(SKY, DASHED, "square"), "forward+backward": Look(BLUE)}
BARS = {
    "ours": ("EA-6", BLUE),
    "quadrature": ("EA, 25 nodes", SKY),
    "sdpa": ("softmax (SDPA)", GREEN),
    "paper": ("the paper's code", GREY),
}


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the times of all candidates, growth with L and order, and single calls."""
    timed = [row for row in rows if row["what"].startswith("forward")]
    for axis, title in (
        (None, "Times of the candidates"),
        ("terms", "Times of Taylor and Gaussian features"),
        ("nodes", "Times of wide grids"),
        ("decay", "Times with decay"),
        ("threads", "Times on one long series, by threads"),
    ):
        found = [row for row in timed if row.get("grows") == axis]
        if found:
            title = f"{title}, `{list(found[0]['shape'])}`"
            body = [[_label(row), *_quantiles(row), _peak(row)] for row in found]
            yield Table(title, ["candidate", "p20", "p50", "p80", "peak memory"], body)
    for axis in ("L", "order"):
        found = [row for row in timed if row.get("grows") == axis]
        if found:
            yield _growth(found, axis)
    calls = rows_of(rows, "call")
    body = [[f"`{row['who']}`", *_quantiles(row), seconds(row["arithmetic"])] for row in calls]
    if calls:
        title = f"One inference call, `{list(calls[0]['shape'])}`, one thread"
        yield Table(title, ["call", "p20", "p50", "p80", "of it arithmetic"], body)


def _growth(rows: Sequence[Row], axis: str) -> Table:
    curves = {what: [row for row in rows if row["what"] == what] for what in PASSES}
    body = []
    for pair in zip(*curves.values(), strict=True):
        cells = [f"{_place(pair[0], axis):,}"]
        for row in pair:
            cells += [seconds(row["p50"]), f"{_per_element(row):.2f}"]
        body.append(cells)
    notes = []
    if axis == "L" and len(body) > 1:
        fits = (
            exponent([_place(row, axis) for row in curve], [row["p50"] for row in curve])
            for curve in curves.values()
        )
        notes = ["Fitted exponents: " + " and ".join(f"{fit:.2f}" for fit in fits) + "."]
    head = [axis, "forward", "ns per element", "forward+backward", "ns per element"]
    return Table(f"Growth with {axis}", head, body, notes)


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw the candidates as bars, and the time per element along L and along the order."""
    trained = {
        row["who"]: row
        for row in rows
        if row["what"] == "forward+backward" and row.get("grows") is None
    }
    panels = []
    if "ours" in trained:
        ours = trained["ours"]["p50"]
        points = []
        for who, (name, _) in BARS.items():
            time = trained[who]["p50"]
            text = seconds(time) + ("" if who == "ours" else f", {time / ours:.0f} × ours")
            points.append({"series": name, "x": name, "y": time * 1e3, "text": text})
        title = f"(a) Forward and backward, {'×'.join(map(str, trained['ours']['shape']))}"
        looks = {name: Look(colour) for name, colour in BARS.values()}
        panels.append(
            bars(title, points, x="ms, logarithmic axis", log=True, looks=looks, columns=6)
        )
    for axis, title in (("L", "(b) Time per element along L"), ("order", "(c) … along the order")):
        points = [
            {"series": row["what"], "x": _place(row, axis), "y": _per_element(row)}
            for row in rows
            if row.get("grows") == axis
        ]
        if points:
            x, log = ("L, tokens", "x") if axis == "L" else ("order", "")
            panels.append(lines(title, points, x=x, y="ns per element", log=log, looks=PASSES))
    return Chart(panels) if panels else None


def _place(row: Row, axis: str) -> int:
    return int(row["shape"][1] if axis == "L" else row["order"])


def _per_element(row: Row) -> float:
    return float(row["p50"] / prod(row["shape"]) * 1e9)


def _label(row: Row) -> str:
    order = row["order"]
    name = WHO[row["who"]].format(order=order, terms=None if order is None else order + 1)
    name += ", non-causal" * (row["causal"] is False)
    if row.get("grows") == "threads":
        name += f", {row['threads']} thread" + "s" * (row["threads"] > 1)
    return f"{row['what']}: {name}"


def _quantiles(row: Row) -> list[str]:
    return [seconds(row[p]) for p in ("p20", "p50", "p80")]


def _peak(row: Row) -> str:
    return "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f} MiB"
