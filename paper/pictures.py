"""Pictures of the documentation: measured rows, curves of the operator, and a drawing of the state.

Each picture is narrow enough for a phone. `python -m paper results` writes them.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from eattn.ops.expansion import Quadrature
from paper.harness.chart import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LOOKS,
    RULE,
    SOFT,
    VERMILLION,
    Chart,
    Look,
    Panel,
    base,
    lines,
)
from paper.harness.experiment import PAPER, result
from paper.harness.runlog import matches

ASSETS = PAPER.parent / "docs" / "assets"
NAMES = {"ea-6": "EA-6", "sa": "softmax attention"}
FORMS = {"EA": Look(GREY), "EA-6": LOOKS["ea-6"], "EA-2": LOOKS["ea-2"]}
KEY, QUERY = -0.6, 0.8  # of the drawing of a grid
SEEN = 3.0  # half of the grid that is drawn
DIGITS = 6  # of computed values, which are then equal on all CPUs


def write(folder: Path = ASSETS) -> list[Path]:
    """Write all pictures and return the files."""
    files = [Chart([panel]).save(folder / f"{name}.svg") for name, panel in panels()]
    drawing = folder / "state.svg"
    drawing.write_text(state(), encoding="utf-8")
    return [*files, drawing]


def panels() -> Iterator[tuple[str, Panel]]:
    """Yield the name and the panel of each chart."""
    yield from decoding()
    yield "weights-near", weights(0.5)
    yield "weights-far", weights(2.0)
    yield "grid", grid()


def decoding() -> Iterator[tuple[str, Panel]]:
    """Yield time per token and bytes of the state against the position, as measured (Figure 5)."""
    at = {"what": "latency", "batch": 1}
    rows = [r for r in result("fig5").rows if matches(r, at) and r["mixer"] in NAMES]
    looks = {name: LOOKS[mixer] for mixer, name in NAMES.items()}
    for title, name, field, unit, y, log in (
        ("Time per token", "time", "p50", 1e-3, "ms", "x"),
        ("Size of the state", "state", "state_bytes", 2**20, "MiB", "xy"),
    ):
        points = [
            {"series": NAMES[row["mixer"]], "x": row["position"], "y": row[field] / unit}
            for row in rows
            if field in row
        ]
        panel = lines(title, points, x="tokens so far", y=y, log=log, looks=looks)
        yield f"decoding-{name}", panel


def weights(q: float) -> Panel:
    """Draw the weight of a key against k: exact (Eq. 2) and by Taylor polynomials (Eq. 4)."""
    points = []
    for k in np.linspace(-3, 4, 141):
        exact = math.exp(-((q - k) ** 2))
        points.append({"series": "EA", "x": round(k, 3), "y": round(exact, DIGITS)})
        for order in (6, 2):
            taylor = sum((2 * q * k) ** n / math.factorial(n) for n in range(order + 1))
            y = math.exp(-(q**2) - k**2) * taylor
            points.append({"series": f"EA-{order}", "x": round(k, 3), "y": round(y, DIGITS)})
    return lines(
        f"Weight of a key, q = {q:g}", points, x="k", y="weight", looks=FORMS, markers=False
    )


def grid() -> Panel:
    """Draw the features of one key and one query at the nodes of a grid, and their product."""
    looks = {
        "written by a key": Look(VERMILLION),
        "read by a query": Look(BLUE),
        "product": Look(GREEN),
    }
    spacing = Quadrature(25).spacing

    def points(places: np.ndarray) -> list[dict[str, object]]:
        k, q = (np.exp(-2 * (at - places) ** 2) for at in (KEY, QUERY))
        curves = zip(looks, (k, q, k * q), strict=True)
        return [
            {"series": name, "x": round(float(x), 3), "y": round(float(y), DIGITS)}
            for name, curve in curves
            for x, y in zip(places, curve, strict=True)
        ]

    x = alt.X("x:Q", title="node u").axis(values=[-3, -2, -1, 0, 1, 2, 3])
    encoding: dict[str, Any] = {"x": x, "y": alt.Y("y:Q", title="feature"), "color": "series:N"}
    curve = base(points(np.linspace(-SEEN, SEEN, 121))).encode(**encoding)
    nodes = base(points(np.arange(-SEEN, SEEN + spacing / 2, spacing))).encode(**encoding)
    layers = curve.mark_line(strokeWidth=1.5), nodes.mark_point(filled=True, size=36, opacity=1)
    return Panel(
        f"A key at {KEY:g} and a query at {QUERY:g}".replace("-", "−"), alt.layer(*layers), looks
    )


def state() -> str:
    """Return a drawing of tokens that go through the state, as SVG."""
    parts = []
    for i, x in enumerate((70, 210, 350)):
        n = ("i − 1", "i", "i + 1")[i]
        parts += [
            _box(x, 20, 96, f"k, v of {n}", RULE),
            _arrow(x + 48, 56, x + 48, 92),
            _box(x, 96, 96, "s, z", BLUE),
            _arrow(x + 48, 132, x + 48, 168),
            _box(x, 172, 96, f"y of {n}", RULE),
            _arrow(x - 44, 114, x - 4, 114),
        ]
    parts.append(_arrow(446, 114, 486, 114))
    for y, text in ((78, "accumulate"), (154, "read out with q")):
        parts.append(f'<text x="128" y="{y}" fill="{SOFT}" font-size="12">{text}</text>')
    style = 'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13"'
    size = 'width="500" height="226" viewBox="0 0 500 226"'
    ground = '<rect width="500" height="226" fill="#ffffff"/>'
    body = "\n".join([ground, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def _box(x: int, y: int, width: int, text: str, colour: str) -> str:
    size = f'x="{x}" y="{y}" width="{width}" height="34" rx="6"'
    middle = f'x="{x + width // 2}" y="{y + 22}" text-anchor="middle"'
    return (
        f'<rect {size} fill="none" stroke="{colour}" stroke-width="1.5"/>'
        f'<text {middle} fill="{INK}">{text}</text>'
    )


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    """Draw an arrow to the right or down."""
    dx, dy = (8, 0) if to_x > x else (0, 8)
    ends = [(to_x - dx - sign * dy / 2, to_y - dy - sign * dx / 2) for sign in (1, -1)]
    head = f"M{ends[0][0]} {ends[0][1]}L{to_x} {to_y}L{ends[1][0]} {ends[1][1]}"
    line = f"M{x} {y}L{to_x} {to_y}{head}"
    return f'<path d="{line}" fill="none" stroke="{SOFT}" stroke-width="1.5"/>'
