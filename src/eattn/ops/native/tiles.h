// The equations on one tile of one block, on top of the scan.
#pragma once
#include "states.h"

namespace {

// Values of a token for the reverse walk: a = lift gy / den (without the reading's scale), m, y.
// With decay, m is the shift before the tile.
struct Adjoint {
  Real *a, *m, *y;
  int64_t stride;
  INLINE Adjoint at(int64_t t, int64_t column) const {
    const int64_t o = t * stride + column;
    return {a + o, m + o, y + o, stride};
  }
};

// Rows of the inputs of one tile; an equation reads only those in its formula.
struct Operands {
  int rows;
  const uint8_t *mask;  // or nullptr
  Rows<const Real> k, v, q, gy;
  Rows<const Real> g;  // log decay; no data without decay

  INLINE bool valid(int t) const { return !mask || mask[t]; }
};

// Gradient of the log decay of a block. Walking in reverse, it decreases by what each key gets
// through its weight (see ops/eager.py).
struct DecayGradient {
  V now;     // at the token after the tile
  V sum;     // over all tokens so far
  Sink out;  // without data if only the sum is needed

  INLINE void put(int t, V through) {
    now = now - through;
    sum = sum + now;
    if (out.data) out.put(t, now);
  }
  INLINE void put_masked(int t) const {
    if (out.data) out.put(t, V{});
  }
};

// The equations of an expansion that is chosen at run time.
struct Tiles {
  int terms;
  Real lift, c[kMaxTerms];  // E::kLift and E::c of the expansion E

  // Return the shift after the tile.
  virtual V smallest(const Operands &in, V shift) const = 0;
  // Add keys and values to the sums.
  virtual void accumulate(const Operands &in, Block b) const = 0;
  virtual void causal(const Operands &in, Block b, Sink y) const = 0;
  // Recompute the causal forward; write dq and the adjoints for the reverse walk.
  virtual void causal_dq(const Operands &in, Block b, Sink dq, Adjoint to) const = 0;
  virtual void reverse_sums(const Operands &in, Block b, Adjoint from) const = 0;
  virtual void causal_dkdv(const Operands &in, Block b, Sink dk, Sink dv, Adjoint from,
                           DecayGradient &dg) const = 0;
  // Non-causal: `base` has the final sums times c_n, and m is their shift.
  virtual void readout(const Operands &in, const V *base, Sink y) const = 0;
  // Compute dq, and add the queries to the reverse sums.
  virtual void full_dq(const Operands &in, const V *base, Block b, Sink dq) const = 0;
  virtual void full_dkdv(const Operands &in, const V *base, V m, Sink dk,
                         Sink dv) const = 0;
};

// Points of all rows of a tile. If they take exponentials, they are computed before the walk: an
// exponential is a long chain of operations, and those of several tokens can overlap. `E` is the
// part of an expansion that does not depend on the number of terms, so this is compiled only once.
template <class E> struct Points {
  const E &e;
  Rows<const Real> rows;
  typename E::Point made[E::kPrepares ? kTile : 1];

  INLINE Points(const E &e, const Rows<const Real> &rows, int count) : e(e), rows(rows) {
    if constexpr (E::kPrepares) make(e, rows, count, made);
  }
  static __attribute__((noinline)) void make(const E &e, Rows<const Real> rows, int count,
                                             typename E::Point *made) {
    for (int t = 0; t < count; ++t) made[t] = e.point(rows[t]);
  }
  INLINE typename E::Point operator[](int t) const {
    if constexpr (E::kPrepares) return made[t];
    else return e.point(rows[t]);
  }
};

// Shift and weight of every key of a tile, computed before the walk for the same reason.
template <class E> struct Weights {
  V m[kTile], w[kTile];
  bool moves;     // whether the shift changes within the tile; without decay
  Course course;  // with decay

  INLINE Weights() {}
  INLINE Weights(const E &e, const Operands &in, V shift) {
    if (in.g.data) decayed(e, in, shift, *this);
    else plain(e, in, shift);
  }
  INLINE const Course *walked(const Operands &in) const { return in.g.data ? &course : nullptr; }

  INLINE void plain(const E &e, const Operands &in, V shift) {
    const V before = shift;
    const Rows<const Real> k = in.k;
    for (int t = 0; t < in.rows; ++t) {
      const V x = k[t];
      if (in.valid(t)) shift = min(e.magnitude(x), shift);
      m[t] = shift;
      w[t] = e.weight(x, shift);
    }
    moves = any_differs(shift, before);
  }

  // The stored sums are e^(m^2 + c) times the true ones. `rise` is m^2 + c - k^2: a key has the
  // weight e^rise, which may be larger than 1. If it is too large, the key replaces the shift. At
  // the end of the tile the shift is that of the largest weight: m_t^2 = min(m_(t-1)^2 - g_t,
  // k_t^2).
  static __attribute__((noinline)) void decayed(const E &e, const Operands &in, V shift,
                                                Weights &to) {
    constexpr Real kHighest = 20;
    Course &course = to.course;
    V m = shift, c{}, whole = splat(1), least = shift * shift;
    const V least_before = least;
    const V unit = e.weight(V{}, V{});
    course.start = shift;
    course.moved = 0;
    for (int t = 0; t < in.rows; ++t) {
      to.w[t] = V{};
      if (!in.valid(t)) continue;
      const V a = e.magnitude(in.k[t]);
      c = c - in.g[t];
      least = min(least - in.g[t], a * a);
      V rise = fma(m - a, m + a, c);
      if (__builtin_expect(any_above(rise, splat(kHighest)), 0)) {
        const I replaced = rise > kHighest;
        course.kept[t] = select(replaced, exp(-rise), splat(1));
        course.moved |= 1u << t;
        whole = whole * course.kept[t];
        m = select(replaced, a, m);
        c = select(replaced, V{}, c);
        rise = select(replaced, V{}, rise);
      }
      to.w[t] = unit * exp(rise);
    }
    V end = m;
    if (E::kShifts) {
      end = select(least < kInf, sqrt(least), m);
      end = select(least == least_before, shift, end);
    }
    course.rest = exp(select(end == m, V{}, (end - m) * (end + m)) - c);
    course.whole = whole * course.rest;
    course.end = end;
  }
};

template <class E> struct TilesOf final : Tiles {
  using Sums = ::Sums<E::kTerms>;
  using Point = typename E::Point;
  using Points = ::Points<typename E::Shared>;
  using Weights = ::Weights<typename E::Shared>;
  E e;

  explicit TilesOf(double radius) : e(radius) {
    terms = E::kTerms;
    lift = E::kLift;
    for (int n = 0; n < terms; ++n) c[n] = e.c(n);
  }

  // Adds keys and values to the sums (Eq. 12, Eq. 13).
  struct Keys {
    const E &e;
    const Points &k;
    Rows<const Real> v;
    const uint8_t *mask;
    const Weights &weights;
    INLINE bool moves(int) const { return weights.moves; }
    INLINE V shift(int t) const { return weights.m[t]; }
    INLINE void operator()(int t, Sums &local) const {
      if (!mask || mask[t]) e.add(local, k[t], weights.w[t], v[t]);
    }
  };

  // Adds queries to the reverse sums; the mirror of Keys.
  struct Queries {
    const E &e;
    const Points &q;
    Adjoint from;
    INLINE bool moves(int) const { return true; }
    INLINE V shift(int t) const { return load(from.m + t * from.stride); }
    INLINE void operator()(int t, Sums &local) const {
      const int64_t o = t * from.stride;
      e.add_scaled(local, q[t], load(from.a + o), load(from.y + o));
    }
  };

  // A step of a walk whose shift does not change.
  template <class F> struct Still : F {
    INLINE bool moves(int) const { return false; }
    INLINE V shift(int) const { return V{}; }
  };

  // Return the square root of the weight of a key, without a constant factor.
  static INLINE V root(const E &e, V k, V m) { return decay(e.magnitude(k), m, Real(0.5)); }

  // Return y = num / den (Eq. 16), or 0 for a row that attends to no key.
  static INLINE V quotient(V num, V den) { return select(den == 0, V{}, num / den); }

  // Return the sums that `E::read` reads from a base and the sums of a tile.
  static INLINE Sums merged(const Sums &base, const Sums &local) {
    Sums all;
    each_term<E::kTerms>([&](auto n) INLINE_LAMBDA {
      all.s[n] = fma(splat(E::c(n)), local.s[n], base.s[n]);
      all.z[n] = fma(splat(E::c(n)), local.z[n], base.z[n]);
    });
    return all;
  }

  // Return y of queries q from their reading o of the sums all().
  template <class All> static INLINE V output(const E &e, const Reading &o, V q, All all) {
    const V y = quotient(o.s, o.z);
    if constexpr (E::kHasFar)
      if (__builtin_expect(any_above(splat(E::kMinDen), o.z), 0)) {
        const Sums &sums = all();
        return select(o.z < E::kMinDen, e.read_far(q, sums.s, sums.z), y);
      }
    return y;
  }

  // Return the weight of a query in the reverse sums.
  static INLINE V adjoint(V gy, V den) {
    return select(abs(den) <= E::min_den(gy), V{}, gy * E::kLift / den);
  }

  static INLINE V query_gradient(const Reading &o, V y, V a) {
    return a * o.r * fma(-y, o.dz, o.ds) * (1 / E::kLift);
  }

  struct KeyGradient {
    V dk, dv, through;  // through: of the log of the weight
  };
  // `o` is read at k from the reverse sums and lacks the factor w.
  static INLINE KeyGradient key_gradient(const E &e, const Reading &o, V k, V v, V w) {
    const V direct = fma(v, o.dz, -o.ds), through_w = fma(v, o.z, -o.s);
    const V u = w * (1 / E::kLift), dk = u * fma(e.slope(k), through_w, direct), dv = u * o.z;
    // The powers of a key with weight 0 may be infinite, and 0 * inf is NaN.
    const I none = w == 0;
    return {select(none, V{}, dk), select(none, V{}, dv), select(none, V{}, u * through_w)};
  }
  // The same for a reading of the sums all(), where root() is the root of the weight.
  template <class All, class Root>
  static INLINE KeyGradient key_gradient(const E &e, const Reading &reading, Point x, V k, V v, V w,
                                         All all, Root root) {
    const KeyGradient o = key_gradient(e, reading, k, v, w);
    if (__builtin_expect(!any_differs(not_finite(o), V{}), 1)) return o;
    return overflowing_key_gradient(e, o, x, k, v, root(), all());
  }
  // Return NaN where a gradient is infinite or NaN, else 0.
  static INLINE V not_finite(const KeyGradient &o) {
    const V sum = o.dk + o.dv;
    return sum - sum;
  }

  // Sums times k^n may overflow although their product with the weight is small. The square root of
  // the weight is then applied before reading, and once more after it.
  static __attribute__((noinline)) KeyGradient overflowing_key_gradient(
      const E &e, const KeyGradient &first, Point x, V k, V v, V root, Sums sums) {
    rescale(sums, root);
    const KeyGradient second =
        key_gradient(e, e.template read<true, false>(x, sums), k, v, root * e.weight(V{}, V{}));
    const I finite = not_finite(first) == 0;
    return {select(finite, first.dk, second.dk), select(finite, first.dv, second.dv),
            select(finite, first.through, second.through)};
  }

  V smallest(const Operands &in, V shift) const override {
    for (int i = 0; i < in.rows; ++i)
      if (!in.mask || in.mask[i]) shift = min(e.magnitude(in.k[i]), shift);
    return shift;
  }

  void accumulate(const Operands &in, Block b) const override {
    const Points k(e, in.k, in.rows);
    const Weights weights(e, in, b.shift());
    walk<E, false>(e, b, in.rows, weights.walked(in), Keys{e, k, in.v, in.mask, weights},
                   Nothing{});
  }

  void causal(const Operands &in, Block b, Sink y) const override {
    const Points q(e, in.q, in.rows);
    const Points k(e, in.k, in.rows);
    const Weights weights(e, in, b.shift());
    walk<E, false>(e, b, in.rows, weights.walked(in), Keys{e, k, in.v, in.mask, weights},
                   [&](int i, const V &, const Sums &base, const Sums &local) INLINE_LAMBDA {
                     const Reading o = e.template read<false, true>(q[i], base, local);
                     y.put(i, output(e, o, in.q[i],
                                     [&]() INLINE_LAMBDA { return merged(base, local); }));
                   });
  }

  void readout(const Operands &in, const V *sums, Sink y) const override {
    const Sums &base = *(const Sums *)sums;
    const Points q(e, in.q, in.rows);
    for (int i = 0; i < in.rows; ++i) {
      const Reading o = e.template read<false, true>(q[i], base);
      y.put(i, output(e, o, in.q[i], [&]() -> const Sums & { return base; }));
    }
  }

  void causal_dq(const Operands &in, Block b, Sink dq, Adjoint to) const override {
    const Points q(e, in.q, in.rows);
    const Rows<const Real> gy = in.gy;
    const Points k(e, in.k, in.rows);
    const Weights weights(e, in, b.shift());
    const Course *course = weights.walked(in);
    walk<E, false>(e, b, in.rows, course, Keys{e, k, in.v, in.mask, weights},
                   [&](int i, const V &m, const Sums &base, const Sums &local) INLINE_LAMBDA {
                     const Reading o = e.template read<true, true>(q[i], base, local);
                     const V y = quotient(o.s, o.z), a = adjoint(gy[i], o.z);
                     dq.put(i, query_gradient(o, y, a));
                     store(to.a + i * to.stride, a);
                     store(to.m + i * to.stride, course ? course->start : m);
                     store(to.y + i * to.stride, y);
                   });
  }

  void reverse_sums(const Operands &in, Block b, Adjoint from) const override {
    const Points q(e, in.q, in.rows);
    walk<E, true>(e, b, in.rows, nullptr, Queries{e, q, from}, Nothing{});
  }

  void causal_dkdv(const Operands &in, Block b, Sink dk, Sink dv, Adjoint from,
                   DecayGradient &dg) const override {
    const Points x(e, in.k, in.rows);
    const Points q(e, in.q, in.rows);
    const Rows<const Real> k = in.k, v = in.v;
    Weights weights;
    const Course *course = nullptr;
    if (in.g.data) {
      Weights::decayed(e, in, load(from.m), weights);
      course = &weights.course;
    }
    walk<E, true>(e, b, in.rows, course, Queries{e, q, from},
                  [&](int i, const V &m, const Sums &base, const Sums &local) INLINE_LAMBDA {
                    KeyGradient o{};
                    if (in.valid(i)) {
                      const V w = course ? weights.w[i] : e.weight(k[i], m);
                      o = key_gradient(
                          e, e.template read<true, false>(x[i], base, local), x[i], k[i], v[i], w,
                          [&]() INLINE_LAMBDA { return merged(base, local); },
                          [&]() INLINE_LAMBDA {
                            return course ? sqrt(w / e.weight(V{}, V{})) : root(e, k[i], m);
                          });
                      if (course) dg.put(i, o.through);
                    } else if (course) {
                      dg.put_masked(i);
                    }
                    dk.put(i, o.dk);
                    dv.put(i, o.dv);
                  });
  }

  void full_dq(const Operands &in, const V *sums, Block b, Sink dq) const override {
    const Sums &base = *(const Sums *)sums;
    const Points q(e, in.q, in.rows);
    const Rows<const Real> gy = in.gy;
    auto add = [&](int i, Sums &local) INLINE_LAMBDA {
      const Reading o = e.template read<true, true>(q[i], base);
      const V y = quotient(o.s, o.z), a = adjoint(gy[i], o.z);
      dq.put(i, query_gradient(o, y, a));
      e.add_scaled(local, q[i], a, y);
    };
    walk<E, false>(e, b, in.rows, nullptr, Still<decltype(add)>{add}, Nothing{});
  }

  void full_dkdv(const Operands &in, const V *sums, V m, Sink dk, Sink dv) const override {
    const Sums &base = *(const Sums *)sums;
    const Points x(e, in.k, in.rows);
    const Rows<const Real> k = in.k, v = in.v;
    const uint8_t *mask = in.mask;
    for (int i = 0; i < in.rows; ++i) {
      KeyGradient o{};
      if (!mask || mask[i])
        o = key_gradient(
            e, e.template read<true, false>(x[i], base), x[i], k[i], v[i], e.weight(k[i], m),
            [&]() -> const Sums & { return base; }, [&] { return root(e, k[i], m); });
      dk.put(i, o.dk);
      dv.put(i, o.dv);
    }
  }
};

}  // namespace
