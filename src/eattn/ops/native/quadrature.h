// Gaussian features: the trapezoid rule on an even grid for the integral
//   e^-(q - k)^2 = 2 / sqrt(pi) * integral of e^-2(q - u)^2 e^-2(k - u)^2 du.
// All features are positive, and so are the weights.
#pragma once
#include <algorithm>
#include <cmath>

#include "expansion.h"

namespace {

// The code that is the same for any number of nodes. Features are computed as powers of
// X = e^(4 h x), where h is the distance of the nodes. They are multiplied by kRoot^2, or the
// central one would underflow for |x| > 6.6. The factor cancels in y for queries and is divided out
// for keys. x is clamped to [-reach, reach]; its gradient is that of the clamped value, not 0, so
// that training can move x back onto the grid.
struct Gaussians {
  static constexpr bool kPrepares = true, kShifts = false;
  static constexpr Real kLift = kDouble ? 1 : Real(256);
  static constexpr bool kHasFar = true;
  // Below this den a query has no key near, and below this z a node has no keys (smallest_den).
  static constexpr Real kMinDen = kDouble ? Real(1e-290) : Real(1e-30);
  static constexpr Real kSmallest = 1 / std::numeric_limits<Real>::max();
  static constexpr Real kRoot = Real(68719476736.0);  // 2^36
  struct Point {
    V first, up, down;  // feature at the central node, X, 1 / X
  };

  int terms;
  Real reach, step;
  Real ratio[kMaxTerms / 2], slope_at[kMaxTerms];

  // The reach is the same as in expansion.py.
  Gaussians(double radius, int nodes) : terms(nodes), reach(Real(std::min(radius + 1.5, 8.0))) {
    const int M = nodes / 2;
    step = Real(4 * radius / M);
    const double h = double(step) / 4;  // from the rounded step, whose exponential is X
    for (int m = 0; m < M; ++m) ratio[m] = Real(std::exp(-2 * h * h * (2 * m + 1)));
    for (int n = 0; n < nodes; ++n) slope_at[n] = Real((n - M) * double(step));
  }

  INLINE V inside(V x) const { return max(-splat(reach), min(splat(reach), x)); }
  // The rounding errors of the exponents are corrected, because powers would amplify them.
  INLINE Point point(V x) const {
    x = inside(x);
    const V square = x * x, lost = fma(x, x, -square);
    const V power = x * step, missed = fma(x, splat(step), -power);
    const V root = exp<true>(-square) * kRoot, first = root * root;
    const V near = exp<true>(power), up = fma(near, missed, near);
    return {fma(first, -2 * lost, first), up, 1 / up};  // the division runs on otherwise idle units
  }
  // Large enough that gy / den is finite.
  static INLINE V min_den(V gy) {
    const V den = abs(gy) * (2 * kLift * kSmallest);
    return max(splat(kMinDen), select(den == kInf, V{}, den));
  }
  static INLINE V magnitude(V) { return V{}; }
  static INLINE V weight(V, V) { return splat(1 / kRoot / kRoot); }
  INLINE V slope(V k) const { return -4 * inside(k); }

  // Return y of queries with no key near: they read the nearest written node on each side.
  __attribute__((noinline)) V read_far(V q, const V *s, const V *z) const {
    const V x = inside(q);
    V distance[2] = {splat(kInf), splat(kInf)}, num[2] = {}, den[2] = {};
    for (int n = 0; n < terms; ++n) {
      const V offset = slope_at[n] / 4 - x;
      const I written = z[n] > kMinDen, left = written & (offset <= 0);
      const I right = written & (offset > 0) & (distance[1] == kInf);
      for (int side = 0; side < 2; ++side) {
        const I found = side ? right : left;
        distance[side] = select(found, abs(offset), distance[side]);
        num[side] = select(found, s[n], num[side]);
        den[side] = select(found, z[n], den[side]);
      }
    }
    const V least = min(distance[0], distance[1]);
    V total_num{}, total_den{};
    for (int side = 0; side < 2; ++side) {
      const V d = distance[side], f = select(d == kInf, V{}, exp(-2 * (d - least) * (d + least)));
      total_num = fma(f, num[side], total_num);
      total_den = fma(f, den[side], total_den);
    }
    return select(total_den == 0, V{}, total_num / total_den);
  }
};

// N nodes u_m = m h, |m| <= M, on [-radius, radius]. e^-2(x - u_(m+1))^2 is e^-2(x - u_m)^2 times
// X e^-2h^2(2m + 1), so features are computed outward from the central node without an exponential
// per node.
template <int N> struct Quadrature : Gaussians {
  static constexpr int kTerms = N, M = N / 2;
  static constexpr Real kMaxProduct = kDouble ? Real(1e300) : Real(1e32);
  using Sums = ::Sums<N>;
  using Shared = Gaussians;

  explicit Quadrature(double radius) : Gaussians(radius, N) {}
  static INLINE Real c(int) { return 1; }

  INLINE void add(Sums &sums, const Point &x, V u, V rho) const {
    const V both = u * rho;
    outward(x, [&](int n, V f) INLINE_LAMBDA {
      sums.s[n] = fma(f, both, sums.s[n]);
      sums.z[n] = fma(f, u, sums.z[n]);
    });
  }
  // u = gy / den grows with the distance to the nearest key, and f_n u may overflow at a node near
  // the query. No key is near that node (den would not be small), so the limit does not change the
  // result; it must only leave room for a sum over millions of tokens.
  INLINE void add_scaled(Sums &sums, const Point &x, V u, V rho) const {
    const V limit = kMaxProduct / abs(u), both = u * rho;
    outward(x, [&](int n, V f) INLINE_LAMBDA {
      const V bounded = min(f, limit);
      sums.s[n] = fma(bounded, both, sums.s[n]);
      sums.z[n] = fma(bounded, u, sums.z[n]);
    });
  }

  template <bool kDerivative, bool kScaled>
  INLINE Reading read(const Point &p, const Sums &base, const Sums &local) const {
    return sum<kDerivative>(
        p, [&](int n) INLINE_LAMBDA { return local.s[n] + base.s[n]; },
        [&](int n) INLINE_LAMBDA { return local.z[n] + base.z[n]; });
  }
  template <bool kDerivative, bool kScaled>
  INLINE Reading read(const Point &p, const Sums &base) const {
    return sum<kDerivative>(
        p, [&](int n) INLINE_LAMBDA { return base.s[n]; },
        [&](int n) INLINE_LAMBDA { return base.z[n]; });
  }

 private:
  // Call f(n, kRoot^2 e^-2(x - u_m)^2) for every node, from the centre outward.
  template <class F> INLINE void outward(const Point &x, F f) const {
    V right = x.first, left = right;
    f(M, right);
    each_term<M, kUnrolledPairs>([&](auto i) INLINE_LAMBDA {
      right = right * (x.up * ratio[i]);
      left = left * (x.down * ratio[i]);
      f(M + 1 + i, right);
      f(M - 1 - i, left);
    });
  }
  template <bool kDerivative, class S, class Z> INLINE Reading sum(const Point &p, S s, Z z) const {
    Reading o{};
    o.r = splat(1);
    outward(p, [&](int n, V f) INLINE_LAMBDA {
      const V sn = s(n), zn = z(n);
      o.s = fma(f, sn, o.s);
      o.z = fma(f, zn, o.z);
      if (kDerivative) {
        const V d = f * slope_at[n];
        o.ds = fma(d, sn, o.ds);
        o.dz = fma(d, zn, o.dz);
      }
    });
    return o;
  }
};

}  // namespace
