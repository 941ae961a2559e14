"""Figure 4: the cost of training BERT-base.

A step is forward and backward of the whole model, non-causal, without the optimizer, which costs
the same with every mixer. (a) shows the memory that a step adds to weights and gradients; (b) the
longest L that fits a budget, which includes weights and gradients; (c) and (d) tokens per second.
`sa-math` is the softmax attention of the paper, which stores its weights; `sa` is PyTorch's fused
attention, which does not and needs linear memory too: there EA gains time. Points of (c), and those
with a star, are single steps in a new process, which also requests its memory from the system.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eattn.nn import check_mixer
from paper.harness import bert, peak
from paper.harness.bert import OURS, better_mixers, mixer_points
from paper.harness.chart import BLACK, DOTTED, GREY, LOOKS, Chart, Look, lines
from paper.harness.measure import Candidate, Times, Work, exponent, inputs, interleave
from paper.harness.runlog import Key, Row, RunLog, group, rows_of
from paper.harness.table import Table, grid, number, size
from paper.harness.target import Rows, Target, ratio

TITLE = "Figure 4: the cost of training"
PAPER: dict[str, Any] = {
    "claims": (
        "The memory of the EA-series grows linearly with L, that of SA quadratically.",
        "EA fits more tokens into a step; its BS-L curve follows BS × L = constant, SA’s falls"
        " below it.",
        "EA’s throughput is much higher, and does not fall with L as SA’s does.",
    )
}
GIB = 2**30
LONGEST = {"sa": 8192, "sa-math": 8192}  # at batch 1; a longer step takes minutes
WARM = 64  # tokens of the untimed first step
GRAIN = 32  # every L that is tried is a multiple of it
GAP = 0.05  # an L that fits and one that does not are at most this share apart
ATTEMPTS = 12  # at most, in the search for the longest L
DROPOUT = 0.0  # BERT has 0.1; its masks cost the same with every mixer
CLOSE = 0.99  # share of the predicted L that is tried first


@dataclass(frozen=True)
class Plan(bert.ModelPlan):
    """Points, budgets and limits."""

    mixers: tuple[str, ...] = ("ea-2", OURS, "sa", "sa-math")
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    batches: tuple[int, ...] = (1, 4, 16)
    budget: float = 8.0  # GiB for weights, gradients and the step
    patience: float = 240.0  # seconds; a slower step is not timed again
    timed: int = 8192  # tokens; a longer step is not timed again
    seconds: float = 20.0  # of the interleaved steps of a length
    rounds: int = 2  # at least, of these steps
    limit: float = 900.0  # seconds after which a step is stopped

    def model_bytes(self, mixer: str) -> int:
        """Return the bytes of weights and gradients."""
        return 2 * super().model_bytes(mixer)

    def conditions(self, mixer: str) -> Row:
        return super().conditions(mixer) | {"optimizer": False}

    def keys(self) -> tuple[list[Row], list[Row]]:
        """Return the keys of the memory of a step at batch 1, and of the longest L."""
        model = self.key | {"dropout": DROPOUT}
        memory: list[Row] = [
            {"what": "memory", "mixer": name, "batch": 1, "L": L} | model
            for L in self.lengths
            for name in self.mixers
            if LONGEST.get(name, inf) >= L
        ]
        bound = {"budget": int(self.budget * GIB)} | model
        longest: list[Row] = [
            {"what": "longest", "mixer": name, "batch": batch} | bound
            for name in self.mixers
            for batch in self.batches
        ]
        return memory, longest


def plan(quick: bool) -> Plan:
    """Return the full plan, or BERT-base at fewer points and with a quarter of the budget.

    On a GPU the budget is its free memory.
    """
    few = Plan(mixers=(OURS, "sa", "sa-math"), lengths=(512, 1024, 2048), batches=(1, 4))
    few = replace(few, budget=2.0, seconds=5.0, rounds=1, limit=120.0)
    chosen = replace(few if quick else Plan(), device=bert.default_device())
    if chosen.device == "cuda":
        return replace(chosen, budget=torch.cuda.mem_get_info()[0] / GIB)
    return chosen


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Run steps in separate processes, for their memory, and then time them in turn.

    Timed steps come last: they leave memory in the heap of this process.
    """
    for name in plan.mixers:
        check_mixer(name)
        model = plan.model_bytes(name)
        if plan.budget * GIB <= model:
            words = f"budget must exceed the {size(model)} of weights and gradients"
            raise ValueError(f"{words}, got {plan.budget:g} GiB")
    memory, longest = plan.keys()
    log.expect([*memory, *longest, *map(_time, memory)])
    for key in memory:
        yield from log.measure(key, partial(trial, plan, key))
    for key in longest:
        yield from log.measure(key, partial(find_longest, plan, log, key))
    for length in plan.lengths:
        ran = [key for key in memory if key["L"] == length and "seconds" in log.find(key)[0]]
        yield from log.measure_together(map(_time, ran), partial(times, plan, log))


def _time(key: Key) -> Key:
    return {**key, "what": "time"}


# ---- one step ------------------------------------------------------------------------------------


def step(name: str, *, batch: int, length: int, dim: int, depth: int, device: str) -> Work:
    """Return a training step on random sequences [batch, length, dim].

    Gradients exist before the step and are cleared in place: with the weights they are the model,
    and a step adds activations and temporary tensors.
    """
    model = bert.make_model(name, dim=dim, depth=depth, max_len=length, dropout=DROPOUT)
    model.to(device).train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    _train(model, *(x.to(device) for x in inputs((1, min(length, WARM), dim), 2)))
    x, target = (x.to(device) for x in inputs((batch, length, dim), 2))
    return lambda: _train(model, x, target)


def measured_step(**options: Any) -> Work:
    """Return `step` for a separate process whose memory is measured."""
    peak.free_at_once()
    return step(**options)


def _train(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    model.zero_grad(set_to_none=False)
    x = x.detach().requires_grad_()  # as above an embedding
    loss = F.mse_loss(model(x), target)
    loss.backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return loss.detach()


def options(plan: Plan, key: Key) -> dict[str, Any]:
    """Return the arguments of `step` for a key."""
    shape = {"name": key["mixer"], "batch": key["batch"], "length": key["L"]}
    return shape | plan.size | {"device": plan.device}


def trial(plan: Plan, key: Key, most: int | None = None) -> Row:
    """Run one step in a separate process; stop it when it takes more than `most` bytes."""
    target = "paper.figures.fig4:measured_step"
    found = peak.trial(target, most, limit=plan.limit, **options(plan, key))
    return found | plan.conditions(key["mixer"])


def times(plan: Plan, log: RunLog, keys: Sequence[Key]) -> Iterator[Row]:
    """Time steps in turn; a slow, long or large one keeps the time of its only run."""
    free = (peak.available_bytes() or inf) if plan.device == "cpu" else inf
    trials = [log.find({**key, "what": "memory"})[0] for key in keys]
    models = sum(plan.model_bytes(row["mixer"]) for row in trials)
    again = {
        row["mixer"]: row["seconds"]
        for row in trials
        if row["L"] <= plan.timed
        and row["seconds"] <= plan.patience
        and models + row["peak_bytes"] <= 0.8 * free
    }
    chosen = [key for key in keys if key["mixer"] in again]
    candidates = {key["mixer"]: Candidate(step(**options(plan, key)), warmup=0) for key in chosen}
    rounds = plan.seconds / max(sum(again.values()), 1e-9)
    found = interleave(candidates, rounds=int(min(20, max(plan.rounds, rounds))))
    for row in trials:
        quantiles = found.get(row["mixer"], Times.single(row["seconds"]))
        rate = {"tokens_per_second": row["L"] / quantiles.p50}
        yield vars(quantiles) | rate | plan.conditions(row["mixer"])


# ---- the longest L -------------------------------------------------------------------------------


class Memory(NamedTuple):
    """Bytes of a step on B sequences of L tokens: fixed + B (linear L + quadratic L²)."""

    fixed: float
    linear: float
    quadratic: float

    def longest(self, batch: int, room: float) -> float:
        """Return the L at which a step takes all the room, or 0."""
        a, b, c = batch * self.quadratic, batch * self.linear, self.fixed - room
        if c >= 0:
            return 0.0
        # This form of the root neither subtracts nearly equal numbers nor divides by a = 0.
        return float(-2 * c / (b + (b * b - 4 * a * c) ** 0.5))


def fit(points: Iterable[tuple[int, int, float]]) -> Memory:
    """Fit (batch, L, bytes) by least squares of the relative error, without negative terms."""
    found = np.array(list(points), dtype=float)
    if len({L for _, L, _ in found}) < 3:
        raise ValueError(f"the longest L is predicted from three lengths, got {len(found)} points")
    batch, length, total = found.T
    terms = np.stack([np.ones_like(total), batch * length, batch * length**2], 1) / total[:, None]
    best, least = np.zeros(3), np.inf
    for chosen in ([1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        values = np.linalg.lstsq(terms[:, chosen], np.ones_like(total), rcond=None)[0]
        error = float(np.square(terms[:, chosen] @ values - 1).sum())
        if (values >= 0).all() and error < least:
            best, least = np.zeros(3), error
            best[chosen] = values
    return Memory(*best.tolist())


def search(first: float, fits: Callable[[int], bool]) -> tuple[int | None, int | None]:
    """Return the longest L that fits and the shortest that does not, at most GAP apart, or None.

    A good first guess takes two attempts. From a bad one the strides double until both sides are
    known, and then the interval is halved.
    """
    low: int | None = None
    high: int | None = None
    length, stride = max(GRAIN, _round(first)), GAP
    for _ in range(ATTEMPTS):
        if fits(length):
            low = length
        else:
            high = length
        if low is None and high == GRAIN:
            break
        if low is not None and high is not None:
            if high - low <= GRAIN or high <= low * (1 + GAP):
                break
            length = min(max(_round((low * high) ** 0.5), low + GRAIN), high - GRAIN)
        elif low is not None:
            length = max(_round(low * (1 + stride)), low + GRAIN)
            stride *= 2
        else:
            length = max(GRAIN, min(_round(length / (1 + stride)), length - GRAIN))
            stride *= 2
    return low, high


def _round(length: float) -> int:
    return int(length) // GRAIN * GRAIN


def find_longest(plan: Plan, log: RunLog, key: Key) -> Row:
    """Return the longest L that fits the budget: it ran, and a slightly longer one did not fit.

    Every attempt is a row, so an interrupted search does not repeat it.
    """
    batch, room = key["batch"], key["budget"] - plan.model_bytes(key["mixer"])
    predicted = fit(_known(log.rows, key)).longest(batch, room)
    tried: dict[int, Row] = {}

    def fits(length: int) -> bool:
        at = {**key, "what": "tried", "L": length}
        log.expect([at])
        (tried[length],) = log.measure(at, partial(trial, plan, at, room))
        return bool(tried[length].get("peak_bytes", inf) <= room)

    longest, fails = search(CLOSE * predicted, fits)
    row = plan.conditions(key["mixer"]) | {"predicted": int(predicted), "fails": fails}
    if fails is not None:  # too large, or too slow
        row["failed"] = tried[fails].get("reason", "out of memory: more than the budget")
    if longest is None:
        return row | {"reason": f"not even {fails} tokens fit"}
    ran = tried[longest]
    row |= {"L": longest, "peak_bytes": ran["peak_bytes"], "seconds": ran["seconds"]}
    return row | {"tokens_per_second": batch * longest / ran["seconds"]}


def _known(rows: Rows, key: Key) -> list[tuple[int, int, float]]:
    """Return what is known before a search; an interrupted search starts from the same guess."""
    same = ("mixer", "dim", "depth", "device", "dropout")
    return [
        (row["batch"], row["L"], row["peak_bytes"])
        for row in rows
        if all(row.get(name) == key[name] for name in same)
        and "peak_bytes" in row
        and (row["what"] == "memory" or (row["what"] == "tried" and row["batch"] < key["batch"]))
    ]


def growth(rows: Rows, mixer: str) -> float:
    """Return b of memory = a L^b."""
    found = [
        row for row in rows_of(rows, "memory") if row["mixer"] == mixer and "peak_bytes" in row
    ]
    if len(found) < 3:
        raise LookupError(f"{mixer}: fewer than three lengths")
    return exponent([row["L"] for row in found], [row["peak_bytes"] for row in found])


def _ratio(what: str, field: str, above: tuple[str, int], below: tuple[str, int]) -> Any:
    """Return a function of rows: a field at one mixer and L over the same field at another."""
    at = {"what": what, "batch": 1}
    first, second = (at | {"mixer": mixer, "L": L} for mixer, L in (above, below))
    return ratio(first, second, field)


_memory = partial(_ratio, "memory", "peak_bytes")
_rates = partial(_ratio, "time", "tokens_per_second")
_times = partial(Target, unit="×")
_highlight = "the tokens per second of softmax attention (SDPA), training BERT-base at 8,192 tokens"
_stored = _memory(("sa-math", 2048), (OURS, 2048))
_faster, _steady = (_rates((OURS, 8192), other) for other in (("sa", 8192), (OURS, 1024)))
TARGETS = (
    _times("L = 8192: memory, EA-6 / SA", _memory((OURS, 8192), ("sa", 8192)), at_most=1.1),
    Target("EA-6: memory, exponent in L", lambda rows: growth(rows, OURS), at_most=1.05),
    _times("L = 2048: memory, SA with stored weights / EA-6", _stored, at_least=3.0),
    _times("L = 8192: tokens/s, EA-6 / SA", _faster, at_least=2.5, highlight=_highlight),
    _times("EA-6: tokens/s, L = 8192 / L = 1024", _steady, at_least=0.9),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield memory and throughput by L, and the longest L by batch size."""
    memory, longest, timed = (rows_of(rows, what) for what in ("memory", "longest", "time"))
    if memory:
        title = "Memory of a step above weights and gradients, batch 1, GiB"
        yield grid(title, memory, "L", _peak, notes=_memory_notes(rows))
    if longest:
        title = f"Longest L within {size(longest[0]['budget'])}, and tokens/s there"
        yield grid(title, longest, "batch", _longest, notes=_longest_notes(longest))
    if timed:
        note = ["A star marks a single run."] if any(row["runs"] == 1 for row in timed) else []
        yield grid("Tokens/s at batch 1", timed, "L", _rate, notes=note)


def _peak(row: Row) -> str:
    return number(row["peak_bytes"] / GIB) if "peak_bytes" in row else "—"


def _rate(row: Row) -> str:
    return f"{row['tokens_per_second']:,.0f}" + "*" * (row.get("runs") == 1)


def _longest(row: Row) -> str:
    return f"{row['L']:,}, {_rate(row)}/s" if "L" in row else "—"


def _memory_notes(rows: Rows) -> Iterator[str]:
    memory, fits = rows_of(rows, "memory"), []
    for mixer in group(memory, "mixer"):
        with suppress(LookupError):
            fits.append(f"{mixer} {growth(rows, mixer):.2f}")
    if fits:
        yield f"Fitted exponents of L: {', '.join(fits)}."
    for row in memory:
        if "reason" in row:
            yield f"{row['mixer']}, L = {row['L']}: {row['reason']}."


def _longest_notes(rows: Rows) -> Iterator[str]:
    """Yield how to read the table, and for which batch sizes a longer L may fit."""
    model = size(rows[0]["model_bytes"])
    yield (
        f"The budget holds weights and gradients ({model}) and the step, no optimizer. Every"
        " longest L was run, once, in a separate process."
    )
    out = []
    for row in rows:
        place = f"{row['mixer']}, batch {row['batch']}"
        if "reason" in row:
            yield f"{place}: {row['reason']}."
        elif row["fails"] is None:
            yield f"{place}: the search ended at L = {row['L']:,}, more may fit."
        elif not row["failed"].startswith("out of memory"):
            yield f"{place}: L = {row['fails']:,} did not finish ({row['failed']}), more may fit."
        else:
            out.append(row["fails"] / row["L"])
    if out:
        start = "An" if len(out) == len(rows) else "For the others, an"
        yield f"{start} L up to {100 * max(out) - 100:.1f} % longer did not fit."


def draw(rows: Sequence[Row]) -> Chart:
    """Draw memory by L, the longest L by batch size, and the throughput at both."""
    memory, longest, timed = (rows_of(rows, what) for what in ("memory", "longest", "time"))
    budget = size(longest[0]["budget"]) if longest else "the budget"
    curves = mixer_points(longest, "batch", "L")
    looks = dict(LOOKS)
    for mixer, colour in ((OURS, BLACK), ("sa-math", GREY)):
        ends = [point for point in curves if point["series"] == mixer]
        if len(ends) > 1:  # L = c / batch is a straight line between the ends
            name, first, last = f"c / batch, {mixer}", ends[0], ends[-1]
            looks[name] = Look(colour, DOTTED, "circle")
            y = first["y"] * first["x"] / last["x"]
            curves += [first | {"series": name}, last | {"series": name, "y": y}]
    along = mixer_points([row for row in longest if "L" in row], "L", "tokens_per_second")
    peaks = mixer_points(memory, "L", "peak_bytes", unit=GIB)
    rates = mixer_points(timed, "L", "tokens_per_second")
    panels = []
    for title, points, x, y, log in (
        ("(a) Memory of a step, batch 1", peaks, "L, tokens", "GiB", "xy"),
        (f"(b) Longest L within {budget}", curves, "batch size", "L, tokens", "xy"),
        ("(c) Throughput at the points of (b)", along, "L, tokens", "tokens/s", "x"),
        ("(d) Throughput at batch 1", rates, "L, tokens", "tokens/s", "x"),
    ):
        if points:
            panels.append(lines(title, points, x=x, y=y, log=log, looks=looks))
    return Chart(panels)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the points at which SA needs less memory, fits more tokens or is faster."""
    memory, longest, timed = (rows_of(rows, what) for what in ("memory", "longest", "time"))
    yield from better_mixers(memory, "peak_bytes", "needs less memory", "L")
    yield from better_mixers(longest, "L", "fits longer sequences", "batch", more=True)
    yield from better_mixers(timed, "tokens_per_second", "trains faster", "L", more=True)
