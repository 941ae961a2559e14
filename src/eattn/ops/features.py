"""Features of q and k in PyTorch. The scan that sums them uses only the protocol `Features`.

The kernel is K(q, k) = sum_n c_n f_n(q) f_n(k). The features f_n of a token form a chain: a `first`
feature, and a `point` that holds the factors from one feature to the next. Sums are relative to a
shift, the running minimum of the keys' `magnitude`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from eattn.ops.expansion import Expansion, Quadrature

LOG2E = 1 / math.log(2)  # exp2 is up to three times faster than exp, which may call MKL
GAUSSIAN_ROOT = 2.0**36  # Gaussian features are multiplied by the square of this

Pair = Callable[[int], Tensor]  # n -> (s_n, z_n) [2, ...]; the next call overwrites it
Chain = tuple[Any, Tensor]  # point, first
GaussianPoint = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]  # see _chain


class Features(Protocol):
    """Interface of an expansion for the scan."""

    c: list[float]
    min_den: float  # below this den all keys are too far away to have a gradient

    def magnitude(self, k: Tensor) -> Tensor:
        """Per-key magnitude whose running minimum is the shift."""

    def key(self, k: Tensor, m: Tensor) -> Chain:
        """Return the chain of keys, relative to the shift m."""

    def query(self, q: Tensor) -> Chain:
        """Return the chain of queries, up to a factor that cancels between num and den."""

    def bounded(self, chain: Chain, weight: Tensor) -> Chain:
        """Limit the chain of queries so that no f_n times the weight is infinite."""

    def slope(self, k: Tensor) -> Tensor:
        """Return d/dk log of the common factor of all f_n(k), which `read` treats as constant."""

    def terms(self, point: Any, first: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield n and f_n; the next iteration overwrites f_n."""

    def read(
        self, point: Any, first: Tensor, pair: Pair, *, slope: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return sum_n c_n f_n pair(n) and, with `slope`, its derivative: [2, B, C, D] each.

        `pair` is called in the order of `terms`.
        """

    def read_far(self, q: Tensor, value: Tensor, sums: Iterable[tuple[int, Tensor]]) -> Tensor:
        """Return num and den: `value`, or another reading of queries that have no key near.

        `sums` yields n and (s_n, z_n).
        """


def features(expansion: Expansion, dtype: torch.dtype) -> Features:
    """Return the features of an expansion, for sums in `dtype`."""
    if isinstance(expansion, Quadrature):
        return GaussianFeatures(expansion, dtype)
    return TaylorFeatures(expansion.order, dtype)


def decay(old: Tensor, new: Tensor) -> Tensor:
    """Return e^-|old^2 - new^2|, which moves a sum from shift `old` to `new`; both are finite.

    The exponent is a product: a difference of rounded squares is off by 1e-2 at |k| = 1e3.
    """
    return (old - new).abs_().mul_(old + new).mul_(-LOG2E).exp2_()


def empty_shift(dtype: torch.dtype) -> float:
    """Return a finite stand-in for the infinite shift of an empty state: inf - inf is NaN."""
    return math.sqrt(torch.finfo(dtype).max) / 4


def smallest_den(dtype: torch.dtype) -> float:
    """Return the den below which a query has no key near, and the z of a node without keys."""
    return 1e-290 if dtype == torch.float64 else 1e-30


class TaylorFeatures:
    """Powers: e^(2qk) = sum_n c_n q^n k^n (Eq. 4). The weight e^(-k^2) is part of the key features.

    For k the chain starts at the weight relative to the shift. For q it starts at
    max(1, |q|)^-order, which prevents overflow; the cap on |q| prevents underflow of den.
    """

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
        """Yield first * x^n for n = 0..order (Eq. 10, Eq. 11)."""
        f = first.clone()
        yield 0, f
        for n in range(1, self.order + 1):
            yield n, f.mul_(point)

    def read_far(self, q: Tensor, value: Tensor, sums: Iterable[tuple[int, Tensor]]) -> Tensor:
        return value

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
    """Gaussians f_m(x) = e^-2(x - u_m)^2 at nodes u_m = m h. Their products sum to e^-(q-k)^2.

    Since f_(m+1) / f_m = X e^-2h^2(2m + 1) with X = e^(4hx), features are computed outward from the
    central node as powers of X, without an exponential per node. Features are multiplied by
    GAUSSIAN_ROOT^2, or the central one would underflow for |x| > 6.6. The factor cancels in y for
    queries and is divided out for keys. x is clamped to `reach`; its gradient is that of the
    clamped value, not 0, so that training can move x back onto the grid.
    """

    def __init__(self, expansion: Quadrature, dtype: torch.dtype) -> None:
        self.middle, self.reach = expansion.nodes // 2, expansion.reach
        # Rounded to dtype, because features are powers of e^(step x).
        self.step = float(
            torch.tensor(4 * expansion.radius / self.middle, dtype=dtype, device="cpu")
        )
        h = self.step / 4
        self.c = [1.0] * expansion.nodes
        self.min_den = smallest_den(dtype)
        self.max_product = 1e300 if dtype == torch.float64 else 1e32
        self.ratio = [math.exp(-2 * h * h * (2 * m + 1)) for m in range(self.middle)]

    def magnitude(self, k: Tensor) -> Tensor:
        return torch.zeros_like(k)  # no shift: features near their node do not underflow

    def key(self, k: Tensor, m: Tensor) -> Chain:
        return self._chain(k, lambda f: f * GAUSSIAN_ROOT**-2)

    def query(self, q: Tensor) -> Chain:
        return self._chain(q, lambda f: f)

    def bounded(self, chain: Chain, weight: Tensor) -> Chain:
        """Limit f_n to max_product / weight.

        The weight gy / den grows with the distance to the nearest key, and its product with f_n may
        overflow at a node near the query. No key is near that node, so the limit does not change
        the result; it must only leave room for a sum over millions of tokens.
        """
        (up, down, _), first = chain
        limit = self.max_product / weight.abs()
        return (up, down, limit.minimum), first

    def _chain(self, x: Tensor, finish: Callable[[Tensor], Tensor]) -> Chain:
        """Return ((X, 1 / X, function applied to every feature), first)."""
        x = self._clamp(x)
        power = (x * self.step).mul_(LOG2E)
        root = (x * x).mul_(-LOG2E).add_(math.log2(GAUSSIAN_ROOT)).exp2_()
        return (torch.exp2(power), torch.exp2(-power), finish), root.square()

    def slope(self, k: Tensor) -> Tensor:
        return self._clamp(k).mul_(-4)

    def terms(self, point: GaussianPoint, first: Tensor) -> Iterator[tuple[int, Tensor]]:
        up, down, finish = point
        right, left = first, first
        yield self.middle, finish(first)
        for i, ratio in enumerate(self.ratio, 1):
            right, left = (right * up).mul_(ratio), (left * down).mul_(ratio)
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

    def read_far(self, q: Tensor, value: Tensor, sums: Iterable[tuple[int, Tensor]]) -> Tensor:
        """Return num and den of queries; where `value` has no key near, read other nodes.

        They read the nearest written node on each side. `sums` yields n and (s_n, z_n).
        """
        q = self._clamp(q)
        far = value[1] <= self.min_den
        sides = [(torch.full_like(value[1], torch.inf), torch.zeros_like(value)) for _ in range(2)]
        for n, pair in sums:
            offset = (n - self.middle) * self.step / 4 - q
            distance = offset.abs().masked_fill(pair[1] <= self.min_den, torch.inf)
            for i, side in enumerate((offset <= 0, offset > 0)):
                nearest, found = sides[i]
                closer = side & (distance < nearest)
                sides[i] = distance.where(closer, nearest), pair.where(closer, found)
        least = torch.minimum(sides[0][0], sides[1][0])
        read = torch.zeros_like(value)
        for nearest, pair in sides:
            f = torch.exp((least - nearest) * (least + nearest) * 2).masked_fill(nearest.isinf(), 0)
            read = read + f * pair
        return read.where(far, value)

    def _clamp(self, x: Tensor) -> Tensor:
        return x.clamp(-self.reach, self.reach)
