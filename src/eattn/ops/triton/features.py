"""Expansions in Triton: how q and k become features. The scan (scan.py) knows only this.

As in ops.features, either side of K(q, k) = sum_n c_n f_n(q) f_n(k) is a chain: what to multiply by
to go on (`up`, and `down` for the nodes left of the centre), and the first element. `E` is a
`Numbers`: the compiler sees an expansion's number of terms and its tables as constants.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def decay(old, new, E: tl.constexpr):
    """e^-|old^2 - new^2|, as a product: a difference of rounded squares loses its digits."""
    if E.bells:
        return tl.full(old.shape, 1.0, E.real)  # bells have no shift
    else:
        return tl.exp2(-tl.abs(old - new) * (old + new) * LOG2E)


@triton.jit
def constant(value: tl.constexpr, like, E: tl.constexpr):
    """A number in every lane, to all its digits: a bare one may be rounded to float32."""
    return tl.full(like.shape, value, E.real)


@triton.jit
def size(k, E: tl.constexpr):
    """The shift is the least of it."""
    if E.bells:
        return tl.zeros_like(k)
    else:
        return tl.abs(k)


@triton.jit
def key(k, m, E: tl.constexpr):
    """The chain of keys, relative to the shift m: up, down, first; bells are raised by E.root^2."""
    if E.bells:
        return _bells(_inside(k, E), E)
    else:
        return k, k, decay(tl.abs(k), m, E)


@triton.jit
def query(q, E: tl.constexpr):
    """The chain of queries, times anything: it cancels between num and den.

    Powers start at max(1, |q|)^-order, which keeps them from overflow; the cap keeps den from
    underflow in turn. Bells are raised by E.root^2.
    """
    if E.bells:
        return _bells(_inside(q, E), E)
    else:
        a = tl.abs(q)
        a = tl.where(a < 1.0, 1.0, tl.where(a > E.cap, E.cap, a))
        return q, q, tl.exp2(tl.log2(a) * (1.0 - E.terms))


@triton.jit
def slope(k, E: tl.constexpr):
    """d/dk log of what all f_n(k) have in common, and `read_slope` does not differentiate."""
    if E.bells:
        return _inside(k, E) * -4.0
    else:
        return k * -2.0


@triton.jit
def features(up, down, first, E: tl.constexpr):
    """f_0, ..., f_(N-1) (Eq. 10, Eq. 11), or the bells outward from the central node."""
    N: tl.constexpr = E.terms
    f = (first,)
    if E.bells:
        left = first
        right = first
        for i in tl.static_range(N // 2):
            left = left * (down * E.table[i])
            right = right * (up * E.table[i])
            f = (left,) + f + (right,)
    else:
        for n in tl.static_range(1, N):
            f = f + (f[n - 1] * up,)
    return f


@triton.jit
def felt(f, E: tl.constexpr):
    """Features of a query as it reads: of the edges it feels something, so that den is no 0."""
    if E.edge > 0:
        N: tl.constexpr = E.terms
        all = ()
        for n in tl.static_range(N):
            if n == 0 or n == N - 1:
                all = all + (tl.where(f[n] < E.edge, E.edge, f[n]),)
            else:
                all = all + (f[n],)
        return all
    else:
        return f


@triton.jit
def bounded(f, a, E: tl.constexpr):
    """Features of a query as it is summed with the weight a, such that none of it is infinite.

    As large as a is where all keys are far, f_n a is at a node near the query. No key that it reads
    is near that node, or den would not be small: any bound does that leaves room
    for the sum of millions.
    """
    if E.bells:
        N: tl.constexpr = E.terms
        a = tl.abs(a)
        most = E.most / tl.where(a < 1.0, 1.0, a)
        all = ()
        for n in tl.static_range(N):
            all = all + (tl.where(f[n] > most, most, f[n]),)
        return all
    else:
        return f


@triton.jit
def least(gy, E: tl.constexpr):
    """A den no larger than this is of keys too far away to have a gradient, or it would be inf."""
    if E.bells:
        den = tl.abs(gy) * E.smallest
        den = tl.where(den == float("inf"), 0.0, den)
        return tl.where(den < E.tiny, E.tiny, den)
    else:
        return tl.zeros_like(gy)


@triton.jit
def read(f, sums, E: tl.constexpr):
    """sum_n c_n f_n sums_n (Eq. 14, Eq. 15)."""
    N: tl.constexpr = E.terms
    total = f[0] * sums[0]  # c_0 = 1
    for n in tl.static_range(1, N):
        if E.bells:
            total += f[n] * sums[n]
        else:
            total += f[n] * E.table[n] * sums[n]
    return total


@triton.jit
def read_slope(f, sums, E: tl.constexpr):
    """Its derivative, without that of what all f_n have in common."""
    N: tl.constexpr = E.terms
    total = tl.zeros_like(f[0])
    for n in tl.static_range(N):
        if E.bells:
            if n != N // 2:
                total += f[n] * ((n - N // 2) * E.step) * sums[n]
        else:
            if n > 0:
                total += f[n - 1] * (n * E.table[n]) * sums[n]
    return total


@triton.jit
def _inside(x, E: tl.constexpr):
    """What lies beyond the reach counts as there; NaN stays NaN."""
    reach = constant(E.reach, x, E)
    return tl.where(x > reach, reach, tl.where(x < -reach, -reach, x))


@triton.jit
def _bells(x, E: tl.constexpr):
    """e^(4hx), its inverse, and e^(-2x^2) E.root^2, by way of its root: alone it may be 0.

    Powers are taken of these, so what rounding took from the exponents is put back.
    """
    step2 = constant(E.step2, x, E)
    log2e = constant(E.log2e, x, E)
    power = x * step2
    missed = (tl.fma(x, step2, -power) + x * E.step2_low) * LN2
    up = tl.exp2(power)
    down = tl.exp2(-power)
    square = x * x
    lost = tl.fma(x, x, -square)
    exponent = -square * log2e
    rest = tl.fma(-square, log2e, -exponent) - square * E.log2e_low - lost * log2e
    root = tl.exp2(exponent)
    root = (root + root * (rest * LN2)) * E.root
    return up + up * missed, down - down * missed, root * root
