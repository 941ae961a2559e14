// The equations on one tile of one block, on top of the scan.
#pragma once
#include "io.h"

namespace {

// Values of a token for the reverse walk: a = lift gy / den (without the reading's scale), m, y.
struct Adjoint {
  Real *a, *m, *y;
  int64_t stride;
  INLINE Adjoint at(int64_t t, int64_t column) const {
    const int64_t o = t * stride + column;
    return {a + o, m + o, y + o, stride};
  }
};

template <class E> struct Tiles {
  using Sums = ::Sums<E::kTerms>;
  using Point = typename E::Point;
  using B = Block<E>;

  // Points of all rows of a tile. If they take exponentials, they are computed before the walk: an
  // exponential is a long chain of operations, and those of several tokens can overlap.
  template <bool kKeys> struct Points {
    const E &e;
    Rows<const Real> rows;
    Point made[E::kPrepares ? kTile : 1];
    INLINE Points(const E &e, const Rows<const Real> &rows, int count) : e(e), rows(rows) {
      if constexpr (E::kPrepares)
        for (int t = 0; t < count; ++t) made[t] = make(t);
    }
    INLINE Point make(int t) const { return kKeys ? e.key(rows[t]) : e.query(rows[t]); }
    INLINE Point operator[](int t) const {
      if constexpr (E::kPrepares) return made[t];
      else return make(t);
    }
  };
  using KeyPoints = Points<true>;
  using QueryPoints = Points<false>;

  // Shift and weight of every key of a tile, computed before the walk for the same reason.
  struct Weights {
    V m[kTile], w[kTile];
    bool moves;  // whether the shift changes within the tile
    INLINE Weights(const E &e, const Rows<const Real> &k, const uint8_t *mask, int rows, V shift) {
      const V before = shift;
      for (int t = 0; t < rows; ++t) {
        const V x = k[t];
        if (!mask || mask[t]) shift = min(e.magnitude(x), shift);
        m[t] = shift;
        w[t] = e.weight(x, shift);
      }
      moves = any_differs(shift, before);
    }
  };

  // Adds keys and values to the sums (Eq. 12, Eq. 13).
  struct Keys {
    const E &e;
    const KeyPoints &k;
    Rows<const Real> v;
    const uint8_t *mask;
    const Weights &weights;
    template <class M> INLINE void operator()(int t, const V &, Sums &local, M &moved) const {
      if (mask && !mask[t]) return;
      if (weights.moves) moved(weights.m[t]);
      e.add(local, k[t], weights.w[t], v[t]);
    }
  };

  // Adds queries to the reverse sums; the mirror of Keys.
  struct Queries {
    const E &e;
    const QueryPoints &q;
    Adjoint from;
    template <class M> INLINE void operator()(int t, const V &, Sums &local, M &moved) const {
      const int64_t o = t * from.stride;
      moved(load(from.m + o));
      e.add_scaled(local, q[t], load(from.a + o), load(from.y + o));
    }
  };

  // Return y = num / den (Eq. 16), or 0 for a row that attends to no key.
  static INLINE V quotient(V num, V den) { return select(den == 0, V{}, num / den); }

  // Return y of queries q from their reading o of the sums `base` and, if given, `local`.
  static INLINE V output(const E &e, const Reading &o, V q, const Sums &base, const Sums *local) {
    const V y = quotient(o.s, o.z);
    if constexpr (E::kHasFar)
      if (__builtin_expect(any_above(splat(E::kMinDen), o.z), 0))
        return far_output(e, o.z, y, q, base, local);
    return y;
  }
  static __attribute__((noinline)) V far_output(const E &e, V den, V y, V q, const Sums &base,
                                                const Sums *local) {
    const V far = e.read_far(
        q, [&](int n) { return local ? base.s[n] + local->s[n] : base.s[n]; },
        [&](int n) { return local ? base.z[n] + local->z[n] : base.z[n]; });
    return select(den < E::kMinDen, far, y);
  }

  // Return the weight of a query in the reverse sums.
  static INLINE V adjoint(V gy, V den) {
    return select(abs(den) <= E::min_den(gy), V{}, gy * E::kLift / den);
  }

  static INLINE V query_gradient(const Reading &o, V y, V a) {
    return a * o.r * fma(-y, o.dz, o.ds) * (1 / E::kLift);
  }

  struct KeyGradient {
    V dk, dv;
  };
  // `o` is read at k from the reverse sums and lacks the factor w.
  static INLINE KeyGradient key_gradient(const E &e, const Reading &o, V k, V v, V w) {
    const V direct = fma(v, o.dz, -o.ds), through_w = fma(v, o.z, -o.s);
    const V u = w * (1 / E::kLift), dk = u * fma(e.slope(k), through_w, direct), dv = u * o.z;
    // The powers of a key with weight 0 may be infinite, and 0 * inf is NaN.
    return {select(w == 0, V{}, dk), select(w == 0, V{}, dv)};
  }
  static INLINE KeyGradient key_gradient(const E &e, Point x, V k, V v, V m, const Sums &base,
                                         const Sums &local) {
    const KeyGradient o =
        key_gradient(e, e.template read<true, false>(x, base, local), k, v, e.weight(k, m));
    if (__builtin_expect(!any_differs(not_finite(o), V{}), 1)) return o;
    Sums all;
    for (int n = 0; n < E::kTerms; ++n) {
      all.s[n] = fma(splat(e.c(n)), local.s[n], base.s[n]);
      all.z[n] = fma(splat(e.c(n)), local.z[n], base.z[n]);
    }
    return overflowing_key_gradient(e, o, x, k, v, m, all);
  }
  static INLINE KeyGradient key_gradient(const E &e, Point x, V k, V v, V m, const Sums &base) {
    const KeyGradient o = key_gradient(e, e.template read<true, false>(x, base), k, v, e.weight(k, m));
    if (__builtin_expect(!any_differs(not_finite(o), V{}), 1)) return o;
    return overflowing_key_gradient(e, o, x, k, v, m, base);
  }
  // Return NaN where a gradient is infinite or NaN, else 0.
  static INLINE V not_finite(const KeyGradient &o) {
    const V sum = o.dk + o.dv;
    return sum - sum;
  }

  // Sums times k^n may overflow although their product with the weight is small. The square root of
  // the weight is then applied before reading, and once more after it.
  static __attribute__((noinline)) KeyGradient overflowing_key_gradient(
      const E &e, const KeyGradient &first, Point x, V k, V v, V m, Sums sums) {
    const V root = decay(e.magnitude(k), m, Real(0.5));
    rescale(sums, root);
    const KeyGradient second =
        key_gradient(e, e.template read<true, false>(x, sums), k, v, root * e.weight(V{}, V{}));
    const I finite = not_finite(first) == 0;
    return {select(finite, first.dk, second.dk), select(finite, first.dv, second.dv)};
  }

  // Return the shift after the tile.
  static INLINE V smallest(const E &e, const Spot &at, V shift) {
    const Input ks(at.keys(at.a.k));
    const Rows<const Real> k = ks.rows;
    const uint8_t *mask = at.mask();
    for (int i = 0; i < at.rows; ++i)
      if (!mask || mask[i]) shift = min(e.magnitude(k[i]), shift);
    return shift;
  }

  static void accumulate(const E &e, const Spot &at, B &b) {
    const Input ks(at.keys(at.a.k)), vs(at.keys(at.a.v));
    const KeyPoints k(e, ks.rows, at.rows);
    const Weights weights(e, ks.rows, at.mask(), at.rows, b.shift);
    walk<E, false>(e, b, at.rows, Keys{e, k, vs.rows, at.mask(), weights}, Nothing{});
  }

  static void causal(const E &e, const Spot &at, B &b) {
    const Input ks(at.keys(at.a.k)), vs(at.keys(at.a.v)), qs(at.queries(at.a.q));
    Output ys(at.queries(at.a.y), at.query_bytes());
    const QueryPoints q(e, qs.rows, at.rows);
    const Sink y = ys.rows;
    const KeyPoints k(e, ks.rows, at.rows);
    const Weights weights(e, ks.rows, at.mask(), at.rows, b.shift);
    walk<E, false>(e, b, at.rows, Keys{e, k, vs.rows, at.mask(), weights},
                   [&](int i, const V &, const Sums &base, const Sums &local) INLINE_LAMBDA {
                     const Reading o = e.template read<false, true>(q[i], base, local);
                     y.put(i, output(e, o, qs.rows[i], base, &local));
                   });
  }

  static void readout(const E &e, const Spot &at, const Sums &base) {
    const Input qs(at.queries(at.a.q));
    Output ys(at.queries(at.a.y), at.query_bytes());
    const QueryPoints q(e, qs.rows, at.rows);
    const Sink y = ys.rows;
    for (int i = 0; i < at.rows; ++i) {
      const Reading o = e.template read<false, true>(q[i], base);
      y.put(i, output(e, o, qs.rows[i], base, nullptr));
    }
  }

  // Recompute the causal forward; write dq and the adjoints for the reverse walk.
  static void causal_dq(const E &e, const Spot &at, B &b, Adjoint to) {
    const Input ks(at.keys(at.a.k)), vs(at.keys(at.a.v)), qs(at.queries(at.a.q));
    const Input gs(at.queries(at.a.gy));
    Output dqs(at.queries(at.a.dq), at.query_bytes());
    const QueryPoints q(e, qs.rows, at.rows);
    const Rows<const Real> gy = gs.rows;
    const Sink dq = dqs.rows;
    const KeyPoints k(e, ks.rows, at.rows);
    const Weights weights(e, ks.rows, at.mask(), at.rows, b.shift);
    walk<E, false>(e, b, at.rows, Keys{e, k, vs.rows, at.mask(), weights},
                   [&](int i, const V &m, const Sums &base, const Sums &local) INLINE_LAMBDA {
                     const Reading o = e.template read<true, true>(q[i], base, local);
                     const V y = quotient(o.s, o.z), a = adjoint(gy[i], o.z);
                     dq.put(i, query_gradient(o, y, a));
                     store(to.a + i * to.stride, a);
                     store(to.m + i * to.stride, m);
                     store(to.y + i * to.stride, y);
                   });
  }

  static void reverse_sums(const E &e, const Spot &at, B &b, Adjoint from) {
    const Input qs(at.queries(at.a.q));
    const QueryPoints q(e, qs.rows, at.rows);
    walk<E, true>(e, b, at.rows, Queries{e, q, from}, Nothing{});
  }

  static void causal_dkdv(const E &e, const Spot &at, B &b, Adjoint from) {
    const Input ks(at.keys(at.a.k)), vs(at.keys(at.a.v)), qs(at.queries(at.a.q));
    // If dk and dv hold the adjoints, their rows are still to be read: do not bypass the cache.
    const Window wk = at.keys(at.a.dk), wv = at.keys(at.a.dv);
    const bool lent = from.a == (Real *)wv.x.data + wv.offset();
    const int64_t bytes = lent ? 0 : at.key_bytes();
    Output dks(wk, bytes), dvs(wv, bytes);
    const KeyPoints x(e, ks.rows, at.rows);
    const QueryPoints q(e, qs.rows, at.rows);
    const Rows<const Real> k = ks.rows, v = vs.rows;
    const Sink dk = dks.rows, dv = dvs.rows;
    const uint8_t *mask = at.mask();
    walk<E, true>(e, b, at.rows, Queries{e, q, from},
                  [&](int i, const V &m, const Sums &base, const Sums &local) INLINE_LAMBDA {
                    KeyGradient o{};
                    if (!mask || mask[i])
                      o = key_gradient(e, x[i], k[i], v[i], m, base, local);
                    dk.put(i, o.dk);
                    dv.put(i, o.dv);
                  });
  }

  // Non-causal: compute dq from the final state, and add the queries to the reverse sums.
  static void full_dq(const E &e, const Spot &at, const Sums &base, B &b) {
    const Input qs(at.queries(at.a.q)), gs(at.queries(at.a.gy));
    Output dqs(at.queries(at.a.dq), at.query_bytes());
    const QueryPoints q(e, qs.rows, at.rows);
    const Rows<const Real> gy = gs.rows;
    const Sink dq = dqs.rows;
    walk<E, false>(
        e, b, at.rows,
        [&](int i, const V &, Sums &local, auto &) INLINE_LAMBDA {
          const Reading o = e.template read<true, true>(q[i], base);
          const V y = quotient(o.s, o.z), a = adjoint(gy[i], o.z);
          dq.put(i, query_gradient(o, y, a));
          e.add_scaled(local, q[i], a, y);
        },
        Nothing{});
  }

  static void full_dkdv(const E &e, const Spot &at, const Sums &base, V m) {
    const Input ks(at.keys(at.a.k)), vs(at.keys(at.a.v));
    Output dks(at.keys(at.a.dk), at.key_bytes()), dvs(at.keys(at.a.dv), at.key_bytes());
    const KeyPoints x(e, ks.rows, at.rows);
    const Rows<const Real> k = ks.rows, v = vs.rows;
    const Sink dk = dks.rows, dv = dvs.rows;
    const uint8_t *mask = at.mask();
    for (int i = 0; i < at.rows; ++i) {
      KeyGradient o{};
      if (!mask || mask[i]) o = key_gradient(e, x[i], k[i], v[i], m, base);
      dk.put(i, o.dk);
      dv.put(i, o.dv);
    }
  }
};

}  // namespace
