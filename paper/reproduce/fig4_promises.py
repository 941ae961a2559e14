"""What is promised of training BERT-base, judged from the rows of Figure 4.

Memory is what a step adds to weights and gradients, at batch 1.
"""

from collections.abc import Callable, Iterator

from paper.bench.measure import Row, exponent
from paper.bench.target import Promise, Rows, find


def exponents(rows: Rows) -> Iterator[Row]:
    """The b of memory = a L^b, for every mixer with three points."""
    for mixer in dict.fromkeys(row["mixer"] for row in rows if row["what"] == "memory"):
        points = [
            (row["L"], row["peak_bytes"])
            for row in rows
            if row["what"] == "memory" and row["mixer"] == mixer and "peak_bytes" in row
        ]
        if len(points) >= 3:
            x, y = zip(*points, strict=True)
            yield {"mixer": mixer, "of": "memory", "value": round(exponent(x, y), 4), "points": x}


def _ratio(what: str, field: str, above: Row, below: Row) -> Callable[[Rows], float]:
    """`field` of one measured point over that of another."""

    def value(rows: Rows) -> float:
        a, b = (find(rows, what=what, batch=1, **point).get(field) for point in (above, below))
        if a is None or b is None:
            raise LookupError(f"no {field} at {above} or {below}")
        return float(a / b)

    return value


def _exponent(rows: Rows) -> float:
    return float(find(rows, what="exponent", mixer="ea-6")["value"])


def _at(mixer: str, length: int) -> Row:
    return {"mixer": mixer, "L": length}


_EA, _SA = _at("ea-6", 8192), _at("sa", 8192)
_LEAN = _ratio("memory", "peak_bytes", _EA, _SA)
_MATH = _ratio("memory", "peak_bytes", _at("sa-math", 2048), _at("ea-6", 2048))
_FAST = _ratio("time", "tokens_per_second", _EA, _SA)
_STEADY = _ratio("time", "tokens_per_second", _EA, _at("ea-6", 1024))

PROMISES = (
    Promise("L = 8192: memory, EA-6 / SA", _LEAN, 1.1),
    Promise("EA-6: memory, exponent in L", _exponent, 1.05, unit=""),
    Promise("L = 2048: memory, SA materialised / EA-6", _MATH, 3.0, at_most=False),
    Promise("L = 8192: tokens/s, EA-6 / SA", _FAST, 2.5, at_most=False),
    Promise("EA-6: tokens/s, L = 8192 / L = 1024", _STEADY, 0.9, at_most=False),
)
