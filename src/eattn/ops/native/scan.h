// The scan: how terms are summed along time. One block of kLanes channels at a time.
//
// Sums are kept in three levels so that long ones stay accurate and the work can be cut in time
// without changing a bit: a tile's own terms (registers), the tiles of a chunk (Block::chunk), and
// everything before the chunk (Block::prefix). Chunks begin at multiples of kChunk of a sequence,
// however many threads there are.
//
// Every sum is relative to a shift m: it stands for e^(-m^2) times the sum proper. Moving it to
// another shift is a multiplication by decay(old, new), never above 1 in the order we walk.
#pragma once
#include "taylor.h"
#include "quadrature.h"

namespace {

constexpr int kTile = 16;           // tokens walked at once; long column walks are hard to prefetch
constexpr int64_t kCheckpoint = 64; // the forward saves its state this often for the backward
constexpr int64_t kChunk = 2048;    // a unit of work when time is cut between threads

// e^-(|a^2 - b^2|) as a product: a difference of rounded squares would lose the digits that matter.
INLINE V decay(V a, V b) {
  return select(a == b, splat(1), exp(-abs(a - b) * (a + b)));
}

template <int N> INLINE void clear(Sums<N> &a) {
  each_term<N>([&](auto n) INLINE_LAMBDA { a.s[n] = a.z[n] = V{}; });
}

// Aligned so that no two blocks share a pair of cache lines: another thread may own the next one.
template <class E> struct alignas(128) Block {
  Sums<E::kTerms> prefix, chunk;
  V prefix_shift, shift;  // of prefix; of chunk and of what comes next
};

template <class E> INLINE void start(Block<E> &b, V shift) {
  clear(b.prefix);
  clear(b.chunk);
  b.prefix_shift = b.shift = shift;
}

// prefix + chunk, at the current shift.
template <class E> INLINE Sums<E::kTerms> total(const Block<E> &b) {
  Sums<E::kTerms> t;
  const V f = decay(b.prefix_shift, b.shift);
  for (int n = 0; n < E::kTerms; ++n) {
    t.s[n] = fma(b.prefix.s[n], f, b.chunk.s[n]);
    t.z[n] = fma(b.prefix.z[n], f, b.chunk.z[n]);
  }
  return t;
}

// Close a chunk: what it summed joins the prefix.
template <class E> INLINE void fold(Block<E> &b) {
  b.prefix = total(b);
  b.prefix_shift = b.shift;
  clear(b.chunk);
}

// The same for a chunk that was summed elsewhere, from this block's shift on.
template <class E> INLINE void fold(Block<E> &b, const Block<E> &chunk) {
  b.chunk = chunk.chunk;
  b.shift = chunk.shift;
  fold(b);
}

// Add another block's sums, each at a shift of its own.
template <class E> INLINE void merge(Block<E> &b, const Sums<E::kTerms> &sums, V shift) {
  const V m = min(shift, b.prefix_shift), f = decay(b.prefix_shift, m), g = decay(shift, m);
  for (int n = 0; n < E::kTerms; ++n) {
    b.prefix.s[n] = fma(b.prefix.s[n], f, sums.s[n] * g);
    b.prefix.z[n] = fma(b.prefix.z[n], f, sums.z[n] * g);
  }
  b.prefix_shift = b.shift = m;
}

// Multiply by the coefficients c_n, as `E::read` expects its base.
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

// For `walk` when nothing is read out.
struct Nothing {};

// Walk `rows` tokens of one block. `step(t, m, local, moved)` adds token t's term to `local`, after
// calling moved(m') if the shift becomes m'; `read(t, m, base, local)` then reads out at t.
// kBackwards walks from the last token to the first.
template <class E, bool kBackwards, class Step, class Read>
INLINE void walk(const E &e, Block<E> &b, int rows, Step step, Read read) {
  constexpr bool kReads = !std::is_same<Read, Nothing>::value;
  // What was summed before stays in memory, the tile's own sums in registers.
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
