// The scan: sums of terms along time, for one block of kLanes channels.
//
// Sums have three levels: the terms of a tile (registers), the tiles of a chunk (Block::chunk), and
// everything before the chunk (Block::prefix). Long sums stay accurate, and the work can be split
// over time without changing a bit: chunks begin at multiples of kChunk tokens of a sequence, for
// any number of threads.
//
// Every sum is relative to a shift m: e^(-m^2) times the stored sum is the true one. To move a sum
// to another shift, multiply it by decay(old, new), which is at most 1 in the order of the walk.
//
// With a log decay, a shift grows as fast as the true sums decay, so that the stored sums stay as
// they are until a key replaces the shift. All of that is decided before the walk, see Course.
#pragma once
#include "io.h"
#include "quadrature.h"
#include "taylor.h"

namespace {

// e^-|a^2 - b^2|, to some power. The product is accurate; a difference of rounded squares would not
// be.
INLINE V decay(V a, V b, Real power = 1) {
  return select(a == b, splat(1), exp(-abs(a - b) * (a + b) * power));
}

template <int N> INLINE void clear(Sums<N> &a) {
  each_term<N>([&](auto n) INLINE_LAMBDA { a.s[n] = a.z[n] = V{}; });
}
template <int N> INLINE void rescale(Sums<N> &a, V f) {
  each_term<N>([&](auto n) INLINE_LAMBDA {
    a.s[n] = a.s[n] * f;
    a.z[n] = a.z[n] * f;
  });
}

// The sums of one block of channels, in memory. The number of terms is a run-time value here, so
// that everything but the walk is compiled once and not for every expansion.
struct Block {
  int terms;
  V *prefix;  // s of all terms, then z of all terms

  INLINE V *chunk() const { return prefix + 2 * terms; }
  // Shifts of prefix and of chunk. With decay they are the same, and prefix_factor is what the
  // prefix has lost since it was stored; it is 1 without decay.
  INLINE V &prefix_shift() const { return prefix[4 * terms]; }
  INLINE V &shift() const { return prefix[4 * terms + 1]; }
  INLINE V &prefix_factor() const { return prefix[4 * terms + 2]; }
  INLINE V prefix_kept() const { return decay(prefix_shift(), shift()) * prefix_factor(); }

  // No two blocks share a pair of cache lines: threads may work on adjacent blocks.
  static INLINE int64_t stride(int terms) {
    constexpr int kPair = 128 / kBytes;
    return (4 * terms + 3 + kPair - 1) / kPair * kPair;
  }
};

inline void start(Block b, V shift) {
  for (int n = 0; n < 4 * b.terms; ++n) b.prefix[n] = V{};
  b.prefix_shift() = b.shift() = shift;
  b.prefix_factor() = splat(1);
}

inline void copy(Block to, Block from) {
  for (int n = 0; n < 4 * to.terms + 3; ++n) to.prefix[n] = from.prefix[n];
}

// Compute prefix + chunk at the current shift.
inline void total(V *to, Block b) {
  const V f = b.prefix_kept();
  for (int n = 0; n < 2 * b.terms; ++n) to[n] = fma(b.prefix[n], f, b.chunk()[n]);
}

// Close a chunk: add its sums to the prefix.
inline void fold(Block b) {
  total(b.prefix, b);
  b.prefix_shift() = b.shift();
  b.prefix_factor() = splat(1);
  for (int n = 0; n < 2 * b.terms; ++n) b.chunk()[n] = V{};
}

// The same for a chunk that another task summed, starting at this block's shift.
inline void fold(Block b, Block chunk) {
  for (int n = 0; n < 2 * b.terms; ++n) b.chunk()[n] = chunk.chunk()[n];
  b.shift() = chunk.shift();
  fold(b);
}

// Add the chunk of another block, which has a different shift.
inline void merge(Block b, Block other) {
  const V m = min(other.shift(), b.prefix_shift());
  const V f = decay(b.prefix_shift(), m), g = decay(other.shift(), m);
  for (int n = 0; n < 2 * b.terms; ++n)
    b.prefix[n] = fma(b.prefix[n], f, other.chunk()[n] * g);
  b.prefix_shift() = b.shift() = m;
}

// What happens to the shift and the sums within a tile, with decay. At token t the shift is a pair:
// m^2 + c, where m is the magnitude of a key and c is what the true sums lost since. The shift at
// the ends of a tile is one number.
struct Course {
  V start, end;     // shifts
  uint32_t moved;   // bit t: before token t, the sums are multiplied by kept[t]
  V kept[kTile];
  V rest, whole;    // factors of the sums from the last token to the end, and over the whole tile

  INLINE bool moves(int t) const { return moved >> t & 1; }
};

// Passed to `walk` as `read` if nothing is read out.
struct Nothing {};

// Return whether the sums are multiplied by a factor f before token t, and move the shift m. In
// reverse order the factor is that between t and t + 1.
template <bool kBackwards, class Step>
INLINE bool moves(int t, int rows, V &m, const Course *course, const Step &step, V &f) {
  if (course) {
    if (!kBackwards) {
      f = course->kept[t];
      return course->moves(t);
    }
    f = t + 1 < rows ? course->kept[t + 1] : course->rest;
    return t + 1 == rows || course->moves(t + 1);
  }
  if (!step.moves(t)) return false;
  const V to = step.shift(t);
  if (!any_differs(to, m)) return false;
  f = decay(m, to);
  m = to;
  return true;
}

// Walk `rows` tokens of one block; kBackwards walks from the last token to the first.
// `step(t, local)` adds the terms of token t to `local`. Before that, the sums move to the shift
// `step.shift(t)` if `step.moves(t)`; with decay they follow the course instead, which is nullptr
// without. `read(t, m, base, local)` then reads out at token t.
template <class E, bool kBackwards, class Step, class Read>
INLINE void walk(const E &e, Block b, int rows, const Course *course, Step step, Read read) {
  constexpr int N = E::kTerms;
  b.terms = N;  // known to the compiler from here on
  constexpr bool kReads = !std::is_same<Read, Nothing>::value;
  // Earlier sums stay in memory, the sums of the tile in registers.
  Sums<N> before, local;
  Sums<N> *base = &before;
  if constexpr (kReads) {
    const V f = b.prefix_kept();
    for (int n = 0; n < N; ++n) {
      before.s[n] = fma(b.prefix[n], f, b.chunk()[n]) * e.c(n);
      before.z[n] = fma(b.prefix[N + n], f, b.chunk()[N + n]) * e.c(n);
    }
  }
  clear(local);
  const V start_shift = b.shift();
  V m = start_shift;
  for (int i = 0; i < rows; ++i) {
    const int t = kBackwards ? rows - 1 - i : i;
    if constexpr (kReads) base = opaque(base);
    V f;
    if (__builtin_expect(moves<kBackwards>(t, rows, m, course, step, f), 0)) {
      if constexpr (kReads) rescale(*base, f);
      rescale(local, f);
    }
    step(t, local);
    if constexpr (kReads) read(t, m, *base, local);
  }
  V kept = decay(start_shift, m), own = splat(1);
  if (course) {
    kept = course->whole;
    own = !kBackwards ? course->rest : course->moves(0) ? course->kept[0] : own;
    b.prefix_factor() = b.prefix_factor() * kept;
    m = b.prefix_shift() = kBackwards ? course->start : course->end;
  }
  each_term<N>([&](auto n) INLINE_LAMBDA {
    V &s = b.chunk()[n], &z = b.chunk()[N + n];
    s = fma(s, kept, local.s[n] * own);
    z = fma(z, kept, local.z[n] * own);
  });
  b.shift() = m;
}

}  // namespace
