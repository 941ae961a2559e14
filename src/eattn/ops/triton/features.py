"""Features of q and k in Triton, and the equations on one token. The scan knows only these.

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
    if E.gaussian:
        return tl.full(old.shape, 1.0, E.real)  # Gaussian features have no shift
    else:
        return tl.exp2(-tl.abs(old - new) * (old + new) * LOG2E)


@triton.jit
def constant(value: tl.constexpr, like, E: tl.constexpr):
    """A number in every lane, to all its digits: a bare one may be rounded to float32."""
    return tl.full(like.shape, value, E.real)


@triton.jit
def magnitude(k, E: tl.constexpr):
    """Per-key magnitude whose running minimum is the shift."""
    if E.gaussian:
        return tl.zeros_like(k)
    else:
        return tl.abs(k)


@triton.jit
def key(k, m, E: tl.constexpr):
    """The chain of keys, relative to the shift m: up, down, first."""
    if E.gaussian:
        return _gaussian_chain(_clamp(k, E), E)
    else:
        return k, k, decay(tl.abs(k), m, E)


@triton.jit
def query(q, E: tl.constexpr):
    """The chain of queries, times anything: it cancels between num and den.

    Powers start at max(1, |q|)^-order, which keeps them from overflow; the cap keeps den from
    underflow in turn. Gaussian features are kept times E.root^2.
    """
    if E.gaussian:
        return _gaussian_chain(_clamp(q, E), E)
    else:
        a = tl.abs(q)
        a = tl.where(a < 1.0, 1.0, tl.where(a > E.cap, E.cap, a))
        return q, q, tl.exp2(tl.log2(a) * (1.0 - E.terms))


@triton.jit
def slope(k, E: tl.constexpr):
    """d/dk log of what all f_n(k) have in common, and `read_slope` does not differentiate."""
    if E.gaussian:
        return _clamp(k, E) * -4.0
    else:
        return k * -2.0


@triton.jit
def features(up, down, first, E: tl.constexpr):
    """f_0, ..., f_(N-1) (Eq. 10, Eq. 11), or the Gaussians outward from the central node."""
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
    """Keep the outer features of a reading query above a floor, so that den is never 0."""
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
    """Features of a query as it is summed with the weight a, such that no product is infinite.

    Far from all keys a is large, and f_n a may be infinite at a node near the query. No key is near
    that node, so any limit is right that leaves room for the sum of millions.
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
    """A smaller den comes from keys too far away to have a gradient, which would be infinite."""
    if E.gaussian:
        den = tl.abs(gy) * E.den_per_gradient
        den = tl.where(den == float("inf"), 0.0, den)
        return tl.where(den < E.min_den, E.min_den, den)
    else:
        return tl.zeros_like(gy)


@triton.jit
def read(f, sums, E: tl.constexpr):
    """sum_n c_n f_n sums_n (Eq. 14, Eq. 15)."""
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
    """Its derivative, without that of what all f_n have in common."""
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


# ---- the equations, one token at a time ----------------------------------------------------------


@triton.jit
def add(s, z, f, u, x, kept, E: tl.constexpr):
    """s_n + u f_n x and z_n + u f_n (Eq. 12, Eq. 13), after what was there has decayed."""
    N: tl.constexpr = E.terms
    new_s = ()
    new_z = ()
    for n in tl.static_range(N):
        term = f[n] * u
        new_s = new_s + (s[n] * kept + term * x,)
        new_z = new_z + (z[n] * kept + term,)
    return new_s, new_z


@triton.jit
def absorb(s, z, m, k, v, real, E: tl.constexpr):
    """Add one key and its value to the sums, which move to the shift there."""
    own = tl.where(real, magnitude(k, E), E.empty_shift)
    new = tl.where(own < m, own, m)  # never NaN, whatever k is
    up, down, first = key(k, new, E)
    f = features(up, down, tl.where(real, first, 0.0), E)
    s, z = add(s, z, f, E.lower, v, decay(m, new, E), E)
    return s, z, new


@triton.jit
def query_features(q, E: tl.constexpr):
    up, down, first = query(q, E)
    return features(up, down, first, E)


@triton.jit
def reading(q, E: tl.constexpr):
    """Features of a query as it reads."""
    return floor_edges(query_features(q, E), E)


@triton.jit
def add_query(s, z, f, a, y, kept, E: tl.constexpr):
    """Add a query with these features to the reverse sums."""
    return add(s, z, bounded(f, a, E), a, y, kept, E)


@triton.jit
def quotient(num, den):
    """y = num / den (Eq. 16); nothing to attend to: 0."""
    return tl.where(den == 0, 0.0, num / tl.where(den == 0, 1.0, den))


@triton.jit
def query_gradient(f, gy, s, z, E: tl.constexpr):
    """dq = gy / den (S'(q) - y Z'(q)); a = lift gy / den, and y, for the reverse sums."""
    f = floor_edges(f, E)
    den = read(f, z, E)
    empty = tl.abs(den) <= min_den(gy, E)
    den = tl.where(empty, 1.0, den)
    y = tl.where(empty, 0.0, read(f, s, E) / den)
    dq = (read_slope(f, s, E) - y * read_slope(f, z, E)) / den * gy
    return tl.where(empty, 0.0, dq), tl.where(empty, 0.0, gy * E.lift / den), y


@triton.jit
def key_gradient(k, v, real, m, s, z, E: tl.constexpr):
    """dv = w Z(k), dk = w (v Z'(k) - S'(k) + slope (v Z(k) - S(k))) of the reverse sums."""
    up, down, first = key(k, m, E)
    f = features(up, down, first * (1 / E.lift), E)
    dv = read(f, z, E) * E.lower
    direct = (v * read_slope(f, z, E) - read_slope(f, s, E)) * E.lower
    dk = direct + slope(k, E) * (v * dv - read(f, s, E) * E.lower)
    return tl.where(real, dk, 0.0), tl.where(real, dv, 0.0)
