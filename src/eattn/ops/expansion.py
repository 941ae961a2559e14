"""The expansion: which functions of q and k make up the kernel. What sums them knows only this."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

LOG2E = 1 / math.log(2)  # exp2 is up to three times as fast as exp, which may go through MKL

Pair = Callable[[int], Tensor]  # n -> (s_n, z_n) [2, ...], overwritten by the next


class Taylor:
    """The expansion, e^(2qk) = sum_n c_n q^n k^n (Eq. 4). The scan knows no more of it than this.

    Either side of the kernel is a chain first * x^n. For k it starts at the weight relative to the
    shift. For q it starts at max(1, |q|)^-order, which cancels between num and den and keeps what
    is read with it from overflow; the cap keeps den from underflow in turn.
    """

    def __init__(self, order: int, dtype: torch.dtype) -> None:
        self.c = [2.0**n / math.factorial(n) for n in range(order + 1)]  # Eq. 7
        self.order = order
        self.cap = torch.finfo(dtype).max ** (0.8 / max(order, 1))

    def query(self, q: Tensor) -> Tensor:
        return q.abs().clamp_(1.0, self.cap).pow_(-self.order)

    def decay(self, old: Tensor, new: Tensor) -> Tensor:
        """e^-|old^2 - new^2|, as a product: a difference of rounded squares loses its digits."""
        return (old - new).abs_().mul_(old + new).mul_(-LOG2E).exp2_()

    def terms(self, x: Tensor, first: Tensor) -> Iterator[Tensor]:
        """first * x^n, n = 0..order (Eq. 10, Eq. 11), each overwritten by the next."""
        f = first.clone()
        yield f
        for _ in range(self.order):
            yield f.mul_(x)

    def read(
        self, x: Tensor, first: Tensor, pair: Pair, *, slope: bool = False
    ) -> tuple[Tensor, Tensor]:
        """sum_n c_n first x^n pair(n), and if asked for its derivative in x: [2, B, C, D] each."""
        f, value = first.clone(), first * pair(0)
        derivative = torch.zeros_like(value) if slope else value
        for n in range(1, self.order + 1):
            sums = pair(n)
            if slope:
                derivative.addcmul_(f, sums, value=n * self.c[n])
            value.addcmul_(f.mul_(x), sums, value=self.c[n])
        return value, derivative


def far(dtype: torch.dtype) -> float:
    """Stands for the infinite shift of no keys in here, where inf - inf would be NaN."""
    return math.sqrt(torch.finfo(dtype).max) / 4
