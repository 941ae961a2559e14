"""Features of q and k in PyTorch. The scan that sums them knows only the protocol `Features`.

Either side of the kernel K(q, k) = sum_n c_n f_n(q) f_n(k) is a chain: a `point`, all that is
needed of a token, and its `first` element, from which the others are products. Sums are relative to
a shift, the running minimum of the keys' `magnitude`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion, Quadrature

LOG2E = 1 / math.log(2)  # exp2 is up to three times as fast as exp, which may go through MKL
GAUSSIAN_ROOT = 2.0**36  # Gaussian features are kept times the square of this

Pair = Callable[[int], Tensor]  # n -> (s_n, z_n) [2, ...], overwritten by the next
Chain = tuple[Any, Tensor]  # point, first
GaussianPoint = tuple[Tensor, Tensor, Callable[[Tensor], Tensor], float]  # see _chain


class Features(Protocol):
    """Interface of an expansion for the scan."""

    c: list[float]
    shifts: bool  # whether sums are relative to a shift, because `magnitude` is not always 0
    min_den: float  # a smaller den comes from keys too far away to have a gradient

    def magnitude(self, k: Tensor) -> Tensor:
        """Per-key magnitude whose running minimum is the shift."""

    def key(self, k: Tensor, m: Tensor) -> Chain:
        """The chain of keys, relative to the shift m."""

    def query(self, q: Tensor) -> Chain:
        """The chain of queries, times any factor: it cancels between num and den."""

    def bounded(self, chain: Chain, weight: Tensor) -> Chain:
        """The chain of queries such that no f_n times the weight is infinite."""

    def slope(self, k: Tensor) -> Tensor:
        """d/dk log of the factor common to all f_n(k), which `read` does not differentiate."""

    def terms(self, point: Any, first: Tensor) -> Iterator[tuple[int, Tensor]]:
        """n and f_n, each overwritten by the next."""

    def read(
        self, point: Any, first: Tensor, pair: Pair, *, slope: bool = False
    ) -> tuple[Tensor, Tensor]:
        """sum_n c_n f_n pair(n), n as in `terms`, and with `slope` its derivative: [2, B, C, D]."""


def features(expansion: Expansion, dtype: torch.dtype) -> Features:
    """Return the features of an expansion, for sums in `dtype`."""
    if isinstance(expansion, Quadrature):
        return GaussianFeatures(expansion, dtype)
    return TaylorFeatures(expansion.order, dtype)


def decay(old: Tensor, new: Tensor) -> Tensor:
    """e^-|old^2 - new^2|, which moves a sum from shift `old` to `new`; both must be finite.

    Written as a product: a difference of rounded squares loses 1e-2 at |k| = 1e3.
    """
    return (old - new).abs_().mul_(old + new).mul_(-LOG2E).exp2_()


def empty_shift(dtype: torch.dtype) -> float:
    """Finite stand-in for the infinite shift of an empty state, as inf - inf would be NaN."""
    return math.sqrt(torch.finfo(dtype).max) / 4


class TaylorFeatures:
    """e^(2qk) = sum_n c_n q^n k^n (Eq. 4), beside the weight e^(-k^2).

    For k the chain starts at the weight relative to the shift. For q it starts at
    max(1, |q|)^-order, which keeps the result from overflow; the cap keeps den from underflow in
    turn.
    """

    shifts = True

    def __init__(self, order: int, dtype: torch.dtype) -> None:
        self.c = [2.0**n / math.factorial(n) for n in range(order + 1)]  # Eq. 7
        self.min_den = 0.0
        self.order = order
        self.cap = torch.finfo(dtype).max ** (0.8 / max(order, 1))

    def magnitude(self, k: Tensor) -> Tensor:
        return k.abs()

    def key(self, k: Tensor, m: Tensor) -> Chain:
        return k, decay(k.abs(), m)

    def query(self, q: Tensor) -> Chain:
        return q, q.abs().clamp_(1.0, self.cap).pow_(-self.order)

    def bounded(self, chain: Chain, weight: Tensor) -> Chain:
        return chain

    def slope(self, k: Tensor) -> Tensor:
        return k * -2

    def terms(self, point: Tensor, first: Tensor) -> Iterator[tuple[int, Tensor]]:
        """first * x^n, n = 0..order (Eq. 10, Eq. 11)."""
        f = first.clone()
        yield 0, f
        for n in range(1, self.order + 1):
            yield n, f.mul_(point)

    def read(
        self, point: Tensor, first: Tensor, pair: Pair, *, slope: bool = False
    ) -> tuple[Tensor, Tensor]:
        f, value = first.clone(), first * pair(0)
        derivative = torch.zeros_like(value) if slope else value
        for n in range(1, self.order + 1):
            sums = pair(n)
            if slope:
                derivative.addcmul_(f, sums, value=n * self.c[n])
            value.addcmul_(f.mul_(point), sums, value=self.c[n])
        return value, derivative


class GaussianFeatures:
    """f_m(x) = e^-2(x - u_m)^2 at nodes u_m = m h: their products sum to e^-(q-k)^2.

    As f_(m+1) / f_m = X e^-2h^2(2m + 1) with X = e^(4hx), powers of X walking outward from the
    central node replace one exponential per node. Features are kept times GAUSSIAN_ROOT^2, or the
    first would be 0 for |x| > 6.6: the factor cancels in y for queries, and is divided out for
    keys. x is clamped to `reach`, and has the gradient of the clamped value, so that training can
    bring it back.
    """

    shifts = False

    def __init__(self, expansion: Quadrature, dtype: torch.dtype) -> None:
        self.middle, self.reach = expansion.nodes // 2, expansion.reach
        # As rounded to dtype, since powers are taken of it.
        self.step = float(
            torch.tensor(4 * expansion.radius / self.middle, dtype=dtype, device="cpu")
        )
        h = self.step / 4
        self.c = [1.0] * expansion.nodes
        wide = dtype == torch.float64
        self.min_den, self.max_product = (0.0, 1e300) if wide else (1e-34, 1e32)
        # Smallest feature of a query at the two outer nodes, so that den is never 0. Too small to
        # matter while some key is within 9.
        self.edge_floor = 0.0 if wide else 1e-21
        self.ratio = [math.exp(-2 * h * h * (2 * m + 1)) for m in range(self.middle)]

    def magnitude(self, k: Tensor) -> Tensor:
        return torch.zeros_like(k)  # no feature underflows near its node

    def key(self, k: Tensor, m: Tensor) -> Chain:
        return self._chain(k, lambda f: f * GAUSSIAN_ROOT**-2)

    def query(self, q: Tensor) -> Chain:
        return self._chain(q, lambda f: f, self.edge_floor)

    def bounded(self, chain: Chain, weight: Tensor) -> Chain:
        """Limit f_n to max_product / weight.

        The weight, a gradient / den, grows with the distance to all keys, and its product with f_n
        may be infinite at a node near the query. No key is near that node, so any limit is right
        that leaves room for the sum of millions.
        """
        (up, down, *_), first = chain
        limit = self.max_product / weight.abs()
        return (up, down, limit.minimum, 0.0), first

    def _chain(self, x: Tensor, finish: Callable[[Tensor], Tensor], floor: float = 0.0) -> Chain:
        """X, 1 / X, a function applied to every element, and the floor of the outer nodes."""
        x = self._clamp(x)
        power = (x * self.step).mul_(LOG2E)
        root = (x * x).mul_(-LOG2E).add_(math.log2(GAUSSIAN_ROOT)).exp2_()
        return (torch.exp2(power), torch.exp2(-power), finish, floor), root.square()

    def slope(self, k: Tensor) -> Tensor:
        return self._clamp(k).mul_(-4)

    def terms(self, point: GaussianPoint, first: Tensor) -> Iterator[tuple[int, Tensor]]:
        up, down, finish, floor = point
        right, left = first, first
        yield self.middle, finish(first)
        for i, ratio in enumerate(self.ratio, 1):
            right, left = (right * up).mul_(ratio), (left * down).mul_(ratio)
            if floor and i == self.middle:
                right, left = right.clamp(min=floor), left.clamp(min=floor)
            yield self.middle + i, finish(right)
            yield self.middle - i, finish(left)

    def read(
        self, point: GaussianPoint, first: Tensor, pair: Pair, *, slope: bool = False
    ) -> tuple[Tensor, Tensor]:
        terms = self.terms(point, first)
        n, f = next(terms)
        value = f * pair(n)
        derivative = torch.zeros_like(value) if slope else value
        for n, f in terms:
            sums = pair(n)
            value.addcmul_(f, sums)
            if slope:
                derivative.addcmul_(f, sums, value=(n - self.middle) * self.step)
        return value, derivative

    def _clamp(self, x: Tensor) -> Tensor:
        return x.clamp(-self.reach, self.reach)
