"""Features of q and k in Triton, and the equations for one token. The scan uses only these.

As in ops.features, the features f_n of K(q, k) = sum_n c_n f_n(q) f_n(k) form a chain: the first
feature, and the factors from one feature to the next (`up`, and `down` for nodes left of the
centre). `E` is a `Numbers`, so that the number of terms and the tables are compile-time constants.

Features and sums are tuples of N tensors [BLOCK], one channel per lane. On a wide grid they are one
tensor [BLOCK, NODES] whose features are computed node by node: tuples of 65 would neither fit in a
lane's registers nor compile in reasonable time.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
TINY = tl.constexpr(1e-30)  # prevents 0 / 0
FAR = tl.constexpr(1e10)  # distance at which every Gaussian is 0
PACKED = tl.constexpr(128)  # above the largest number of nodes


@triton.jit
def decay(old, new, g, E: tl.constexpr):
    """Return the factor that moves sums from shift `old` to `new` while they lose e^g.

    It is e^(new^2 - old^2 + g), or e^-|old^2 - new^2| without decay. A product is accurate, a
    difference of rounded squares is not.
    """
    if E.gaussian:  # Gaussian features have no shift
        if E.decays:
            return tl.exp2(g * LOG2E)
        else:
            return tl.full(old.shape, 1.0, E.real)
    elif E.decays:
        return tl.exp2(((new - old) * (new + old) + g) * LOG2E)
    else:
        return tl.exp2(-tl.abs(old - new) * (old + new) * LOG2E)


@triton.jit
def later_shift(m, own, g, E: tl.constexpr):
    """Return min(m, own), or with decay the root of min(m^2 - g, own^2); never NaN."""
    if E.decays and not E.gaussian:
        rise = (m - own) * (m + own) - g
        # tl.sqrt may be biased by a bit, which would add up if it were not part of a small step.
        grown = m - g / (m + tl.sqrt(m * m - g) + TINY)
        return tl.where(rise > 0, own, grown)
    else:
        return tl.where(own < m, own, m)


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
def key_features(k, m, valid, scale: tl.constexpr, E: tl.constexpr):
    """Return the features of a key relative to the shift m, times `scale` unless the grid is wide.

    They are 0 for a masked key.
    """
    if E.wide:
        return _node_features(tl.where(valid, _clamp(k, E), FAR), E)
    elif E.gaussian:
        up, down, first = _gaussian_chain(_clamp(k, E), E)
        return _chain(up, down, tl.where(valid, first, 0.0) * scale, E)
    else:
        first = tl.where(valid, decay(tl.abs(k), m, 0.0, E), 0.0) * scale
        return _chain(k, k, first, E)


@triton.jit
def query_features(q, E: tl.constexpr):
    """Return the features of a query, up to a factor that cancels between num and den.

    Powers start at max(1, |q|)^-order, which prevents overflow; the cap on |q| prevents underflow
    of den. On a small grid, features are multiplied by E.root^2.
    """
    if E.wide:
        return _node_features(_clamp(q, E), E)
    elif E.gaussian:
        up, down, first = _gaussian_chain(_clamp(q, E), E)
        return _chain(up, down, first, E)
    else:
        a = tl.abs(q)
        a = tl.where(a < 1.0, 1.0, tl.where(a > E.cap, E.cap, a))
        return _chain(q, q, tl.exp2(tl.log2(a) * (1.0 - E.terms)), E)


@triton.jit
def slope(k, E: tl.constexpr):
    """Return d/dk log of the common factor of all f_n(k), constant in `read_slope`."""
    if E.wide:
        return tl.zeros_like(k)  # there is no common factor
    elif E.gaussian:
        return _clamp(k, E) * -4.0
    else:
        return k * -2.0


@triton.jit
def _chain(up, down, first, E: tl.constexpr):
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
def node_numbers(E: tl.constexpr):
    """Return the numbers n of the nodes of a wide grid, [1, NODES]; those above N are padding."""
    return tl.arange(0, E.nodes)[None, :]


@triton.jit
def _offsets(x, E: tl.constexpr):
    """Return x - u_n at all nodes, [BLOCK, NODES]; padding is far away."""
    n = node_numbers(E)
    u = (n - E.terms // 2).to(E.real) * E.spacing
    return x[:, None] - tl.where(n < E.terms, u, FAR)


@triton.jit
def _node_features(x, E: tl.constexpr):
    """Return e^-2(x - u_n)^2 at all nodes; 0 at a distance of the cutoff or more."""
    offset = _offsets(x, E)
    f = tl.exp2(offset * offset * (-2 * LOG2E))
    if E.cutoff > 0:
        f = tl.where(tl.abs(offset) >= E.cutoff, 0.0, f)
    return f


@triton.jit
def bounded(f, a, E: tl.constexpr):
    """Limit the features of a query so that no product with the weight a is infinite.

    Far from all keys a is large, and f_n a may overflow at a node near the query. No key is near
    that node, so the limit does not change the result; it must only leave room for a sum over
    millions of tokens.
    """
    if E.wide:
        a = tl.abs(a)
        limit = (E.max_product / tl.where(a < 1.0, 1.0, a))[:, None]
        return tl.where(f > limit, limit, f)
    elif E.gaussian:
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
        smallest = constant(E.smallest, den, E)
        return tl.where(den < smallest, smallest, den)
    else:
        return tl.zeros_like(gy)


@triton.jit
def read(f, sums, E: tl.constexpr):
    """Return sum_n c_n f_n sums_n (Eq. 14, Eq. 15)."""
    if E.wide:
        return tl.sum(f * sums, axis=1)
    else:
        N: tl.constexpr = E.terms
        total = f[0] * sums[0]  # c_0 = 1
        for n in tl.static_range(1, N):
            if E.gaussian:
                total += f[n] * sums[n]
            else:
                total += f[n] * E.table[n] * sums[n]
        return total


@triton.jit
def read_slope(f, x, sums, E: tl.constexpr):
    """Return the derivative of `read` by x, with the common factor of all f_n held constant."""
    if E.wide:
        return tl.sum(f * _offsets(_clamp(x, E), E) * sums, axis=1) * -4.0
    else:
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


# ---- far queries ---------------------------------------------------------------------------------
# A query without a key near, whose den is at most E.smallest, reads the nearest written node on
# each side, with features relative to the larger one.


@triton.jit
def far_lanes(den, inside, E: tl.constexpr):
    """Return the lanes with a far query, and whether there are any."""
    far = inside & (den <= E.smallest)
    return far, tl.max(far.to(tl.int32), axis=0) > 0


@triton.jit
def read_far(q, s, z, E: tl.constexpr):
    """Return num, den and on a wide grid the nodes that `far_features` needs, else 0.

    den is 0 if no node is written.
    """
    x = _clamp(q, E)
    if E.wide:
        offset = _offsets(x, E)
        written = z > E.smallest
        left = tl.where(written & (offset >= 0), offset, FAR)
        right = tl.where(written & (offset < 0), -offset, FAR)
        at_left = (left < FAR) & (left == tl.min(left, axis=1)[:, None])
        at_right = (right < FAR) & (right == tl.min(right, axis=1)[:, None])
        f = _relative_features(offset, at_left | at_right)
        n = node_numbers(E) + 1
        nodes = tl.sum(tl.where(at_left, n * PACKED, 0) + tl.where(at_right, n, 0), axis=1)
        return tl.sum(f * s, axis=1), tl.sum(f * z, axis=1), nodes.to(E.real)
    else:
        N: tl.constexpr = E.terms
        zero = tl.zeros_like(x)
        left = zero + FAR  # distance, s and z of the nearest written node
        left_s = zero
        left_z = zero
        right = zero + FAR
        right_s = zero
        right_z = zero
        for n in tl.static_range(N):
            offset = x - (n - N // 2) * E.spacing
            here = (z[n] > E.smallest) & (offset >= 0)
            left = tl.where(here, offset, left)
            left_s = tl.where(here, s[n], left_s)
            left_z = tl.where(here, z[n], left_z)
        for i in tl.static_range(N):
            offset = (N // 2 - i) * E.spacing - x
            here = (z[N - 1 - i] > E.smallest) & (offset > 0)
            right = tl.where(here, offset, right)
            right_s = tl.where(here, s[N - 1 - i], right_s)
            right_z = tl.where(here, z[N - 1 - i], right_z)
        closest = tl.where(left < right, left, right)
        f = tl.exp2((left - closest) * (left + closest) * (-2 * LOG2E))
        g = tl.exp2((right - closest) * (right + closest) * (-2 * LOG2E))
        return f * left_s + g * right_s, f * left_z + g * right_z, zero


@triton.jit
def _relative_features(offset, chosen):
    """Return the features of the chosen nodes, of which the largest is 1; 0 at all other nodes."""
    distance = tl.where(chosen, tl.abs(offset), FAR)
    closest = tl.min(distance, axis=1)[:, None]
    f = tl.exp2((distance - closest) * (distance + closest) * (-2 * LOG2E))
    return tl.where(chosen, f, 0.0)


@triton.jit
def far_features(f, q, nodes, E: tl.constexpr):
    """Replace the features f of far queries on a wide grid, those whose `nodes` are not 0.

    Nodes l and r are stored as (l + 1) PACKED + r + 1; a side without a node as 0.
    """
    left = tl.floor(nodes / PACKED)
    right = nodes - left * PACKED
    n = (node_numbers(E) + 1).to(E.real)
    chosen = (n == left[:, None]) | (n == right[:, None])
    again = _relative_features(_offsets(_clamp(q, E), E), chosen)
    return tl.where(nodes[:, None] > 0, again, f)


# ---- the equations for one token -----------------------------------------------------------------


@triton.jit
def add(s, z, f, u, x, kept, E: tl.constexpr):
    """Return kept s_n + u f_n x and kept z_n + u f_n (Eq. 12, Eq. 13)."""
    if E.wide:
        term = f * u[:, None]
        if E.decays:
            s = s * kept[:, None]
            z = z * kept[:, None]
        return s + term * x[:, None], z + term
    else:
        N: tl.constexpr = E.terms
        new_s = ()
        new_z = ()
        for n in tl.static_range(N):
            term = f[n] * u
            new_s = new_s + (s[n] * kept + term * x,)
            new_z = new_z + (z[n] * kept + term,)
        return new_s, new_z


@triton.jit
def absorb(s, z, m, k, v, g, valid, E: tl.constexpr):
    """Add one key and its value to the sums, which decay by e^g and move to the new shift."""
    own = tl.where(valid, magnitude(k, E), E.empty_shift)
    new = later_shift(m, own, g, E)
    f = key_features(k, new, valid, 1.0, E)
    kept = decay(m, new, g, E)
    if E.wide:
        if E.decays:
            s = s * kept[:, None]
            z = z * kept[:, None]
        return s + f * v[:, None], z + f, new
    else:
        s, z = add(s, z, f, E.lower, v, kept, E)
        return s, z, new


@triton.jit
def add_query(s, z, f, a, y, kept, E: tl.constexpr):
    """Add a query with these features to the reverse sums."""
    return add(s, z, bounded(f, a, E), a, y, kept, E)


@triton.jit
def output(q, s, z, inside, E: tl.constexpr):
    """Return y of a query (Eq. 14 to Eq. 16), or 0 if there is no key."""
    f = query_features(q, E)
    num = read(f, s, E)
    den = read(f, z, E)
    if E.gaussian:
        far, some = far_lanes(den, inside, E)
        if some:
            far_num, far_den, _nodes = read_far(q, s, z, E)
            num = tl.where(far, far_num, num)
            den = tl.where(far, far_den, den)
    return quotient(num, den)


@triton.jit
def quotient(num, den):
    """Return y = num / den (Eq. 16), or 0 if den is 0."""
    return tl.where(den == 0, 0.0, num / tl.where(den == 0, 1.0, den))


@triton.jit
def query_gradient(q, gy, s, z, m, inside, E: tl.constexpr):
    """Return dq = gy / den (S'(q) - y Z'(q)), and a = lift gy / den, y and f for the reverse sums.

    Also return a note, which the backward stores and `noted_features` reads: the shift m, or on a
    wide grid the nodes that a far query reads. On other grids a far query has no gradient.
    """
    f = query_features(q, E)
    num = read(f, s, E)
    den = read(f, z, E)
    note = m
    if E.wide:
        slope_s = read_slope(f, q, s, E)
        slope_z = read_slope(f, q, z, E)
        far, some = far_lanes(den, inside, E)
        note = tl.zeros_like(den)
        if some:
            far_num, far_den, nodes = read_far(q, s, z, E)
            num = tl.where(far, far_num, num)
            den = tl.where(far, far_den, den)
            note = tl.where(far, nodes, 0.0)
        empty = den <= min_den(gy, E)
        den = tl.where(empty, 1.0, den)
        y = tl.where(empty, 0.0, num / den)
        dq = tl.where(empty | far, 0.0, (slope_s - y * slope_z) / den * gy)
        return dq, tl.where(empty, 0.0, gy * E.lift / den), y, far_features(f, q, note, E), note
    else:
        empty = tl.abs(den) <= min_den(gy, E)
        den = tl.where(empty, 1.0, den)
        y = tl.where(empty, 0.0, num / den)
        dq = (read_slope(f, q, s, E) - y * read_slope(f, q, z, E)) / den * gy
        return tl.where(empty, 0.0, dq), tl.where(empty, 0.0, gy * E.lift / den), y, f, note


@triton.jit
def noted_features(q, note, E: tl.constexpr):
    """Return the features of a query in the reverse sums, from the note of `query_gradient`."""
    f = query_features(q, E)
    if E.wide:
        return far_features(f, q, note, E)
    else:
        return f


@triton.jit
def key_gradient(k, v, valid, m, s, z, E: tl.constexpr):
    """Return dk = w (v Z'(k) - S'(k)) + slope u, dv = w Z(k) and u = w (v Z(k) - S(k)).

    S and Z are read from the reverse sums.
    """
    f = key_features(k, m, valid, 1 / E.lift, E)
    dv = read(f, z, E) * E.lower
    direct = (v * read_slope(f, k, z, E) - read_slope(f, k, s, E)) * E.lower
    u = v * dv - read(f, s, E) * E.lower
    dk = direct + slope(k, E) * u
    return tl.where(valid, dk, 0.0), tl.where(valid, dv, 0.0), tl.where(valid, u, 0.0)
