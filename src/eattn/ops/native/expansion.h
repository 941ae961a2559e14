// An expansion defines the features of q and k. The scan (scan.h) uses only the interface below.
// The kernel is symmetric, K(x, p) = sum_n f_n(x) c_n f_n(p), so that the backward is the same scan
// with q and k exchanged.
//   kTerms            number of features
//   c(n)              coefficients
//   Shared            base class with what does not depend on the number of features:
//   point(x)          Point of a token, from which features are computed
//   kPrepares         whether making a Point takes exponentials
//   magnitude(k)      per-key magnitude whose running minimum is the shift
//   weight(k, m)      factor of a key's features at shift m
//   kShifts           whether keys have a magnitude; if not, the shift is always 0
//   slope(k)          d/dk log of the weight and of the features' common factor
//   kLift             power of two that multiplies the sums of the backward
//   min_den(gy)       below this den all keys are too far away to have a gradient
//   kHasFar           whether read_far, instead of read, gives y below kMinDen
//   add, add_scaled   add the features of a key, of a query, to the sums
//   read              sum_n c_n f_n(p) s_n, and its derivative with the common factor held constant
#pragma once
#include "simd.h"

namespace {

constexpr int kMaxTerms = 33;

// For each power or node n, the sum with v and the sum without v (Eq. 12, Eq. 13).
template <int N> struct Sums {
  V s[N], z[N];
};

// Values and derivatives of S(p) = sum_n c_n f_n(p) s_n and Z(p) = sum_n c_n f_n(p) z_n. A scaled
// reading is multiplied by r^order (and derivatives are with respect to p r). r is 1 unless |p| is
// large, and cancels in S / Z.
struct Reading {
  V s, z, ds, dz, r;
};

// Call f(0), ..., f(N - 1). Loops over few terms are unrolled. For many terms a loop is as fast and
// compiles in a fraction of the time. float32 with wide vectors, the common case, is worth a longer
// compilation.
constexpr bool kCommon = !kDouble && kBytes > 16;
constexpr int kUnrolled = kCommon ? 17 : 9, kUnrolledPairs = kCommon ? 8 : 4;
template <int N, int kLimit = kUnrolled, class F> INLINE void each_term(F f) {
  if constexpr (N <= kLimit) unroll<N>(f);
  else
    for (int n = 0; n < N; ++n) f(n);
}

}  // namespace
