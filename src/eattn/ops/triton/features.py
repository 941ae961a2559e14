"""Features of q and k in Triton, and the equations for one token. The scan uses only these.

As in ops.features, the features f_n of K(q, k) = sum_n c_n f_n(q) f_n(k) form a chain: the first
feature, and the factors from one feature to the next (`up`, and `down` for nodes left of the
centre). `E` is a `Numbers`, so that the number of terms and the tables are compile-time constants.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def decay(old, new, E: tl.constexpr):
    """Return e^-|old^2 - new^2|; a product is accurate, a difference of rounded squares is not."""
    if E.gaussian:
        return tl.full(old.shape, 1.0, E.real)  # Gaussian features have no shift
    else:
        return tl.exp2(-tl.abs(old - new) * (old + new) * LOG2E)


@triton.jit
def constant(value: tl.constexpr, like, E: tl.constexpr):
    """Return a number in every lane, in full precision; a literal may be rounded to float32."""
    return tl.full(like.shape, value, E.real)


@triton.jit
def magnitude(k, E: tl.constexpr):
    """Return the per-key magnitude whose running minimum is the shift."""
    if E.gaussian:
        return tl.zeros_like(k)
    else:
        return tl.abs(k)


@triton.jit
def key(k, m, E: tl.constexpr):
    """Return the chain of keys relative to the shift m: up, down, first."""
    if E.gaussian:
        return _gaussian_chain(_clamp(k, E), E)
    else:
        return k, k, decay(tl.abs(k), m, E)


@triton.jit
def query(q, E: tl.constexpr):
    """Return the chain of queries, up to a factor that cancels between num and den.

    Powers start at max(1, |q|)^-order, which prevents overflow; the cap on |q| prevents underflow
    of den. Gaussian features are multiplied by E.root^2.
    """
    if E.gaussian:
        return _gaussian_chain(_clamp(q, E), E)
    else:
        a = tl.abs(q)
        a = tl.where(a < 1.0, 1.0, tl.where(a > E.cap, E.cap, a))
        return q, q, tl.exp2(tl.log2(a) * (1.0 - E.terms))


@triton.jit
def slope(k, E: tl.constexpr):
    """Return d/dk log of the common factor of all f_n(k), constant in `read_slope`."""
    if E.gaussian:
        return _clamp(k, E) * -4.0
    else:
        return k * -2.0


@triton.jit
def features(up, down, first, E: tl.constexpr):
    """Return f_0, ..., f_(N-1) (Eq. 10, Eq. 11); Gaussians are computed from the centre outward."""
    N: tl.constexpr = E.terms
    f = (first,)
    if E.gaussian:
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
def floor_edges(f, E: tl.constexpr):
    """Keep the outer features of a query above a floor, so that den is never 0."""
    if E.edge_floor > 0:
        N: tl.constexpr = E.terms
        all = ()
        for n in tl.static_range(N):
            if n == 0 or n == N - 1:
                all = all + (tl.where(f[n] < E.edge_floor, E.edge_floor, f[n]),)
            else:
                all = all + (f[n],)
        return all
    else:
        return f


@triton.jit
def bounded(f, a, E: tl.constexpr):
    """Limit the features of a query so that no product with the weight a is infinite.

    Far from all keys a is large, and f_n a may overflow at a node near the query. No key is near
    that node, so the limit does not change the result; it must only leave room for a sum over
    millions of tokens.
    """
    if E.gaussian:
        N: tl.constexpr = E.terms
        a = tl.abs(a)
        limit = E.max_product / tl.where(a < 1.0, 1.0, a)
        all = ()
        for n in tl.static_range(N):
            all = all + (tl.where(f[n] > limit, limit, f[n]),)
        return all
    else:
        return f


@triton.jit
def min_den(gy, E: tl.constexpr):
    """Return the den below which all keys are too far away: their gradient would be infinite."""
    if E.gaussian:
        den = tl.abs(gy) * E.den_per_gradient
        den = tl.where(den == float("inf"), 0.0, den)
        return tl.where(den < E.min_den, E.min_den, den)
    else:
        return tl.zeros_like(gy)


@triton.jit
def read(f, sums, E: tl.constexpr):
    """Return sum_n c_n f_n sums_n (Eq. 14, Eq. 15)."""
    N: tl.constexpr = E.terms
    total = f[0] * sums[0]  # c_0 = 1
    for n in tl.static_range(1, N):
        if E.gaussian:
            total += f[n] * sums[n]
        else:
            total += f[n] * E.table[n] * sums[n]
    return total


@triton.jit
def read_slope(f, sums, E: tl.constexpr):
    """Return the derivative of `read`, with the common factor of all f_n held constant."""
    N: tl.constexpr = E.terms
    total = tl.zeros_like(f[0])
    for n in tl.static_range(N):
        if E.gaussian:
            if n != N // 2:
                total += f[n] * ((n - N // 2) * E.step) * sums[n]
        else:
            if n > 0:
                total += f[n - 1] * (n * E.table[n]) * sums[n]
    return total


@triton.jit
def _clamp(x, E: tl.constexpr):
    """Clamp x to the reach; NaN propagates."""
    reach = constant(E.reach, x, E)
    return tl.where(x > reach, reach, tl.where(x < -reach, -reach, x))


@triton.jit
def _gaussian_chain(x, E: tl.constexpr):
    """Return e^(4hx), its inverse, and e^(-2x^2) E.root^2.

    The last one is a square, because e^(-2x^2) alone may underflow. Features are powers of these
    numbers, so the rounding errors of the exponents are corrected.
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


# ---- the equations for one token -----------------------------------------------------------------


@triton.jit
def add(s, z, f, u, x, kept, E: tl.constexpr):
    """Return kept s_n + u f_n x and kept z_n + u f_n (Eq. 12, Eq. 13)."""
    N: tl.constexpr = E.terms
    new_s = ()
    new_z = ()
    for n in tl.static_range(N):
        term = f[n] * u
        new_s = new_s + (s[n] * kept + term * x,)
        new_z = new_z + (z[n] * kept + term,)
    return new_s, new_z


@triton.jit
def absorb(s, z, m, k, v, valid, E: tl.constexpr):
    """Add one key and its value to the sums, which move to the new shift."""
    own = tl.where(valid, magnitude(k, E), E.empty_shift)
    new = tl.where(own < m, own, m)  # never NaN, whatever k is
    up, down, first = key(k, new, E)
    f = features(up, down, tl.where(valid, first, 0.0), E)
    s, z = add(s, z, f, E.lower, v, decay(m, new, E), E)
    return s, z, new


@triton.jit
def query_features(q, E: tl.constexpr):
    up, down, first = query(q, E)
    return features(up, down, first, E)


@triton.jit
def reading(q, E: tl.constexpr):
    """Return the features with which a query reads the sums."""
    return floor_edges(query_features(q, E), E)


@triton.jit
def add_query(s, z, f, a, y, kept, E: tl.constexpr):
    """Add a query with these features to the reverse sums."""
    return add(s, z, bounded(f, a, E), a, y, kept, E)


@triton.jit
def quotient(num, den):
    """Return y = num / den (Eq. 16), or 0 if there is no key."""
    return tl.where(den == 0, 0.0, num / tl.where(den == 0, 1.0, den))


@triton.jit
def query_gradient(f, gy, s, z, E: tl.constexpr):
    """Return dq = gy / den (S'(q) - y Z'(q)), and for the reverse sums a = lift gy / den and y."""
    f = floor_edges(f, E)
    den = read(f, z, E)
    empty = tl.abs(den) <= min_den(gy, E)
    den = tl.where(empty, 1.0, den)
    y = tl.where(empty, 0.0, read(f, s, E) / den)
    dq = (read_slope(f, s, E) - y * read_slope(f, z, E)) / den * gy
    return tl.where(empty, 0.0, dq), tl.where(empty, 0.0, gy * E.lift / den), y


@triton.jit
def key_gradient(k, v, valid, m, s, z, E: tl.constexpr):
    """Return dk = w (v Z'(k) - S'(k) + slope (v Z(k) - S(k))) and dv = w Z(k), of reverse sums."""
    up, down, first = key(k, m, E)
    f = features(up, down, first * (1 / E.lift), E)
    dv = read(f, z, E) * E.lower
    direct = (v * read_slope(f, z, E) - read_slope(f, s, E)) * E.lower
    dk = direct + slope(k, E) * (v * dv - read(f, s, E) * E.lower)
    return tl.where(valid, dk, 0.0), tl.where(valid, dv, 0.0)
