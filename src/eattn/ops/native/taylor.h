// Taylor features: powers of q and k, the expansion of the paper.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "expansion.h"

namespace {

// The code that is the same for any order.
struct Powers {
  static constexpr bool kPrepares = false, kHasFar = false, kShifts = true;
  using Point = V;

  // gy q^n / den may be 1e-40 (gradient of a mean over many tokens, large keys) or 1e30 (large
  // queries, keys near 0). With this factor both are normal float32 numbers.
  static constexpr Real kLift = kDouble ? 1 : Real(16384);

  static INLINE V point(V x) { return x; }
  static INLINE V min_den(V) { return V{}; }
  static INLINE V magnitude(V k) { return abs(k); }
  // Return e^(m^2 - k^2), which is at most 1 because m <= |k|.
  static INLINE V weight(V k, V m) {
    const V a = abs(k);
    return exp((m - a) * (m + a));
  }
  static INLINE V slope(V k) { return -2 * k; }
};

// Taylor polynomial of e^(2 x p) of order N - 1 (Eq. 4): f_n(x) = x^n, c_n = 2^n / n! (Eq. 7).
template <int N> struct Taylor : Powers {
  static constexpr int kTerms = N;
  using Sums = ::Sums<N>;
  using Shared = Powers;

  Real cap;  // largest |p| that is scaled, see scale_of

  explicit Taylor(double)
      : cap(Real(std::pow(double(std::numeric_limits<Real>::max()), 0.8 / std::max(N - 1, 1)))) {}

  struct Coefficients {
    Real value[N] = {};
    constexpr Coefficients() {
      double a = 1;
      for (int n = 0; n < N; ++n) {
        value[n] = Real(a);
        a *= 2.0 / (n + 1);
      }
    }
  };
  static constexpr Coefficients table{};
  static INLINE Real c(int n) { return table.value[n]; }

  // Above this |p|, powers are relative to |p|^order, or they would overflow.
  static constexpr Real kLarge = 4;

  // |p| is limited to the cap (same as in features.py), or den would underflow.
  INLINE V scale_of(V p) const {
    const V a = abs(p);
    return select(a > kLarge, Real(1) / min(a, splat(cap)), splat(1));
  }

  // s_n += u x^n rho, z_n += u x^n (Eq. 12, Eq. 13, and their mirror in the backward).
  static INLINE void add(Sums &sums, V x, V u, V rho) {
    each_term<N>([&](auto n) INLINE_LAMBDA {
      sums.s[n] = fma(u, rho, sums.s[n]);
      sums.z[n] = sums.z[n] + u;
      if (n + 1 < N) u = u * x;
    });
  }

  // Like add, but u still lacks the factor r^order by which `read` scaled its result.
  INLINE void add_scaled(Sums &sums, V x, V u, V rho) const {
    if (__builtin_expect(!any_above(abs(x), splat(kLarge)), 1)) return add(sums, x, u, rho);
    const V r = scale_of(x), t = x * r;
    V power[N];
    power[N - 1] = splat(1);
    each_term<N - 1>([&](auto i) INLINE_LAMBDA { power[N - 2 - i] = power[N - 1 - i] * r; });
    each_term<N>([&](auto n) INLINE_LAMBDA {
      const V f = u * power[n];
      sums.s[n] = fma(f, rho, sums.s[n]);
      sums.z[n] = sums.z[n] + f;
      u = u * t;
    });
  }

  // Horner's rule over base_n + c_n local_n (Eq. 14, Eq. 15); base already includes c_n.
  template <bool kDerivative, bool kScaled>
  INLINE Reading read(V p, const Sums &base, const Sums &local) const {
    return horner<kDerivative, kScaled>(
        p, [&](int n) INLINE_LAMBDA { return fma(splat(c(n)), local.s[n], base.s[n]); },
        [&](int n) INLINE_LAMBDA { return fma(splat(c(n)), local.z[n], base.z[n]); });
  }

  template <bool kDerivative, bool kScaled> INLINE Reading read(V p, const Sums &base) const {
    return horner<kDerivative, kScaled>(
        p, [&](int n) INLINE_LAMBDA { return base.s[n]; },
        [&](int n) INLINE_LAMBDA { return base.z[n]; });
  }

 private:
  template <bool kDerivative, bool kScaled, class S, class Z>
  INLINE Reading horner(V p, S s, Z z) const {
    Reading o{};
    o.r = splat(1);
    o.s = s(N - 1);
    o.z = z(N - 1);
    if (!kScaled || __builtin_expect(!any_above(abs(p), splat(kLarge)), 1)) {
      each_term<N - 1>([&](auto i) INLINE_LAMBDA {
        const int n = N - 2 - i;
        if (kDerivative) {
          o.ds = fma(o.ds, p, o.s);
          o.dz = fma(o.dz, p, o.z);
        }
        o.s = fma(o.s, p, s(n));
        o.z = fma(o.z, p, z(n));
      });
      return o;
    }
    o.r = scale_of(p);
    const V t = p * o.r;
    V power = o.r;
    each_term<N - 1>([&](auto i) INLINE_LAMBDA {
      const int n = N - 2 - i;
      if (kDerivative) {
        o.ds = fma(o.ds, t, o.s);
        o.dz = fma(o.dz, t, o.z);
      }
      o.s = fma(o.s, t, s(n) * power);
      o.z = fma(o.z, t, z(n) * power);
      power = power * o.r;
    });
    return o;
  }
};

}  // namespace
