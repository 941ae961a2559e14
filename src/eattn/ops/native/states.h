// Load and store initial and final states, and the checkpoints of the forward.
#pragma once
#include "io.h"
#include "scan.h"

namespace {

// Row r of tensors [R, N, D]; `sums` has s of all terms, then z of all terms.
void load_sums(V *sums, int terms, const void *s, const void *z, int64_t r,
               const Channels &c) {
  for (int n = 0; n < terms; ++n) {
    const int64_t at = (r * terms + n) * c.a.D + c.d;
    sums[n] = load_lanes((const Real *)s + at, c.lanes, 0);
    sums[terms + n] = load_lanes((const Real *)z + at, c.lanes, 0);
  }
}
void store_sums(void *s, void *z, const V *sums, int terms, int64_t r, const Channels &c) {
  for (int n = 0; n < terms; ++n) {
    const int64_t at = (r * terms + n) * c.a.D + c.d;
    store_lanes((Real *)s + at, sums[n], c.lanes);
    store_lanes((Real *)z + at, sums[terms + n], c.lanes);
  }
}
// Channels beyond D have shift 0, so that no key of theirs replaces it.
INLINE V load_shift(const void *m, const Channels &c) {
  return load_lanes((const Real *)m + c.g.index * c.a.D + c.d, c.lanes, 0);
}

void load_initial(const Channels &c, Block b) {
  start(b, splat(kInf));
  if (!c.a.s0) return;
  load_sums(b.prefix, b.terms, c.a.s0, c.a.z0, c.g.index, c);
  b.prefix_shift() = b.shift() = load_shift(c.a.m0, c);
}
void store_final(const Channels &c, Block b) {
  V sums[2 * kMaxTerms];
  total(sums, b);
  store_sums(c.a.s1, c.a.z1, sums, b.terms, c.g.index, c);
  store_lanes((Real *)c.a.m1 + c.g.index * c.a.D + c.d, b.shift(), c.lanes);
}

// Checkpoints: [slot, 2 N + 1, D], the state before every kCheckpoint-th token.
INLINE Real *checkpoint(const Channels &c, int64_t t, int terms) {
  return (Real *)c.a.saved + (c.g.slot + t / kCheckpoint) * (2 * terms + 1) * c.a.D;
}
void save(const Channels &c, int64_t t, Block b) {
  V sums[2 * kMaxTerms];
  total(sums, b);
  Real *at = checkpoint(c, t, b.terms);
  store_sums(at, at + b.terms * c.a.D, sums, b.terms, 0, c);
  store_lanes(at + 2 * b.terms * c.a.D + c.d, b.shift(), c.lanes);
}
void restore(const Channels &c, int64_t t, Block b) {
  const Real *at = checkpoint(c, t, b.terms);
  start(b, load_lanes(at + 2 * b.terms * c.a.D + c.d, c.lanes, 0));
  load_sums(b.prefix, b.terms, at, at + b.terms * c.a.D, 0, c);
}

}  // namespace
