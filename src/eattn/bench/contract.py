"""What the operator promises, as ratios of rows measured in one run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from eattn.bench.measure import Row

Rows = Sequence[Row]
SHAPE = (1, 16384, 768)  # [B, L, D] the promises are made for: float32, causal
SERIES = (1, 1 << 20, 8)
ORDER = 6


@dataclass(frozen=True)
class Promise:
    """`value` of the rows is to be at most (or at least) `must`, and better still `goal`."""

    name: str
    value: Callable[[Rows], float]
    must: float
    goal: float | None
    at_most: bool = True
    unit: str = "×"

    def verdict(self, value: float) -> str:
        """The best of `goal`, `must`, `miss` that holds."""
        for name, bound in (("goal", self.goal), ("must", self.must)):
            if bound is not None and (value <= bound if self.at_most else value >= bound):
                return name
        return "miss"


def find(rows: Rows, **fields: object) -> Row:
    """The row with these fields, not one of a growth curve unless asked; or LookupError."""
    fields = {"grows": None} | fields
    for row in rows:
        if all(row.get(name) == value for name, value in fields.items()):
            return row
    raise LookupError(f"no row with {fields}")


def judge(rows: Rows) -> Iterator[Row]:
    """A row for every promise the rows can answer."""
    for promise in PROMISES:
        try:
            value = promise.value(rows)
        except LookupError:  # too few cores, or a plan that left it out
            continue
        yield {
            "what": "ratio",
            "name": promise.name,
            "value": value,
            "unit": promise.unit,
            "must": promise.must,
            "goal": promise.goal,
            "at_most": promise.at_most,
            "verdict": promise.verdict(value),
        }


def _over_limit(causal: bool) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        ours = find(rows, what="forward", who="ours", causal=causal, order=ORDER)
        return ours["p50"] / find(rows, what="forward", who="limit")["p50"]

    return value


def _training_beside(who: str) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        ours, other = (find(rows, what="forward+backward", who=name) for name in ("ours", who))
        return other["p50"] / ours["p50"]

    return value


def _order_6_over_2(rows: Rows) -> float:
    six, two = (find(rows, what="forward", who="ours", causal=True, order=n) for n in (6, 2))
    return six["p50"] / two["p50"]


def _peak_in_tensors(rows: Rows) -> float:
    row = find(rows, what="forward+backward", who="ours")
    if row["peak_bytes"] is None:
        raise LookupError("peak memory was not measured")
    return row["peak_bytes"] / (4 * prod(row["shape"]))


def _two_threads(what: str) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        one, two = (find(rows, grows="threads", what=what, threads=n) for n in (1, 2))
        return one["p50"] / two["p50"]

    return value


def _call_overhead(rows: Rows) -> float:
    calls = [row for row in rows if row["what"] == "call"]
    if not calls:
        raise LookupError("no calls were measured")
    return max(row["p50"] - row["arithmetic"] for row in calls) * 1e6


PROMISES = (
    Promise("forward / streaming limit", _over_limit(causal=True), 2.0, 1.2),
    Promise("forward+backward: paper's code / ours", _training_beside("paper"), 80, 150, False),
    Promise("forward+backward: SDPA / ours", _training_beside("sdpa"), 45, 90, False),
    Promise("forward: EA-6 / EA-2", _order_6_over_2, 1.5, 1.2),
    Promise("forward+backward: peak extra memory", _peak_in_tensors, 10, 8, unit=" [B,L,D]"),
    Promise("non-causal forward / streaming limit", _over_limit(causal=False), 2.0, 1.2),
    Promise("long series, forward: 1 thread / 2", _two_threads("forward"), 1.6, None, False),
    Promise(
        "long series, forward+backward: 1 / 2", _two_threads("forward+backward"), 1.6, None, False
    ),
    Promise("inference call above its arithmetic", _call_overhead, 30, None, unit=" µs"),
)
