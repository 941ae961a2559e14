"""Which functions of q and k make up the kernel: powers, as in the paper, or positive bells.

An expansion is a name with numbers; `ops.features` evaluates it in PyTorch, `native/` in C++.
"""

from dataclasses import dataclass
from typing import ClassVar

MAX_ORDER = 16
NODES = range(5, 34, 2)
MAX_RADIUS = 6.5  # e^-2x^2 there is the least that float32 holds in full
USUAL = 0.5  # spacing of nodes: weights are within 1e-4
BEYOND = 1.5  # the grid, and in native/quadrature.h
FARTHEST = 8.0  # of q and k, as e^-2x^2 times 2^72 must be a float32
COARSEST = 1.0  # at which they are off by a fifth already


@dataclass(frozen=True)
class Taylor:
    """e^(2qk) to the even power `order` (Eq. 4): cheap, and close to EA while |2qk| is small.

    >>> Taylor(6).terms
    7
    """

    order: int = 6
    radius: ClassVar[float] = 0.0  # there is no grid

    def __post_init__(self) -> None:
        check_order(self.order)

    @property
    def terms(self) -> int:
        """N, of a state [B, D, N]."""
        return self.order + 1

    def __str__(self) -> str:
        return str(self.order)


@dataclass(frozen=True)
class Quadrature:
    """e^-(q-k)^2 as the sum over `nodes` u of e^-2(q-u)^2 e^-2(k-u)^2: EA itself, to 1e-4.

    Nodes are even in [-radius, radius], by default half a unit apart; q and k should lie in there,
    or at least the middle of q and the keys near it: with that at the edge half a bell is missing,
    and weights are a fifth too small. What lies beyond `reach` counts as there. Weights are
    positive, and accurate in float32 while some key is within 9 of q; farther, y leans on the keys
    near the edges.

    >>> Quadrature(25)
    Quadrature(nodes=25, radius=6.0)
    """

    nodes: int = 17
    radius: float = None  # type: ignore[assignment]  # never None once it is made

    def __post_init__(self) -> None:
        if isinstance(self.nodes, bool) or not isinstance(self.nodes, int):
            raise TypeError(f"nodes must be an int, got {type(self.nodes).__name__}")
        if self.nodes not in NODES:
            raise ValueError(
                f"nodes must be odd and between {NODES[0]} and {NODES[-1]}, got {self.nodes}"
            )
        given: object = self.radius
        radius = self._usual() if given is None else given
        if isinstance(radius, bool) or not isinstance(radius, int | float):
            raise TypeError(f"radius must be a number, got {type(radius).__name__}")
        object.__setattr__(self, "radius", float(radius))
        widest = min((self.nodes // 2) * COARSEST, MAX_RADIUS)
        if not 0 < self.radius <= widest:
            raise ValueError(
                f"radius must be above 0 and at most {widest:g} for {self.nodes} nodes,"
                f" got {self.radius:g}"
            )

    def _usual(self) -> float:
        return min(self.nodes // 2 * USUAL, MAX_RADIUS)

    @property
    def terms(self) -> int:
        """N, of a state [B, D, N]."""
        return self.nodes

    @property
    def reach(self) -> float:
        """Where q and k are cut off: outside of the grid, where bells are still to be felt."""
        return min(self.radius + BEYOND, FARTHEST)

    def __str__(self) -> str:
        return f"q{self.nodes}" + ("" if self.radius == self._usual() else f"r{self.radius:g}")


Expansion = Taylor | Quadrature


def check_order(order: int) -> None:
    if isinstance(order, bool) or not isinstance(order, int):
        raise TypeError(f"order must be an int, got {type(order).__name__}")
    if order < 0 or order % 2 or order > MAX_ORDER:
        raise ValueError(f"order must be even and between 0 and {MAX_ORDER}, got {order}")


TAYLOR = {order: Taylor(order) for order in range(0, MAX_ORDER + 1, 2)}


def chosen(order: int, expansion: Expansion | None) -> Expansion:
    """The expansion, or the Taylor expansion of this order if there is none."""
    if expansion is None:
        check_order(order)
        return TAYLOR[order]
    if not isinstance(expansion, Taylor | Quadrature):
        raise TypeError(
            f"expansion must be eattn.Taylor or eattn.Quadrature, got {type(expansion).__name__}"
        )
    return expansion


def of(terms: int, radius: float) -> Expansion:
    """The expansion with these numbers, which say all of it."""
    return Quadrature(terms, radius) if radius else TAYLOR[terms - 1]
