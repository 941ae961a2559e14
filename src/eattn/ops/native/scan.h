// The scan: sums of terms along time, for one block of kLanes channels.
//
// Sums have three levels: the terms of a tile (registers), the tiles of a chunk (Block::chunk), and
// everything before the chunk (Block::prefix). Long sums stay accurate, and the work can be split
// over time without changing a bit: chunks begin at multiples of kChunk tokens of a sequence, for
// any number of threads.
//
// Every sum is relative to a shift m: e^(-m^2) times the stored sum is the true one. To move a sum
// to another shift, multiply it by decay(old, new), which is at most 1 in the order of the walk.
#pragma once
#include "taylor.h"
#include "quadrature.h"

namespace {

constexpr int kTile = 16;           // tokens per tile; longer column walks are hard to prefetch
constexpr int64_t kCheckpoint = 64; // the forward saves its state every 64 tokens
constexpr int64_t kChunk = 2048;    // unit of work when time is split between threads

// e^-|a^2 - b^2|, to some power. The product is accurate; a difference of rounded squares would not
// be.
INLINE V decay(V a, V b, Real power = 1) {
  return select(a == b, splat(1), exp(-abs(a - b) * (a + b) * power));
}

template <int N> INLINE void clear(Sums<N> &a) {
  each_term<N>([&](auto n) INLINE_LAMBDA { a.s[n] = a.z[n] = V{}; });
}

// Aligned so that no two blocks share a pair of cache lines: threads may work on adjacent blocks.
template <class E> struct alignas(128) Block {
  Sums<E::kTerms> prefix, chunk;
  V prefix_shift, shift;  // shifts of prefix and of chunk
};

template <class E> INLINE void start(Block<E> &b, V shift) {
  clear(b.prefix);
  clear(b.chunk);
  b.prefix_shift = b.shift = shift;
}

// Return prefix + chunk at the current shift.
template <class E> INLINE Sums<E::kTerms> total(const Block<E> &b) {
  Sums<E::kTerms> t;
  const V f = decay(b.prefix_shift, b.shift);
  for (int n = 0; n < E::kTerms; ++n) {
    t.s[n] = fma(b.prefix.s[n], f, b.chunk.s[n]);
    t.z[n] = fma(b.prefix.z[n], f, b.chunk.z[n]);
  }
  return t;
}

// Close a chunk: add its sums to the prefix.
template <class E> INLINE void fold(Block<E> &b) {
  b.prefix = total(b);
  b.prefix_shift = b.shift;
  clear(b.chunk);
}

// The same for a chunk that another task summed, starting at this block's shift.
template <class E> INLINE void fold(Block<E> &b, const Block<E> &chunk) {
  b.chunk = chunk.chunk;
  b.shift = chunk.shift;
  fold(b);
}

// Add another block's sums, which have a different shift.
template <class E> INLINE void merge(Block<E> &b, const Sums<E::kTerms> &sums, V shift) {
  const V m = min(shift, b.prefix_shift), f = decay(b.prefix_shift, m), g = decay(shift, m);
  for (int n = 0; n < E::kTerms; ++n) {
    b.prefix.s[n] = fma(b.prefix.s[n], f, sums.s[n] * g);
    b.prefix.z[n] = fma(b.prefix.z[n], f, sums.z[n] * g);
  }
  b.prefix_shift = b.shift = m;
}

// Multiply by the coefficients c_n, which `E::read` expects in its base.
template <class E> INLINE Sums<E::kTerms> weighted(const E &e, Sums<E::kTerms> t) {
  for (int n = 0; n < E::kTerms; ++n) {
    t.s[n] = t.s[n] * e.c(n);
    t.z[n] = t.z[n] * e.c(n);
  }
  return t;
}

template <int N> INLINE void rescale(Sums<N> &a, V f) {
  each_term<N>([&](auto n) INLINE_LAMBDA {
    a.s[n] = a.s[n] * f;
    a.z[n] = a.z[n] * f;
  });
}

// Passed to `walk` as `read` if nothing is read out.
struct Nothing {};

// Walk `rows` tokens of one block; kBackwards walks from the last token to the first.
// `step(t, m, local, moved)` adds the terms of token t to `local`. If the shift changes to m', it
// first calls moved(m'). `read(t, m, base, local)` then reads out at token t.
template <class E, bool kBackwards, class Step, class Read>
INLINE void walk(const E &e, Block<E> &b, int rows, Step step, Read read) {
  constexpr bool kReads = !std::is_same<Read, Nothing>::value;
  // Earlier sums stay in memory, the sums of the tile in registers.
  Sums<E::kTerms> before, local;
  Sums<E::kTerms> *base = &before;
  if constexpr (kReads) before = weighted(e, total(b));
  clear(local);
  const V start_shift = b.shift;
  V m = start_shift;
  auto moved = [&](V to) INLINE_LAMBDA {
    if (__builtin_expect(any_differs(to, m), 0)) {
      const V f = decay(m, to);
      if constexpr (kReads) rescale(*base, f);
      rescale(local, f);
      m = to;
    }
  };
  for (int i = 0; i < rows; ++i) {
    const int t = kBackwards ? rows - 1 - i : i;
    if constexpr (kReads) base = opaque(base);
    step(t, m, local, moved);
    if constexpr (kReads) read(t, m, *base, local);
  }
  const V f = decay(start_shift, m);
  each_term<E::kTerms>([&](auto n) INLINE_LAMBDA {
    b.chunk.s[n] = fma(b.chunk.s[n], f, local.s[n]);
    b.chunk.z[n] = fma(b.chunk.z[n], f, local.z[n]);
  });
  b.shift = m;
}

}  // namespace
