"""Table 1: how cost grows.

The paper gives complexities; here they are measured, causal and on one sequence with one head.
Training is a forward and backward of the mechanism alone: the projections around it are the same
for all, the paper's table does not count them, and their O(LD²) would hide most of what it counts.
Decoding is a step of the layer with its projections. Peak memory is measured in a separate process
per point, and times are interleaved. Exponents are fitted to the upper half of each curve, where
growing costs have outgrown constant ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eattn.nn import MIXERS, Mixer, check_mixer, make_mixer
from eattn.ops import baselines, ea, ea_series
from paper.harness.chart import LOOKS, Chart, lines
from paper.harness.measure import Candidate, Times, Work, exponent, inputs, interleave, time_once
from paper.harness.peak import trial
from paper.harness.runlog import Key, Row, RunLog, group, rows_of
from paper.harness.table import Table
from paper.harness.target import Rows, Target, better

TITLE = "Table 1: how cost grows"
SERIES = "ea-N"  # the curve along t: EA-series of several orders


class Complexity(NamedTuple):
    """Complexity of a mechanism in the paper, and the exponents that follow, as in `L2 D1`."""

    time: str
    memory: str
    inference: str
    exponents: Mapping[str, str]  # cost -> exponents


_SA = {"time": "L2 D1", "memory": "L2 D0", "decoding time": "p1"}
_RNN = Complexity("—", "—", "O(D)", {"decoding time": "p0"})
_EA = {"time": "L1 D1", "memory": "L1 D1", "decoding time": "p0"}
PAPER: dict[str, Any] = {
    "claims": (
        "EA-series: O(tLD) to train, O(tLD) memory, O(tD) per generated token.",
        "SA: O(L²D), O(L²), O(LD). LA: O(LD²), O(LD), O(D²). AFT: O(L²D), O(LD), O(LD).",
    ),
    # Table 1 has SA, LA, AFT and the EA-series; the others are from Sections 1 and 3.
    "complexity": {
        "sa-math": Complexity("O(L²D)", "O(L²)", "O(LD)", _SA),
        "sa": Complexity("O(L²D)", "O(L²)", "O(LD)", _SA),
        "la": Complexity("O(LD²)", "O(LD)", "O(D²)", _EA | {"time": "L1 D2"}),
        "aft": Complexity("O(L²D)", "O(LD)", "O(LD)", _SA | {"memory": "L1 D1"}),
        "taylor": Complexity("O(LDᵗ)", "—", "O(Dᵗ)", {"time": "L1 D2", "decoding time": "p0"}),
        "gru": _RNN,
        "linear-rnn": _RNN,
        "ea": Complexity("quadratic", "—", "—", {"time": "L2"}),
        "ea-2": Complexity("O(tLD)", "O(tLD)", "O(tD)", _EA),
        "ea-6": Complexity("O(tLD)", "O(tLD)", "O(tD)", _EA),
        SERIES: Complexity("O(tLD)", "O(tLD)", "O(tD)", {"time": "t1", "memory": "t1"}),
    },
}
# Why a measured exponent differs from the paper's.
REASONS = {
    ("sa-math", "time", "D"): "the softmax of [L, L] weights is the same for every D",
    ("sa", "memory", "L"): "SDPA never holds the weights [L, L]",
    ("sa", "memory", "D"): "it holds q, k, v and their gradients instead",
    ("la", "time", "D"): "work within chunks is O(LD), and wider products run at a higher rate",
    ("aft", "time", "D"): "e^w of [L, L] biases is the same for every D",
    ("aft", "memory", "L"): "e^w and the gradient of the biases w [L, L] are held",
    ("aft", "memory", "D"): "the biases [L, L] outweigh [L, D]",
    ("taylor", "time", "D"): "D²/2 features meet D values",
    (SERIES, "time", "t"): "costs that all orders share outweigh those of the terms",
    (SERIES, "memory", "t"): "the backward computes the powers again instead of keeping them",
}
TOLERANCE = 0.3  # between exponents; a larger difference contradicts the paper
SMALLEST_PEAK = 2**19  # bytes; smaller ones depend on pages that happen to be free
COSTS = {  # cost -> `what` and field of its rows
    "time": ("time", "p50"),
    "memory": ("memory", "peak_bytes"),
    "decoding time": ("decoding", "p50"),
    "state bytes": ("decoding", "state_bytes"),
}
# Largest sizes of slow mechanisms: beyond them a point takes minutes or gigabytes.
LONGEST = {"ea": 4096, "sa-math": 8192, "aft": 8192, "gru": 8192, "sa": 16384, "taylor": 16384}
LONGEST_DECODED = {"ea": 4096, "aft": 8192}
WIDEST = {"taylor": 128}
STEPS = 16  # tokens decoded in one timed run
CHUNK = 1024  # tokens of a prompt that are read at once


class Point(NamedTuple):
    """One size of one mechanism; `x` is its position on the curve."""

    mixer: str
    L: int
    D: int
    x: int


@dataclass(frozen=True)
class Curve:
    """Points of one mechanism along one axis."""

    mixer: str
    axis: str
    points: tuple[Point, ...]

    def key(self, what: str, **fields: object) -> Key:
        """Return the key of rows of this curve, with the sizes that all its points share."""
        fixed = {n: v for n, v in self.points[0]._asdict().items() if n in "LD" and n != self.axis}
        return {"what": what, "mixer": self.mixer, "axis": self.axis} | fixed | fields


@dataclass(frozen=True)
class Plan:
    """Sizes along L (with `dim`), along D (with `length`) and along t (with the largest L)."""

    mixers: tuple[str, ...] = tuple(name for name in MIXERS if name in PAPER["complexity"])
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    dim: int = 64
    dims: tuple[int, ...] = (32, 64, 128, 256, 512)
    length: int = 2048
    orders: tuple[int, ...] = (2, 4, 6, 8, 12, 16)
    positions: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
    budget: float = 20.0  # seconds for the times of one curve
    limit: float = 120.0  # seconds after which a point is given up

    def curves(self) -> Iterator[Curve]:
        """Yield every training curve that has points."""
        curves = []
        for name in self.mixers:
            longest, widest = LONGEST.get(name, inf), WIDEST.get(name, inf)
            lengths = [Point(name, L, self.dim, L) for L in self.lengths if longest >= L]
            dims = [Point(name, self.length, D, D) for D in self.dims if widest >= D]
            curves += [Curve(name, "L", tuple(lengths)), Curve(name, "D", tuple(dims))]
        if any(name.startswith("ea-") for name in self.mixers):
            orders = (Point(f"ea-{t}", max(self.lengths), self.dim, t) for t in self.orders)
            curves.append(Curve(SERIES, "t", tuple(orders)))
        return (curve for curve in curves if curve.points)

    def work(self) -> Iterator[tuple[Key, Callable[[RunLog], Row | Iterator[Row]]]]:
        """Yield the key of each group of rows that are measured together, and how to do it."""
        for curve in self.curves():
            for point in curve.points:
                key = curve.key("memory", x=point.x, L=point.L, D=point.D)
                yield key, partial(memory, self, point)
            yield curve.key("time"), partial(times, self, curve)
        for name in self.mixers:
            key = {"what": "decoding", "mixer": name, "axis": "position", "D": self.dim}
            yield key, partial(decoding, self, name)


def plan(quick: bool) -> Plan:
    """Return the full plan, or one with fewer points, smaller D and fewer runs."""
    if not quick:
        return Plan()
    few: dict[str, Any] = {"dims": (32, 64, 128), "orders": (2, 6, 16)}
    few["lengths"], few["positions"] = (1024, 2048, 4096, 8192, 16384), (256, 1024, 4096, 16384)
    return Plan(budget=3.0, limit=60.0, **few)


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Measure training along every curve, then decoding."""
    for mixer in plan.mixers:
        check_mixer(mixer)
    return log.measure_all((key, partial(measure, log)) for key, measure in plan.work())


def memory(plan: Plan, point: Point, log: RunLog) -> Row:
    """Measure the peak memory in a separate process; the row has a `reason` if that fails."""
    options = {"name": point.mixer, "length": point.L, "dim": point.D}
    return trial("paper.tables.table1:training", limit=plan.limit, **options)


def times(plan: Plan, curve: Curve, log: RunLog) -> Iterator[Row]:
    """Time the points whose memory could be measured."""
    alive = {row["x"] for row in log.find(curve.key("memory")) if "seconds" in row}
    points = {str(point.x): point for point in curve.points if point.x in alive}
    works = {x: training(p.mixer, length=p.L, dim=p.D) for x, p in points.items()}
    found = timed({x: Candidate(work) for x, work in works.items()}, plan.budget)
    for x, p in points.items():
        size = {"x": p.x, "L": p.L, "D": p.D, "threads": torch.get_num_threads()}
        yield size | vars(found[x])


def decoding(plan: Plan, name: str, log: RunLog) -> Iterator[Row]:
    """Time a token and count the bytes of the state at every position."""
    positions = [p for p in plan.positions if LONGEST_DECODED.get(name, inf) >= p]
    torch.manual_seed(0)
    most = max(positions) + STEPS + 1
    layer = make_mixer(name, plan.dim, heads=1, causal=True, max_len=most).eval()
    works = {str(p): Decoding(layer, p) for p in positions}
    candidates = {p: Candidate(w.run, prepare=w.rewind, calls=STEPS) for p, w in works.items()}
    found = timed(candidates, plan.budget / 4)
    for p, work in works.items():
        yield {"x": int(p), "state_bytes": work.state_bytes} | vars(found[p])


def timed(candidates: Mapping[str, Candidate], budget: float) -> dict[str, Times]:
    """Interleave for about `budget` seconds, at least three rounds; short runs more often."""
    seconds = {x: time_once(c) * c.calls for x, c in candidates.items()}
    slowest = max(seconds.values(), default=0.0)
    shares = {x: int(min(8, max(1, slowest / s / len(seconds)))) for x, s in seconds.items()}
    one_round = sum(shares[x] * s for x, s in seconds.items())
    ready = {x: replace(c, share=shares[x], warmup=0) for x, c in candidates.items()}
    return interleave(ready, rounds=int(min(200, max(3, budget / max(one_round, 1e-9)))))


# ---- work: mechanisms as something to time -------------------------------------------------------


def training(name: str, *, length: int, dim: int, warm: bool = False) -> Work:
    """Return one causal forward and backward of a mechanism, into all its inputs."""
    if not warm:  # thread pools and libraries are not part of the cost
        training(name, length=min(length, 16), dim=dim, warm=True)()
    op, given = mechanism(name, length, dim)
    leaves = [x.requires_grad_() for x in given]
    (gy,) = inputs((1, length, dim), 1)

    def work() -> tuple[Tensor, ...]:
        y = op(*leaves)
        return y.detach(), *torch.autograd.grad(y.reshape(gy.shape), leaves, gy)

    return work


def mechanism(name: str, length: int, dim: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Return the operator of a mechanism, and its inputs that training needs gradients of."""
    q, k, v = inputs((1, length, dim))
    heads = [x.unsqueeze(1) for x in (q * dim**-0.5, k, v)]  # one head: [B, 1, L, D]
    expansion = check_mixer(name)
    match name:
        case "ea":
            return partial(ea, causal=True), [q, k, v]
        case "sa":
            return partial(baselines.sa, causal=True), heads
        case "sa-math":
            return partial(baselines.sa_math, causal=True), heads
        case "la" | "taylor":
            kernel = baselines.ELU if name == "la" else baselines.TAYLOR
            return lambda *qkv: baselines.linear_attention(kernel, *qkv, causal=True)[0], heads
        case "aft":
            w = 0.02 * inputs((1, length, length), 1)[0][0]
            return partial(baselines.aft, causal=True), [k, v, w]
        case "gru":
            gru = nn.GRU(dim, dim, batch_first=True)
            return lambda x, *weights: gru(x)[0], [q, *gru.parameters()]
        case "linear-rnn":
            return partial(baselines.linear_rnn, h=torch.zeros(1, dim)), [q.sigmoid(), k]
    return partial(ea_series, expansion=expansion, causal=True), [q, k, v]


class Decoding:
    """A layer that has read `position` tokens and repeatedly decodes STEPS more."""

    @torch.inference_mode()
    def __init__(self, mixer: Mixer, position: int) -> None:
        self.mixer = mixer
        self.x_t = inputs((1, 1, mixer.dim), 1)[0][:, 0]
        state: Any = None
        for chunk in inputs((1, position, mixer.dim), 1)[0].split(CHUNK, 1):  # no weights [L, L]
            _, state = mixer(chunk, state=state, return_state=True)
        self.first = self.state = state
        self.state_bytes: int = state.nbytes

    @torch.inference_mode()
    def rewind(self) -> None:
        """Return to the position and decode a token: a full cache grows now, not while timed."""
        self.state = self.first.select(torch.zeros(1, dtype=torch.int64))
        _, self.state = self.mixer.step(self.x_t, self.state)

    @torch.inference_mode()
    def run(self) -> None:
        for _ in range(STEPS):
            _, self.state = self.mixer.step(self.x_t, self.state)


# ---- exponents and targets -----------------------------------------------------------------------


class Power(NamedTuple):
    """Exponent b of cost = a x^b, and the x that it was fitted to."""

    value: float
    x: tuple[int, ...]


def power(rows: Rows, mixer: str, cost: str, axis: str) -> Power:
    """Fit the upper half of a curve, at least three points; all of a state that does not grow."""
    what, field = COSTS[cost]
    of = (what, mixer, axis)
    least = SMALLEST_PEAK if cost == "memory" else 0
    found = [row for row in rows if (row["what"], row["mixer"], row["axis"]) == of]
    found = sorted((row for row in found if row.get(field, 0) > least), key=lambda row: row["x"])
    if len(found) < 3:
        raise LookupError(f"fewer than three points of {cost} along {axis} for {mixer}")
    constant = axis == "position" and len({row["state_bytes"] for row in found}) == 1
    upper = found[0 if constant else min(len(found) // 2, len(found) - 3) :]
    x, y = zip(*((row["x"], row[field]) for row in upper), strict=True)
    return Power(round(exponent(x, y), 4) + 0.0, x)


def _exponent(mixer: str, cost: str, axis: str, **bound: float) -> Target:
    name = f"{mixer}: {cost}, exponent in {axis}"
    return Target(name, lambda rows: power(rows, mixer, cost, axis).value, **bound)  # type: ignore[arg-type]


TARGETS = (
    *(_exponent(name, "time", "L", at_most=1.15) for name in ("ea-2", "ea-6", "la")),
    _exponent("sa-math", "memory", "L", at_least=1.7),
    *(
        _exponent(name, cost, "position", at_most=0.05)
        for name in ("ea-2", "ea-6")
        for cost in ("decoding time", "state bytes")
    ),
)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the paper's complexity and the measured exponents of training and of decoding."""

    def powers(mixer: str, cost: str, axes: str) -> Iterator[str]:
        for axis in axes:
            series = SERIES if axis == "t" and mixer.startswith("ea-") else mixer
            found = _power(rows, series, cost, axis)
            yield "" if found is None else f"{round(found.value, 2) + 0.0:.2f}"

    training, decoding = [], []
    for name, paper in PAPER["complexity"].items():
        if any(row["mixer"] == name for row in rows) and name != SERIES:
            of_time, of_memory = (powers(name, cost, "LDt") for cost in ("time", "memory"))
            training.append([name, paper.time, *of_time, paper.memory, *of_memory])
            costs = (*powers(name, "decoding time", "p"), *powers(name, "state bytes", "p"))
            decoding.append([name, paper.inference, *costs])
    head = ["mechanism", "time", "L", "D", "t", "memory", "L", "D", "t"]
    how = (
        "Time and memory are the paper's; then, measured here, the power with which the cost grows"
        " with L tokens, D channels, and t, the order of an EA-series."
    )
    yield Table("Training", head, training, [how, *differences(rows)])
    head = ["mechanism", "inference", "time, p", "state bytes, p"]
    how = "Inference is the paper's; then the powers of p, the position of the token decoded."
    yield Table("Decoding", head, decoding, [how])


def _power(rows: Rows, mixer: str, cost: str, axis: str) -> Power | None:
    """Return a power where there are enough points; the axis p is the position."""
    try:
        return power(rows, mixer, cost, "position" if axis == "p" else axis)
    except LookupError:
        return None


def differences(rows: Rows) -> Iterator[str]:
    """Yield where exponents differ from the paper's, and points that could not be measured."""
    for mixer, paper in PAPER["complexity"].items():
        found = []
        for cost, terms in paper.exponents.items():
            for axis, said in terms.split():
                fitted = _power(rows, mixer, cost, axis)
                # A constant cost cannot shrink: an exponent below 0 is noise.
                if fitted is None or abs(max(fitted.value, 0.0) - int(said)) <= TOLERANCE:
                    continue
                where = f"{axis} = {fitted.x[0]} to {fitted.x[-1]}"
                line = f"{cost} grows as {axis}^{fitted.value:.2f} ({where}), not {axis}^{said}"
                reason = REASONS.get((mixer, cost, axis))
                found.append(line + (f", because {reason}" if reason else ""))
        if found:
            yield f"{mixer}: {'; '.join(found)}."
    for row in rows_of(rows, "memory"):
        if "reason" in row:
            yield f"{row['mixer']}, L = {row['L']}, D = {row['D']}: {row['reason']}."


def draw(rows: Sequence[Row]) -> Chart | None:
    """Draw training time and memory along L, and decoding time and state along the position."""
    panels = []
    for cost, title, label, unit in (
        ("time", "(a) Training, time", "ms", 1e-3),
        ("memory", "(b) Training, peak extra memory", "MiB", 2**20),
        ("decoding time", "(c) Decoding, time per token", "µs", 1e-6),
        ("state bytes", "(d) Decoding, size of the state", "KiB", 2**10),
    ):
        what, field = COSTS[cost]
        axis = "position" if what == "decoding" else "L"
        found = [r for r in rows_of(rows, what) if r["axis"] == axis and r.get(field, 0) > 0]
        found.sort(key=lambda row: list(LOOKS).index(row["mixer"]))
        points = [{"series": r["mixer"], "x": r["x"], "y": r[field] / unit} for r in found]
        if points:
            x = "L, tokens" if axis == "L" else "position, tokens before"
            panels.append(lines(title, points, x=x, y=label, log="xy"))
    return Chart(panels) if panels else None


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield who is faster than EA-6 at the largest size that both were measured at."""
    for what, axis, verb in (("time", "L", "trains"), ("decoding", "position", "decodes")):
        found = group((r for r in rows_of(rows, what) if r["axis"] == axis), "mixer")
        curves = {mixer: {r["x"]: r["p50"] for r in own} for mixer, own in found.items()}
        ours = curves.get("ea-6", {})
        for mixer, points in curves.items():
            x = max(points.keys() & ours.keys(), default=None)
            if x is not None and not mixer.startswith("ea-") and better(points[x], ours[x]):
                by = f"{ours[x] / points[x]:.2f} ×"
                yield f"`{mixer}` {verb} faster than EA-6 at {axis} = {x:,}: by {by}."
