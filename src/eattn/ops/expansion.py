"""Expansions of the kernel exp(-(q - k)^2) into a sum of products.

An expansion names the features of q and k; it holds numbers only. `ops.features` evaluates the
features in PyTorch, the CPU and GPU kernels evaluate them in C++ and Triton.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

MAX_ORDER = 16
NODE_COUNTS = range(5, 1026, 2)
DEFAULT_SPACING = 0.5  # weights are within 1e-4 of exact EA
MAX_SPACING = 1.0  # weights are up to 17 % off here
# Numbers that are repeated in native/quadrature.h and native/grid.cpp:
DENSE_NODES = 33  # more nodes are evaluated within CUTOFF of x only
CUTOFF = 4.0
SMALL_RADIUS = 6.5  # beyond it exp(-2x^2) is denormal in float32
CLAMP_MARGIN = 1.5  # q and k are clamped this far outside the grid
MAX_SMALL_REACH = 8.0  # exp(-2x^2) * 2^72 must not underflow in float32


@dataclass(frozen=True)
class Taylor:
    """Taylor polynomial of exp(2qk), the expansion of the paper (Eq. 4).

    Cheap, and close to exact EA while abs(2qk) is small.

    Parameters
    ----------
    order : int, default 6
        Highest power, even, from 0 to 16. An even order keeps all weights positive.

    Examples
    --------
    >>> Taylor(6).terms
    7
    """

    order: int = 6
    radius: ClassVar[float] = 0.0  # Taylor has no grid
    wide: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_order(self.order)

    @property
    def terms(self) -> int:
        """Number of features N; a state has shape [B, D, N]."""
        return self.order + 1

    def __str__(self) -> str:
        return str(self.order)


@dataclass(frozen=True)
class Quadrature:
    """Gaussian features on an even grid over [-radius, radius].

    Approximates exp(-(q - k)^2) by the sum over nodes u of exp(-2(q - u)^2) exp(-2(k - u)^2).
    At a spacing of 0.5 the weights are within 1.1e-4 of exact EA; at a spacing of 1 they are up to
    17 % off, and the grid has twice the range for the same state. All weights are positive, so the
    output always lies between the smallest and the largest value.

    Parameters
    ----------
    nodes : int, default 17
        Number of nodes, odd, from 5 to 1025. Up to 33 nodes, all features are evaluated. With more,
        only those within 4 of x are: the cost per token does not depend on the number of nodes.
    radius : float, optional
        Half-width of the grid, at most (nodes - 1) / 2, a spacing of 1. By default nodes are 0.5
        apart, and the radius of up to 33 nodes is at most 6.5.

    Notes
    -----
    q and k are clamped to `reach`, 1.5 outside the grid. They should lie at least 1 inside its
    edge, where half of a Gaussian is missing and weights are up to a fifth too small.

    Weights are accurate while some key is near each query: within 5 with more than 33 nodes.
    With fewer nodes, in float32, within 9 on a radius of at most 6.5, and within 8 on a larger
    one. A query farther from all keys reads the nearest written node on each side. Its output is
    finite, lies between the values, and equals v if there is only one key; the gradient of q is 0.

    Examples
    --------
    >>> Quadrature(25)
    Quadrature(nodes=25, radius=6.0)
    >>> Quadrature(25, 12).spacing
    1.0
    """

    nodes: int = 17
    radius: float = None  # type: ignore[assignment]  # a float after __post_init__

    def __post_init__(self) -> None:
        if isinstance(self.nodes, bool) or not isinstance(self.nodes, int):
            raise TypeError(f"nodes must be an int, got {type(self.nodes).__name__}")
        if self.nodes not in NODE_COUNTS:
            raise ValueError(
                f"nodes must be odd and between {NODE_COUNTS[0]} and {NODE_COUNTS[-1]},"
                f" got {self.nodes}"
            )
        given: object = self.radius
        radius = self._default_radius() if given is None else given
        if isinstance(radius, bool) or not isinstance(radius, int | float):
            raise TypeError(f"radius must be a number, got {type(radius).__name__}")
        object.__setattr__(self, "radius", float(radius))
        widest = (self.nodes // 2) * MAX_SPACING
        if not 0 < self.radius <= widest:
            raise ValueError(
                f"radius must be above 0 and at most {widest:g} for {self.nodes} nodes,"
                f" got {self.radius:g}"
            )

    def _default_radius(self) -> float:
        radius = self.nodes // 2 * DEFAULT_SPACING
        return min(radius, SMALL_RADIUS) if self.nodes <= DENSE_NODES else radius

    @property
    def terms(self) -> int:
        """Number of features N; a state has shape [B, D, N]."""
        return self.nodes

    @property
    def spacing(self) -> float:
        """Distance between neighbouring nodes."""
        return self.radius / (self.nodes // 2)

    @property
    def wide(self) -> bool:
        """True if features are computed node by node, because the centre may be far from x."""
        return self.nodes > DENSE_NODES or self.radius > SMALL_RADIUS

    @property
    def cutoff(self) -> float:
        """Distance from a node at which its feature becomes 0; inf for up to 33 nodes."""
        return CUTOFF if self.nodes > DENSE_NODES else math.inf

    @property
    def reach(self) -> float:
        """Bound that q and k are clamped to."""
        reach = self.radius + CLAMP_MARGIN
        return reach if self.wide else min(reach, MAX_SMALL_REACH)

    def __str__(self) -> str:
        default = self.radius == self._default_radius()
        return f"q{self.nodes}" + ("" if default else f"r{self.radius:g}")


Expansion = Taylor | Quadrature


class _DefaultOrder(int):
    """Type of `DEFAULT_ORDER`, which distinguishes the default from an explicit order of 6."""


DEFAULT_ORDER = _DefaultOrder(6)


def check_order(order: int) -> None:
    """Raise unless `order` is even and within range."""
    if isinstance(order, bool) or not isinstance(order, int):
        raise TypeError(f"order must be an int, got {type(order).__name__}")
    if order < 0 or order % 2 or order > MAX_ORDER:
        raise ValueError(f"order must be even and between 0 and {MAX_ORDER}, got {order}")


_TAYLOR = {order: Taylor(order) for order in range(0, MAX_ORDER + 1, 2)}


def resolve_expansion(
    order: int | None = DEFAULT_ORDER, expansion: Expansion | None = None
) -> Expansion:
    """Return `expansion`, or the Taylor expansion of this order if it is None."""
    if expansion is None:
        if order is DEFAULT_ORDER:
            return _TAYLOR[6]
        check_order(order)  # type: ignore[arg-type]
        return _TAYLOR[order]  # type: ignore[index]
    if not isinstance(expansion, Taylor | Quadrature):
        raise TypeError(
            f"expansion must be eattn.Taylor or eattn.Quadrature, got {type(expansion).__name__}"
        )
    if order is not DEFAULT_ORDER:
        raise ValueError(
            f"order and expansion cannot be combined, got order={order!r} and {expansion!r}"
        )
    return expansion


def expansion_from_terms(terms: int, radius: float) -> Expansion:
    """Return the expansion with this number of terms; a radius of 0 means Taylor."""
    return Quadrature(terms, radius) if radius else _TAYLOR[terms - 1]
