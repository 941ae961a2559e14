"""What the operator promises, as ratios of rows measured in one run."""

from collections.abc import Callable
from math import prod

from paper.bench.measure import Row
from paper.bench.target import Promise, Rows, find

SHAPE = (1, 16384, 768)  # [B, L, D] the promises are made for: float32, causal
SERIES = (1, 1 << 20, 8)
ORDER = 6
NODES = 25
TERMS = (7, 13, 17)


def _main(rows: Rows, what: str, who: str, **fields: object) -> Row:
    """The row at the main shape, not one of a growth curve."""
    return find(rows, grows=None, what=what, who=who, **fields)


def _over_limit(causal: bool) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        ours = _main(rows, "forward", "ours", causal=causal, order=ORDER)
        return ours["p50"] / _main(rows, "forward", "limit")["p50"]

    return value


def _training_beside(who: str) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        ours, other = (_main(rows, "forward+backward", name) for name in ("ours", who))
        return other["p50"] / ours["p50"]

    return value


def _order_6_over_2(rows: Rows) -> float:
    six, two = (_main(rows, "forward", "ours", causal=True, order=n) for n in (6, 2))
    return six["p50"] / two["p50"]


def _peak_in_tensors(rows: Rows) -> float:
    row = _main(rows, "forward+backward", "ours")
    if row["peak_bytes"] is None:
        raise LookupError("peak memory was not measured")
    return row["peak_bytes"] / (4 * prod(row["shape"]))


def _two_threads(what: str) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        one, two = (find(rows, grows="threads", what=what, threads=n) for n in (1, 2))
        return one["p50"] / two["p50"]

    return value


def _bells_over_powers(what: str, terms: int) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        at = dict(grows="terms", what=what, order=terms - 1)
        bells, powers = (find(rows, who=who, **at) for who in ("quadrature", "ours"))
        return bells["p50"] / powers["p50"]

    return value


def _quadrature_beside_sdpa(rows: Rows) -> float:
    bells, sdpa = (_main(rows, "forward+backward", who) for who in ("quadrature", "sdpa"))
    return sdpa["p50"] / bells["p50"]


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
    *(
        Promise(f"{what}: quadrature / Taylor, {terms} terms", _bells_over_powers(what, terms), 1.5)
        for terms in TERMS
        for what in ("forward", "forward+backward")
    ),
    Promise(
        f"forward+backward: SDPA / quadrature of {NODES}", _quadrature_beside_sdpa, 10, None, False
    ),
)
