"""What is promised of generating with BERT-base, judged from the rows of Figure 5."""

from collections.abc import Callable
from itertools import pairwise

from paper.bench.measure import Row
from paper.bench.target import Promise, Rows, find

EARLY, LATE = 256, 16384  # positions


def _field(rows: Rows, what: str, name: str, **point: object) -> float:
    value = find(rows, what=what, **point).get(name)
    if value is None:
        raise LookupError(f"no {name} at {point}")
    return float(value)


def _total(row: Row) -> float:
    """Weights and all above them."""
    return float(row["model_bytes"] + row["peak_bytes"])


def _worst(growth: Callable[[Rows, int], float]) -> Callable[[Rows], float]:
    """Of EA-6, over all batch sizes."""

    def value(rows: Rows) -> float:
        batches = {row["batch"] for row in rows if row["what"] == "latency"}
        if not batches:
            raise LookupError("no batch size was measured")
        return max(growth(rows, batch) for batch in batches)

    return value


def _latency(rows: Rows, batch: int) -> float:
    early, late = (
        _field(rows, "latency", "p50", mixer="ea-6", batch=batch, position=p) for p in (EARLY, LATE)
    )
    return late / early


def _state(rows: Rows, batch: int) -> float:
    early, late = (
        _field(rows, "latency", "state_bytes", mixer="ea-6", batch=batch, position=p)
        for p in (EARLY, LATE)
    )
    return late / early


def _memory(rows: Rows, batch: int) -> float:
    points = [
        find(rows, what="memory", mixer="ea-6", batch=batch, position=p) for p in (EARLY, LATE)
    ]
    if any("peak_bytes" not in row for row in points):
        raise LookupError(f"no memory of EA-6 at batch {batch}")
    early, late = map(_total, points)
    return late / early


def _gap(rows: Rows, position: int) -> float:
    """How many times longer SA takes at batch 8."""
    sa, ea = (
        _field(rows, "latency", "p50", mixer=mixer, batch=8, position=position)
        for mixer in ("sa", "ea-6")
    )
    return sa / ea


def _growth(rows: Rows) -> float:
    """The least by which the gap grows from a position to the next."""
    timed = (r for r in rows if r["what"] == "latency" and r["batch"] == 8 and "p50" in r)
    positions = sorted({row["position"] for row in timed if row["mixer"] == "sa"})
    if len(positions) < 2:
        raise LookupError("no two positions of SA at batch 8")
    gaps = [_gap(rows, position) for position in positions]
    return min(later / earlier for earlier, later in pairwise(gaps))


PROMISES = (
    Promise(f"EA-6: time per token at {LATE} / at {EARLY}", _worst(_latency), 1.05),
    Promise(f"EA-6: state bytes at {LATE} / at {EARLY}", _worst(_state), 1.0),
    Promise(f"EA-6: memory at {LATE} / at {EARLY}", _worst(_memory), 1.02),
    Promise(
        f"batch 8, position {LATE}: SA / EA-6", lambda rows: _gap(rows, LATE), 8.0, at_most=False
    ),
    Promise("batch 8: least growth of SA / EA-6", _growth, 1.0, at_most=False),
)
