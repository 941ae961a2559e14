"""Figure 3: eˣ and its Taylor polynomials.

The series replaces the exponential by a polynomial. The panels show how close it is, where most
products 2qk fall, and why the order must be even. The paper's figure shows orders 2 and 6. Its text
needs an even order, so that every weight is positive, but its recurrence (Eq. 7) ends at t − 1,
which is odd. Both are shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from paper.harness.chart import DASHED, GREY, INK, PALETTE, SOFT, Chart, Look, Panel, bars, lines
from paper.harness.measure import significant
from paper.harness.runlog import Row, RunLog, find_row, rows_of
from paper.harness.table import Table, percent

TITLE = "Figure 3: eˣ and its Taylor polynomials"
PAPER: dict[str, Any] = {
    "claims": (
        "Weights must be positive, so the order is even.",
        "The polynomials follow eˣ near 0, where activations are expected to stay.",
    )
}

Array = NDArray[np.float64]
ORDERS = (2, 6)  # each is compared with the odd order below it
NEAR = np.array([0.001, 0.003, 0.005, 0.01, 0.02, 0.03])  # the error falls steeply towards 0
X = np.sort([*np.linspace(-6, 4, 201), *NEAR, *-NEAR])
POINTS = (-4, -2, -1, 1, 2, 4)
SIGMAS = (0.5, 1.0)
PAIRS, SEED = 2**20, 0  # pairs of q and k, drawn to count negative weights
LEAST = 1e-5  # %, the smallest error that is drawn


@dataclass(frozen=True)
class Plan:
    """Nothing to choose."""


def plan(quick: bool) -> Plan:
    """Return the only plan, which takes a second."""
    return Plan()


def rows(plan: Plan, log: RunLog) -> Iterator[Row]:
    """Evaluate eˣ, the polynomials, and the range of 2qk for normal q and k."""
    for row in evaluate(ORDERS):
        key = {name: row.get(name) for name in ("what", "order", "sigma")}
        yield from log.measure(key, lambda row=row: row)  # type: ignore[misc]


def evaluate(orders: Sequence[int]) -> Iterator[Row]:
    """Yield eˣ, then each order and the odd one below it, then the range of 2qk."""
    yield {"what": "exp", "x": significant(X, 4), "y": significant(np.exp(X), 6)}
    q, k = np.random.default_rng(SEED).standard_normal((2, PAIRS))
    points = np.array(POINTS, dtype=np.float64)
    for order in sorted({*orders, *(order - 1 for order in orders)}):
        at_points = significant(relative_error(points, order), 4)
        yield {
            "what": "polynomial",
            "order": order,
            "x": significant(X, 4),
            "y": significant(taylor(X, order), 6),
            "error": significant(abs(relative_error(X, order)), 4),
            "error_at": dict(zip(map(str, POINTS), at_points, strict=True)),
            **sign(order),
            "negative_share": float((taylor(2 * q * k, order) < 0).mean()),
            "pairs": PAIRS,
            "seed": SEED,
        }
    for sigma in SIGMAS:
        bound = float(np.quantile(abs(2 * sigma**2 * q * k), 0.9))
        yield {"what": "range of 2qk", "sigma": sigma, "share": 0.9, "bound": round(bound, 3)}


def taylor(x: Array, order: int) -> Array:
    """Compute P(x) = Σ xⁿ / n! by Horner's rule (Eq. 4); here the order may be odd."""
    p = np.ones_like(x)
    for n in range(order, 0, -1):
        p = 1 + p * x / n
    return p


def relative_error(x: Array, order: int) -> Array:
    """Compute P(x) / eˣ − 1."""
    return taylor(x, order) / np.exp(x) - 1


def sign(order: int) -> Row:
    """Return the minimum of an even polynomial, or where an odd one crosses zero.

    P' is the polynomial of one order less, so an even polynomial is least where that one is zero.
    An odd polynomial rises everywhere, from minus infinity.
    """
    if order % 2:
        return {"zero": round(zero(order), 6), "minimum": None, "minimum_at": None}
    x = zero(order - 1)
    least = float(taylor(np.array(x), order))
    return {"zero": None, "minimum": round(least, 6), "minimum_at": round(x, 6)}


def zero(order: int) -> float:
    """Return the only zero of an odd polynomial, by bisection."""
    low, high = -order - 1.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if taylor(np.array(middle), order) < 0 else (low, middle)
    return high


def polynomials(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of polynomials by their order."""
    return sorted(rows_of(rows, "polynomial"), key=lambda row: int(row["order"]))


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the sign of every polynomial, and its error at some points."""
    signs, errors = [], []
    for row in polynomials(rows):
        least, where = row["minimum"], row["minimum_at"]
        minimum = "none" if least is None else f"{least:.3g} at {where:.2f}"
        crossing = "never" if row["zero"] is None else f"{row['zero']:.3f}"
        share = f"{100 * row['negative_share']:.1f} %"
        signs.append([name(row), minimum, crossing, share])
        errors.append([name(row), *map(_short, row["error_at"].values())])
    note = f"Negative weights: of {PAIRS:,} pairs, q and k standard normal."
    yield Table("Sign", ["order", "minimum", "zero at", "negative weights"], signs, [note])
    yield Table("P(x) / eˣ − 1", ["order", *(f"x = {x}" for x in POINTS)], errors)


def losses(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the error of each even polynomial where many products fall."""
    for row in polynomials(rows):
        if row["order"] % 2 == 0:
            error = percent(abs(row["error_at"]["-2"]))
            yield f"At 2qk = −2 the polynomial of order {row['order']} is {error} off eˣ."


def draw(rows: Sequence[Row]) -> Chart:
    """Draw values, errors, signs, and the share of negative weights."""
    found = polynomials(rows)
    exp = find_row(rows, what="exp")
    even = [row for row in found if row["order"] % 2 == 0]
    looks = {"eˣ": Look(GREY)}
    for row, colour in zip(even, cycle(PALETTE), strict=False):
        looks |= {f"order {row['order'] - 1}": Look(colour, DASHED), name(row): Look(colour)}
    style: dict[str, Any] = {"looks": looks, "markers": False}
    axes: dict[str, Any] = {"x": "x (= 2qk)", "y": "value"}
    points = _points([exp, *even], "y", (-4, 3), (-0.5, 15))
    values = lines("(a) Near 0 the polynomials follow eˣ", points, **axes, **style)
    errors = _errors(even, rows_of(rows, "range of 2qk"), style)
    points = _points([exp, *found], "y", (-6, 1), (-3, 3))
    title = "(c) Even orders stay positive, odd ones cross zero"
    signs = lines(title, points, **axes, **style)
    ground = alt.Chart(alt.Data(values=[{}])).mark_rule(color=INK).encode(y=alt.datum(0))
    signs = replace(signs, body=alt.layer(ground, signs.body))
    shares = []
    for row in found:
        share = row["negative_share"]
        text = percent(share) if share else "none"
        shares.append({"series": name(row), "y": 100 * share, "text": text})
    title = "(d) Negative weights, q and k standard normal"
    return Chart([values, errors, signs, bars(title, shares, x="% of weights", looks=looks)])


def _errors(even: Sequence[Row], ranges: Sequence[Row], style: dict[str, Any]) -> Panel:
    """Draw relative errors over the range that holds 90 % of 2qk for normal q and k."""
    points = _points(even, "error", (-4, 4), (0, 1e4))
    points = [point | {"y": max(100 * point["y"], LEAST)} for point in points]
    label = "x (= 2qk; grey: 90 % of normal q and k)"
    panel = lines("(b) Error relative to eˣ", points, x=label, y="error, %", log="y", **style)
    bands = [
        {"low": -row["bound"], "high": row["bound"], "text": f"σ = {row['sigma']:g}"}
        for row in ranges
    ]
    chart = alt.Chart(alt.Data(values=bands)).encode(x=alt.X("low:Q", title=label))
    grey = chart.mark_rect(color=SOFT, opacity=0.12).encode(x2="high:Q")
    sigma = chart.mark_text(align="left", baseline="top", dx=3, dy=3, color=INK)
    sigma = sigma.encode(y=alt.value(0), text="text:N")
    return replace(panel, body=alt.layer(grey, panel.body, sigma))


def name(row: Row) -> str:
    return f"order {row['order']}" if row["what"] == "polynomial" else "eˣ"


def _points(
    rows: Sequence[Row], field: str, x_range: tuple[float, float], y_range: tuple[float, float]
) -> list[Row]:
    """Return the points of curves that lie within a panel."""
    return [
        {"series": name(row), "x": x, "y": y}
        for row in rows
        for x, y in zip(row["x"], row[field], strict=True)
        if x_range[0] <= x <= x_range[1] and y_range[0] <= y <= y_range[1]
    ]


def _short(error: float) -> str:
    return f"{error:+.3g}" if abs(error) >= 1e-3 else f"{error:+.0e}"
