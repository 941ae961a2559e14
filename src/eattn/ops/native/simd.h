// Portable vectors: GCC/Clang vector extensions, as wide as the ISA of this translation unit, with
// intrinsics only for what the extensions lack (fma, any, streaming stores). Floating-point
// contraction is off: every fma is explicit, so that bits do not depend on inlining.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

using Real = EATTN_REAL;
constexpr bool kDouble = sizeof(Real) == 8;

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
constexpr int kLanes = kBytes / int(sizeof(Real));

template <class T> struct IntOf;
template <> struct IntOf<float> { using type = int32_t; };
template <> struct IntOf<double> { using type = int64_t; };
using Int = IntOf<Real>::type;

typedef Real V __attribute__((vector_size(kBytes)));
typedef Int I __attribute__((vector_size(kBytes)));

// Call f(0), ..., f(N - 1) with compile-time indices, which lets arrays live in registers.
template <int n> struct Index {
  INLINE constexpr operator int() const { return n; }
};
template <class F, int... n> INLINE void unroll(std::integer_sequence<int, n...>, F f) {
  (f(Index<n>{}), ...);
}
template <int N, class F> INLINE void unroll(F f) {
  unroll(std::make_integer_sequence<int, N>{}, f);
}

constexpr Real kInf = std::numeric_limits<Real>::infinity();

// Hide the origin of p from the compiler, so that its contents stay in memory, not in registers.
template <class T> INLINE T *opaque(T *p) {
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

INLINE V load(const Real *p) { V x; memcpy(&x, p, sizeof x); return x; }
INLINE void store(Real *p, V x) { memcpy(p, &x, sizeof x); }
INLINE V splat(Real x) { return V{} + x; }
INLINE V select(I c, V a, V b) { return c ? a : b; }
INLINE V abs(V x) { return V(I(x) & std::numeric_limits<Int>::max()); }
INLINE V min(V a, V b) { return a < b ? a : b; }  // b when a is NaN
INLINE V max(V a, V b) { return a > b ? a : b; }

INLINE V sqrt(V x) {
  for (int i = 0; i < kLanes; ++i)
    x[i] = kDouble ? Real(__builtin_sqrt(x[i])) : Real(__builtin_sqrtf(float(x[i])));
  return x;
}

INLINE V fma(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (kDouble) return V(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
  else return V(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
  if constexpr (kDouble) return V(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c)));
  else return V(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__ARM_NEON) && defined(__aarch64__)
  if constexpr (kDouble) return V(vfmaq_f64(float64x2_t(c), float64x2_t(a), float64x2_t(b)));
  else return V(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
  return a * b + c;
#endif
}

#if !defined(__AVX512F__)
INLINE bool any(I c) {
#if defined(__AVX2__)
  return _mm256_movemask_epi8(__m256i(c)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8(__m128i(c)) != 0;
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return vmaxvq_u32(uint32x4_t(c)) != 0;
#else
  Int r = 0;
  for (int i = 0; i < kLanes; ++i) r |= c[i];
  return r != 0;
#endif
}
#endif

// Whether a != b, or a > b, in any lane.
INLINE bool any_differs(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (kDouble) return _mm512_cmp_pd_mask(__m512d(a), __m512d(b), _CMP_NEQ_UQ) != 0;
  else return _mm512_cmp_ps_mask(__m512(a), __m512(b), _CMP_NEQ_UQ) != 0;
#else
  return any(a != b);
#endif
}
INLINE bool any_above(V a, V b) {
#if defined(__AVX512F__)
  if constexpr (kDouble) return _mm512_cmp_pd_mask(__m512d(a), __m512d(b), _CMP_GT_OQ) != 0;
  else return _mm512_cmp_ps_mask(__m512(a), __m512(b), _CMP_GT_OQ) != 0;
#else
  return any(a > b);
#endif
}

// Store past the cache, for large outputs that are not read again soon. p must be aligned.
INLINE void stream(Real *p, V x) {
#if defined(__AVX512F__)
  _mm512_stream_si512((__m512i *)p, __m512i(x));
#elif defined(__AVX2__)
  _mm256_stream_si256((__m256i *)p, __m256i(x));
#elif defined(__SSE2__)
  _mm_stream_si128((__m128i *)p, __m128i(x));
#else
  store(p, x);
#endif
}
INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// e^x for x <= 87: exactly 1 at 0, exactly 0 if the result is subnormal, NaN for NaN. With kBounded
// the caller guarantees that the result is not subnormal.
template <bool kBounded = false> INLINE V exp(V x) {
  constexpr Real magic = kDouble ? Real(6755399441055744.0) : Real(12582912.0);  // 1.5 * 2^(p-1)
  constexpr int mantissa = kDouble ? 52 : 23;
  constexpr Real lowest = kDouble ? Real(-708.3) : Real(-87.3);
  const V t = fma(x, splat(Real(1.4426950408889634074)), splat(magic));
  const V n = t - magic;
  constexpr Real ln2_hi = kDouble ? Real(6.93147180369123816490e-01) : Real(0.693359375);
  constexpr Real ln2_lo = kDouble ? Real(1.90821492927058770002e-10) : Real(-2.12194440e-4);
  V r = fma(n, splat(-ln2_hi), x);
  r = fma(n, splat(-ln2_lo), r);
  // Taylor polynomial of e^r on |r| <= ln 2 / 2, to the precision of the type.
  constexpr int degree = kDouble ? 13 : 6;
  constexpr double inverse[] = {1.0,         1.0,          0.5,           1.0 / 6,
                                1.0 / 24,    1.0 / 120,    1.0 / 720,     1.0 / 5040,
                                1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800,
                                1.0 / 479001600, 1.0 / 6227020800};
  V p = splat(Real(inverse[degree]));
  unroll<degree>([&](auto n) INLINE_LAMBDA {
    p = fma(p, r, splat(Real(inverse[degree - 1 - n])));
  });
  const V y = V(I(p) + (I(t) << mantissa));
  return kBounded ? y : select(x < lowest, V{}, y);
}

// 2^x, if the result is a normal number.
INLINE V exp2(V x) {
  constexpr Real magic = kDouble ? Real(6755399441055744.0) : Real(12582912.0);  // 1.5 * 2^(p-1)
  constexpr int mantissa = kDouble ? 52 : 23, degree = kDouble ? 13 : 6;
  const V t = x + magic, r = x - (t - magic);
  // Taylor polynomial of 2^r on |r| <= 1/2, to the precision of the type.
  struct Coefficients {
    double value[degree + 1] = {};
    constexpr Coefficients() {
      double c = 1;
      for (int n = 0; n <= degree; c *= 0.69314718055994530942 / ++n) value[n] = c;
    }
  };
  constexpr Coefficients c{};
  V p = splat(Real(c.value[degree]));
  unroll<degree>([&](auto n) INLINE_LAMBDA {
    p = fma(p, r, splat(Real(c.value[degree - 1 - n])));
  });
  return V(I(p) + (I(t) << mantissa));
}

}  // namespace
