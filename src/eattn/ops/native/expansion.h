// An expansion names the features of q and k. The scan (scan.h) knows only this
// interface, and that the kernel is symmetric, K(x, p) = sum_n f_n(x) c_n f_n(p), so that the
// backward is the same scan with q and k exchanged:
//   kTerms          how many functions there are
//   c(n)            their coefficients
//   key(k), query(q)  all that is needed of a token, a Point; kPrepares if that takes exponentials
//   magnitude(k)    its running minimum is the shift: sums are relative to the largest weight so far
//   weight(k, m)    what a key is multiplied by at shift m, beside the functions
//   slope(k)        d/dk log of that and of all the functions' common factor
//   kLift           a power of two that the backward's sums are kept times
//   min_den(gy)     a smaller den comes from keys too far away to have a gradient
//   add, add_scaled f_n at a key, at a query, join the sums
//   read            sum_n c_n f_n(p) s_n, and its derivative without that of the common factor
#pragma once
#include "simd.h"

namespace {

// For each power or node n, the sum with v and the sum without (Eq. 12, Eq. 13).
template <int N> struct Sums {
  V s[N], z[N];
};

// Value and derivative of S(p) = sum_n c_n f_n(p) s_n, and of Z(p) alike. A scaled reading is times
// r^order (derivatives: with respect to p r), where r is 1 unless |p| is large; r cancels in S / Z.
struct Reading {
  V s, z, ds, dz, r;
};

// f(0), ..., f(N - 1). Many terms do not fit into the registers anyway: then a loop is as good, and
// compiles in a fraction of the time.
template <int N, class F> INLINE void each_term(F f) {
  if constexpr (N <= 17) unroll<N>(f);
  else
    for (int n = 0; n < N; ++n) f(n);
}

}  // namespace
