"""The equations, one token at a time: what joins the sums, and what is read from them."""

import triton
import triton.language as tl

from eattn.ops.triton.features import (
    bounded,
    decay,
    features,
    felt,
    key,
    least,
    query,
    read,
    read_slope,
    size,
    slope,
)


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
    """One key and its value join the sums, which move to the shift there."""
    own = tl.where(real, size(k, E), E.far)
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
    """Features of a query that reads."""
    return felt(query_features(q, E), E)


@triton.jit
def add_query(s, z, f, a, y, kept, E: tl.constexpr):
    """What a query with these features has to say to keys joins the reverse sums."""
    return add(s, z, bounded(f, a, E), a, y, kept, E)


@triton.jit
def quotient(num, den):
    """y = num / den (Eq. 16); nothing to attend to: 0."""
    return tl.where(den == 0, 0.0, num / tl.where(den == 0, 1.0, den))


@triton.jit
def query_gradient(f, gy, s, z, E: tl.constexpr):
    """dq = gy / den (S'(q) - y Z'(q)); a = lift gy / den, and y, for the reverse sums."""
    f = felt(f, E)
    den = read(f, z, E)
    empty = tl.abs(den) <= least(gy, E)
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
