"""Exponents of Table 1: the b of cost = a x^b, and what is promised of them.

They are fitted to the upper half of a curve, where what grows has outgrown what does not.
"""

from collections.abc import Callable, Iterator, Sequence

from paper.bench.measure import Row, exponent
from paper.bench.target import Promise, Rows, find

SMALLEST_PEAK = 2**19  # bytes; below it the pages that happen to be free show


def exponents(rows: Rows) -> Iterator[Row]:
    """The b of cost = a x^b for every curve that has three points."""
    curves = {(row["mixer"], row["axis"]) for row in rows if "axis" in row}
    for mixer, axis in sorted(curves):
        if axis == "position":
            of = [("decoding time", "decoding", "p50"), ("state bytes", "decoding", "state_bytes")]
        else:
            of = [("time", "time", "p50"), ("memory", "memory", "peak_bytes")]
        for name, what, field in of:
            points = curve_of(rows, what, mixer, axis, field)
            if len(points) >= 3:
                yield {"mixer": mixer, "axis": axis, "of": name} | fit(points)


def curve_of(rows: Rows, what: str, mixer: str, axis: str, field: str) -> list[tuple[int, float]]:
    """The points to fit: the upper half, at least three; all of a state that does not grow."""
    of = {"what": what, "mixer": mixer, "axis": axis}
    found = [row for row in rows if field in row and all(row.get(n) == v for n, v in of.items())]
    least = SMALLEST_PEAK if field == "peak_bytes" else 0
    found = [row for row in found if row[field] > least]
    constant = axis == "position" and len({row["state_bytes"] for row in found}) == 1
    upper = 0 if constant else min(len(found) // 2, len(found) - 3)
    return [(row["x"], row[field]) for row in found[max(0, upper) :]]


def fit(points: Sequence[tuple[int, float]]) -> Row:
    x, y = zip(*points, strict=True)
    return {"value": round(exponent(x, y), 4) + 0.0, "points": x}


def _of(mixer: str, of: str, axis: str) -> Callable[[Rows], float]:
    def value(rows: Rows) -> float:
        return float(find(rows, what="exponent", mixer=mixer, of=of, axis=axis)["value"])

    return value


def _promises() -> Iterator[Promise]:
    for name in ("ea-2", "ea-6", "la"):
        yield Promise(f"{name}: time, exponent in L", _of(name, "time", "L"), 1.15, unit="")
    value = _of("sa-math", "memory", "L")
    yield Promise("sa-math: memory, exponent in L", value, 1.7, at_most=False, unit="")
    for name in ("ea-2", "ea-6"):
        for of in ("decoding time", "state bytes"):
            value = _of(name, of, "position")
            yield Promise(f"{name}: {of}, exponent in position", value, 0.05, unit="")


PROMISES = tuple(_promises())
