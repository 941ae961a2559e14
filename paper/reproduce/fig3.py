"""`eattn reproduce fig3`: e^x beside its Taylor polynomials, how far off they are, and their sign.

The paper's Figure 3 shows orders 2 and 6. Its text needs an even order, so that every weight is
positive, and its recurrence (Eq. 7) ends at t - 1, which is odd: so both are put side by side.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from paper.bench import show
from paper.bench.measure import Row
from paper.report import fig3 as picture
from paper.report import plots
from paper.reproduce import publish, significant

Array = NDArray[np.float64]
ORDERS = (2, 6)  # the paper's
HIGHEST, MOST = 16, 5  # the operator's range; as many as a picture can tell apart
X = np.linspace(-6, 4, 201)
NEAR = np.array([0.001, 0.003, 0.005, 0.01, 0.02, 0.03])
X = np.sort([*X, *NEAR, *-NEAR])  # on a log axis the error falls steeply towards 0
POINTS = (-4, -2, -1, 1, 2, 4)
SIGMAS = (0.5, 1.0)
PAIRS, SEED = 2**20, 0  # of q and k, drawn to count negative weights


def run(console: Console, out: Path, *, orders: Sequence[int] = ORDERS) -> list[Path]:
    """Rows to out/fig3.jsonl, a picture from that file, and the facts on the console."""
    orders = check(orders)
    plots.need_matplotlib()
    path = publish("fig3", measure(orders), out)
    files = [path, *picture.redraw(path)]
    for fact in facts(plots.read_rows(path)):
        console.print(fact)
    return files


def parse(text: str) -> tuple[int, ...]:
    """`2,6` -> (2, 6)."""
    try:
        orders = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"orders must be numbers with commas, like 2,6, got {text!r}") from None
    return check(orders)


def check(orders: Sequence[int]) -> tuple[int, ...]:
    """Sorted, each once; raises unless all are even and can be drawn together."""
    wrong = [order for order in orders if order % 2 or not 2 <= order <= HIGHEST]
    if wrong or not 1 <= len(set(orders)) <= MOST:
        raise ValueError(
            f"orders must be 1 to {MOST} even numbers from 2 to {HIGHEST}, got {list(orders)}"
        )
    return tuple(sorted(set(orders)))


def measure(orders: Sequence[int]) -> Iterator[Row]:
    """e^x, then each order and the odd one below it; last, where 2qk lies for normal q and k."""
    yield {"what": "exp", "x": significant(X, 4), "y": significant(np.exp(X), 6)}
    product = normal_product()
    for order in sorted({*orders, *(order - 1 for order in orders)}):
        y = taylor(X, order)
        yield {
            "what": "polynomial",
            "order": order,
            "x": significant(X, 4),
            "y": significant(y, 6),
            "error": significant(relative_error(X, order), 4),
            "error_at": error_at_points(order),
            **sign(order),
            "negative_share": float((taylor(2 * product, order) < 0).mean()),
            "pairs": PAIRS,
            "seed": SEED,
        }
    for sigma in SIGMAS:
        bound = float(np.quantile(abs(2 * sigma**2 * product), 0.9))
        yield {"what": "range of 2qk", "sigma": sigma, "share": 0.9, "bound": round(bound, 3)}


def taylor(x: Array, order: int) -> Array:
    """P(x) = sum_n x^n / n! by Horner's rule (Eq. 4); here the order may be odd."""
    p = np.ones_like(x)
    for n in range(order, 0, -1):
        p = 1 + p * x / n
    return p


def relative_error(x: Array, order: int) -> Array:
    """|P(x) / e^x - 1|."""
    return abs(taylor(x, order) / np.exp(x) - 1)


def error_at_points(order: int) -> dict[str, float]:
    """P(x) / e^x - 1 by x, with its sign; keys are text, as JSON has them."""
    x = np.array(POINTS, dtype=np.float64)
    errors = significant(taylor(x, order) / np.exp(x) - 1, 4)
    return dict(zip(map(str, POINTS), errors, strict=True))


def sign(order: int) -> Row:
    """The least value of an even polynomial and its place; where an odd one crosses zero.

    P' is the polynomial of one order less, so an even one is least where that one is zero. An odd
    one has no least value: it rises everywhere, from minus infinity.
    """
    if order % 2:
        return {"zero": round(zero(order), 6), "minimum": None, "minimum_at": None}
    x = zero(order - 1)
    least = float(taylor(np.array(x), order))
    return {"zero": None, "minimum": round(least, 6), "minimum_at": round(x, 6)}


def zero(order: int) -> float:
    """The only zero of an odd polynomial, by bisection."""
    low, high = -order - 1.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if taylor(np.array(middle), order) < 0 else (low, middle)
    return high


def normal_product() -> Array:
    """q k for standard normal q and k, independent: PAIRS of them."""
    q, k = np.random.default_rng(SEED).standard_normal((2, PAIRS))
    return np.asarray(q * k)


def facts(rows: Sequence[Row]) -> list[Table]:
    """What the picture says, in numbers."""
    signs = show.table("sign", "least value", "zero at", "negative weights")
    signs.caption = f"of {PAIRS:,} pairs, q and k standard normal"
    errors = show.table("P(x) / e^x - 1", *(f"x = {x}" for x in POINTS))
    for row in rows:
        if row["what"] == "polynomial":
            name = f"order {row['order']}"
            signs.add_row(name, *_sign_cells(row))
            errors.add_row(name, *map(_short, row["error_at"].values()))
    return [signs, errors]


def _sign_cells(row: Row) -> list[str]:
    least = "none" if row["minimum"] is None else f"{row['minimum']:.3g} at {row['minimum_at']:.2f}"
    crossing = "never" if row["zero"] is None else f"{row['zero']:.3f}"
    return [least, crossing, f"{100 * row['negative_share']:.1f} %"]


def _short(error: float) -> str:
    return f"{error:+.3g}" if abs(error) >= 1e-3 else f"{error:+.0e}"
