// States in memory: the caller's initial and final ones, and the forward's checkpoints.
#pragma once
#include "io.h"

namespace {

template <class E> struct StateIo {
  static constexpr int N = E::kTerms;
  using Sums = ::Sums<N>;
  using B = Block<E>;

  // Row r of tensors laid out [R, N, D].
  static INLINE Sums load_sums(const void *s, const void *z, int64_t r, const Channels &c) {
    Sums t;
    for (int n = 0; n < N; ++n) {
      const int64_t at = (r * N + n) * c.a.D + c.d;
      t.s[n] = load_lanes((const Real *)s + at, c.lanes, 0);
      t.z[n] = load_lanes((const Real *)z + at, c.lanes, 0);
    }
    return t;
  }
  static INLINE void store_sums(void *s, void *z, const Sums &t, int64_t r, const Channels &c) {
    for (int n = 0; n < N; ++n) {
      const int64_t at = (r * N + n) * c.a.D + c.d;
      store_lanes((Real *)s + at, t.s[n], c.lanes);
      store_lanes((Real *)z + at, t.z[n], c.lanes);
    }
  }
  static INLINE V load_shift(const void *m, const Channels &c) {
    return load_lanes((const Real *)m + c.g.index * c.a.D + c.d, c.lanes, kInf);
  }

  static void load_initial(const Channels &c, B &b) {
    start(b, splat(kInf));
    if (!c.a.s0) return;
    b.prefix = load_sums(c.a.s0, c.a.z0, c.g.index, c);
    b.prefix_shift = b.shift = load_shift(c.a.m0, c);
  }
  static void store_final(const Channels &c, const B &b) {
    store_sums(c.a.s1, c.a.z1, total(b), c.g.index, c);
    store_lanes((Real *)c.a.m1 + c.g.index * c.a.D + c.d, b.shift, c.lanes);
  }
  static INLINE Sums load_final(const Channels &c) {
    return load_sums(c.a.s1, c.a.z1, c.g.index, c);
  }

  // Checkpoints: [slot, 2 N + 1, D], the state before every kCheckpoint-th token.
  static INLINE Real *checkpoint(const Channels &c, int64_t t) {
    return (Real *)c.a.saved + (c.g.slot + t / kCheckpoint) * (2 * N + 1) * c.a.D;
  }
  static void save(const Channels &c, int64_t t, const B &b) {
    Real *at = checkpoint(c, t);
    store_sums(at, at + N * c.a.D, total(b), 0, c);
    store_lanes(at + 2 * N * c.a.D + c.d, b.shift, c.lanes);
  }
  static void restore(const Channels &c, int64_t t, B &b) {
    const Real *at = checkpoint(c, t);
    start(b, load_lanes(at + 2 * N * c.a.D + c.d, c.lanes, kInf));
    b.prefix = load_sums(at, at + N * c.a.D, 0, c);
  }

  // The backward's sums begin with the gradient of the final state, at the final shift...
  static void start_reverse(const E &e, const Channels &c, B &b) {
    start(b, load_shift(c.a.m1, c));
    if (!c.a.gs) return;
    const Sums g = load_sums(c.a.gs, c.a.gz, c.g.index, c);
    for (int n = 0; n < N; ++n) {
      b.prefix.z[n] = g.s[n] * (E::kLift / e.c(n));
      b.prefix.s[n] = -g.z[n] * (E::kLift / e.c(n));
    }
  }
  // ... and end as the gradient of the initial one.
  static void finish_reverse(const E &e, const Channels &c, const B &b) {
    if (!c.a.ds) return;
    Sums t = weighted(e, total(b)), g;
    rescale(t, decay(b.shift, load_shift(c.a.m0, c)) * (1 / E::kLift));
    for (int n = 0; n < N; ++n) {
      g.s[n] = t.z[n];
      g.z[n] = -t.s[n];
    }
    store_sums(c.a.ds, c.a.dz, g, c.g.index, c);
  }
};

}  // namespace
