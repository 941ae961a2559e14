// Element-wise attention as a series, forward and backward, for one ISA and one accumulation type.
// This file is compiled once per (EATTN_ISA, EATTN_REAL); api.cpp selects a version at run time.
//
// The work is split into (sequence, group of channel blocks) and, if these are fewer than
// the threads and there is no decay, along time. The split does not change any bit of the result
// (see scan.h).
#include "memory.h"
#include "parallel.h"
#include "tiles.h"

namespace {

// Populate the memory of an output, tokens [begin, end). This is fastest on the calling thread's
// core, where pages were freed recently.
void prepare(const EattnView &x, int64_t io, int64_t row, int64_t begin, int64_t end) {
  const int64_t size = io == EATTN_F64 ? 8 : io == EATTN_F32 ? 4 : 2;
  char *data = (char *)x.data + (row * x.sb + begin * x.sl) * size;
  populate(data, size_t((end - begin) * x.sl * size));
}

// Split of the work. Groups are wide, so that long runs of a row are read.
struct Plan {
  static constexpr int64_t kWidest = 32;
  int threads;
  int64_t blocks, groups;
  bool over_time;

  explicit Plan(const EattnArgs &a) {
    blocks = ceil_div(a.D, kLanes);
    // With less work than this, another thread costs more time than it saves.
    constexpr double kWorthAThread = 1 << 17;
    const double work = double(a.B) * double(a.Lq + a.Lk) * double(a.D) * (a.terms + 3);
    threads = work < kWorthAThread * double(a.threads) ? 1 + int(work / kWorthAThread)
                                                       : int(a.threads);
    groups = smaller(blocks, ceil_div(threads, a.R ? a.R : 1));
    if (groups < ceil_div(blocks, kWidest)) groups = ceil_div(blocks, kWidest);
    while (groups < blocks && a.R * groups % threads && a.R * groups < 4 * threads) ++groups;
    const int64_t longest = a.Lq > a.Lk ? a.Lq : a.Lk;
    over_time = a.R * groups < threads && longest >= 2 * kChunk && !a.g.data;
  }
  INLINE Group group(int64_t i) const {
    const int64_t begin = blocks * i / groups;
    return {begin, blocks * (i + 1) / groups - begin};
  }
  INLINE Group all() const { return {0, blocks}; }
  // Number of tokens whose memory the calling thread populates while the other threads compute;
  // chosen so that both take about the same time.
  INLINE int64_t callers_share(int64_t length) const {
    return smaller(length, 2 * length / threads);
  }
};

// Split of a sequence over time into chunks, with one run of chunks per thread.
struct TimeSplit {
  int64_t length, chunks, runs;
  TimeSplit(int64_t tokens, int threads)
      : length(tokens), chunks(ceil_div(tokens, kChunk)), runs(smaller(threads, chunks)) {}
  // First chunk of a run.
  INLINE int64_t first(int64_t run) const { return chunks * run / runs; }
  // First token of a chunk, which is the end of the chunk before.
  INLINE int64_t end(int64_t chunk) const { return smaller(chunk * kChunk, length); }
};

// Adjacent blocks of sums.
struct Blocks {
  V *data;
  int terms;
  INLINE Block operator[](int64_t i) const { return {terms, data + i * Block::stride(terms)}; }
  INLINE Blocks from(int64_t i) const { return {(*this)[i].prefix, terms}; }
};

struct BlockScratch : Blocks {
  Scratch<V> memory;
  BlockScratch(int64_t n, int terms) : Blocks{nullptr, terms}, memory(n * Block::stride(terms)) {
    data = memory.data;
  }
};

struct Series {
  const Tiles &tiles;
  const EattnArgs &a;
  const Plan plan;

  Series(const Tiles &tiles, const EattnArgs &a) : tiles(tiles), a(a), plan(a) {}

  // Call f(spot, i) for every tile of tokens [begin, end) and every block of the group.
  template <class F>
  INLINE void each(const Sequence &g, Group group, int64_t begin, int64_t end, F f) const {
    for (int64_t t = begin; t < end; t += kTile)
      for (int64_t i = 0; i < group.count; ++i) f(Spot({a, g, group.first + i}, t, end), i);
  }
  template <class F>
  INLINE void each_backwards(const Sequence &g, Group group, int64_t begin, int64_t end,
                             F f) const {
    for (int64_t t = begin + (end - begin - 1) / kTile * kTile; t >= begin; t -= kTile)
      for (int64_t i = 0; i < group.count; ++i) f(Spot({a, g, group.first + i}, t, end), i);
  }
  template <class F> INLINE void each_block(const Sequence &g, Group group, F f) const {
    for (int64_t i = 0; i < group.count; ++i) f(Channels(a, g, group.first + i), i);
  }

  BlockScratch blocks(int64_t n) const { return {n, tiles.terms}; }

  // Multiply by the coefficients c_n, as `E::read` expects its base.
  void weight(V *sums) const {
    for (int n = 0; n < tiles.terms; ++n) {
      sums[n] = sums[n] * tiles.c[n];
      sums[tiles.terms + n] = sums[tiles.terms + n] * tiles.c[n];
    }
  }

  void accumulate(const Spot &at, Block b) const {
    const Input k(at.keys(a.k)), v(at.keys(a.v));
    tiles.accumulate({at.rows, at.mask(), k.rows, v.rows, {}, {}, {}}, b);
  }

  // ---- causal forward (Eq. 6) ------------------------------------------------------------------

  void causal_span(const Sequence &g, Group group, int64_t begin, int64_t end, Blocks b) const {
    each(g, group, begin, end, [&](const Spot &at, int64_t i) {
      if (at.t != begin && at.t % kChunk == 0) fold(b[i]);
      if (a.saved && at.t % kCheckpoint == 0) save(at, at.t, b[i]);
      const Input k(at.keys(a.k)), v(at.keys(a.v)), q(at.queries(a.q)), g(at.decays(a.g));
      const Output y(at.queries(a.y), at.query_bytes());
      tiles.causal({at.rows, at.mask(), k.rows, v.rows, q.rows, {}, g.rows}, b[i], y.rows);
    });
    stream_fence();
  }

  void causal_forward() const {
    if (plan.over_time) return causal_forward_over_time();
    parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
      const Sequence g = sequence(a, task / plan.groups);
      const Group group = plan.group(task % plan.groups);
      const BlockScratch b = blocks(group.count);
      each_block(g, group, [&](const Channels &c, int64_t i) { load_initial(c, b[i]); });
      causal_span(g, group, 0, g.lk, b);
      each_block(g, group, [&](const Channels &c, int64_t i) { store_final(c, b[i]); });
    });
  }

  // Each thread takes one run of chunks. The chunks before it are summed first, to get its initial
  // sums. They are summed from the shift that the walk will have there, so that all bits agree.
  void causal_forward_over_time() const {
    const Group group = plan.all();
    const int64_t n = group.count;
    for (int64_t r = 0; r < a.R; ++r) {
      const Sequence g = sequence(a, r);
      const TimeSplit split(g.lk, plan.threads);
      const int64_t runs = split.runs;
      auto first = [&](int64_t run) { return split.first(run); };
      auto end = [&](int64_t chunk) { return split.end(chunk); };
      const int64_t ahead = runs ? first(runs - 1) : 0;
      const BlockScratch sums = blocks(ahead * n + 1), b = blocks((runs + 1) * n);
      each_block(g, group, [&](const Channels &c, int64_t i) { load_initial(c, b[i]); });

      parallel(ahead, plan.threads, [&](int64_t c) {
        for (int64_t i = 0; i < n; ++i) start(sums[c * n + i], splat(kInf));
        each(g, group, end(c), end(c + 1), [&](const Spot &at, int64_t i) {
          const Input k(at.keys(a.k));
          V &m = sums[c * n + i].shift();
          m = tiles.smallest({at.rows, at.mask(), k.rows, {}, {}, {}, {}}, m);
        });
      });
      for (int64_t i = 0; i < n; ++i) {
        V m = b[i].shift();
        for (int64_t c = 0; c < ahead; ++c) {
          const V own = sums[c * n + i].shift();
          start(sums[c * n + i], m);
          m = min(own, m);
        }
      }
      parallel(
          ahead, plan.threads,
          [&] { prepare(a.y, a.io, g.row, g.q, g.q + plan.callers_share(g.lq)); },
          [&](int64_t c) {
            each(g, group, end(c), end(c + 1),
                 [&](const Spot &at, int64_t i) { accumulate(at, sums[c * n + i]); });
          });
      for (int64_t run = 1; run < runs; ++run)
        for (int64_t i = 0; i < n; ++i) {
          copy(b[run * n + i], b[(run - 1) * n + i]);
          for (int64_t c = first(run - 1); c < first(run); ++c)
            fold(b[run * n + i], sums[c * n + i]);
        }
      parallel(runs, plan.threads, [&](int64_t run) {
        causal_span(g, group, end(first(run)), end(first(run + 1)), b.from(run * n));
      });
      const int64_t last = runs ? (runs - 1) * n : 0;
      each_block(g, group, [&](const Channels &c, int64_t i) { store_final(c, b[last + i]); });
    }
  }

  // ---- backward --------------------------------------------------------------------------------

  // The reverse sums start with the gradient of the final state, at the final shift.
  void start_reverse(const Channels &c, Block b) const {
    start(b, load_shift(a.m1, c));
    if (!a.gs) return;
    const int N = tiles.terms;
    V g[2 * kMaxTerms];
    load_sums(g, N, a.gs, a.gz, c.g.index, c);
    for (int n = 0; n < N; ++n) {
      b.prefix[N + n] = g[n] * (tiles.lift / tiles.c[n]);
      b.prefix[n] = -g[N + n] * (tiles.lift / tiles.c[n]);
    }
  }
  // At the end, the reverse sums are the gradient of the initial state.
  void finish_reverse(const Channels &c, Block b) const {
    if (!a.ds) return;
    const int N = tiles.terms;
    V t[2 * kMaxTerms], g[2 * kMaxTerms];
    total(t, b);
    weight(t);
    const V f = decay(b.shift(), load_shift(a.m0, c)) * (1 / tiles.lift);
    for (int n = 0; n < N; ++n) {
      g[n] = t[N + n] * f;
      g[N + n] = -(t[n] * f);
    }
    store_sums(a.ds, a.dz, g, N, c.g.index, c);
  }

  // Compute dq of tokens [begin, end), at most kCheckpoint, from the checkpoint at begin.
  void dq_span(const Sequence &g, Group group, int64_t begin, int64_t end, Blocks b,
               Adjoint to) const {
    each_block(g, group, [&](const Channels &c, int64_t i) { restore(c, begin, b[i]); });
    each(g, group, begin, end, [&](const Spot &at, int64_t i) {
      const Input k(at.keys(a.k)), v(at.keys(a.v)), q(at.queries(a.q)), gy(at.queries(a.gy));
      const Input g(at.decays(a.g));
      const Output dq(at.queries(a.dq), at.query_bytes());
      tiles.causal_dq({at.rows, at.mask(), k.rows, v.rows, q.rows, gy.rows, g.rows}, b[i], dq.rows,
                      to.at(at.t - begin, i * kLanes));
    });
  }

  // The gradient of the log decay of the token after a span: the product of the sums at its end
  // with the reverse sums of all later tokens.
  V decay_gradient(Block forward, Block reverse) const {
    const int N = tiles.terms;
    V s[2 * kMaxTerms], r[2 * kMaxTerms], sum{};
    total(s, forward);
    total(r, reverse);
    for (int n = 0; n < N; ++n)
      sum = fma(fma(s[n], r[N + n], -(s[N + n] * r[n])), splat(tiles.c[n] / tiles.lift), sum);
    return sum;
  }

  // Compute dk and dv of tokens [begin, end) in reverse; the whole walk starts at `limit`. With
  // decay also dg, which starts at `decays`, one V per block.
  void dkdv_span(const Sequence &g, Group group, int64_t begin, int64_t end, int64_t limit,
                 Blocks b, Adjoint from, V *decays = nullptr) const {
    each_backwards(g, group, begin, end, [&](const Spot &at, int64_t i) {
      const int64_t after = at.t + at.rows;
      if (after != limit && after % kChunk == 0) fold(b[i]);
      const Input k(at.keys(a.k)), v(at.keys(a.v)), q(at.queries(a.q)), decay(at.decays(a.g));
      const Window wk = at.keys(a.dk), wv = at.keys(a.dv);
      const Adjoint here = from.at(at.t - begin, i * kLanes);
      // If dk and dv hold the adjoints, their rows are still to be read: do not bypass the cache.
      const bool lent = here.a == (Real *)a.dv.data + wv.offset();
      const int64_t bytes = lent ? 0 : at.key_bytes();
      const Output dk(wk, bytes), dv(wv, bytes), dg(at.decays(a.dg), at.key_bytes());
      DecayGradient gradient{decays ? decays[2 * i] : V{}, decays ? decays[2 * i + 1] : V{},
                             a.dg.data ? dg.rows : Sink{}};
      tiles.causal_dkdv({at.rows, at.mask(), k.rows, v.rows, q.rows, {}, decay.rows}, b[i],
                        dk.rows, dv.rows, here, gradient);
      if (!decays) return;
      decays[2 * i] = gradient.now;
      decays[2 * i + 1] = gradient.sum;
    });
  }

  static Adjoint adjoint(Scratch<Real> &memory, int64_t rows, int64_t blocks) {
    const int64_t size = rows * blocks * kLanes;
    return {memory.data, memory.data + size, memory.data + 2 * size, blocks * kLanes};
  }

  void causal_backward() const {
    if (plan.over_time) return causal_backward_over_time();
    parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
      const Sequence g = sequence(a, task / plan.groups);
      const Group group = plan.group(task % plan.groups);
      const BlockScratch forward = blocks(group.count), reverse = blocks(group.count);
      Scratch<Real> memory(3 * kCheckpoint * group.count * kLanes);
      const Adjoint between = adjoint(memory, kCheckpoint, group.count);
      const Scratch<V> decays(2 * group.count);  // of each block, as in DecayGradient
      each_block(g, group,
                 [&](const Channels &c, int64_t i) { start_reverse(c, reverse[i]); });
      for (int64_t t = (g.lk - 1) / kCheckpoint * kCheckpoint; t >= 0 && g.lk; t -= kCheckpoint) {
        const int64_t end = smaller(t + kCheckpoint, g.lk);
        dq_span(g, group, t, end, forward, between);
        if (!a.g.data) {
          dkdv_span(g, group, t, end, g.lk, reverse, between);
          continue;
        }
        for (int64_t i = 0; i < group.count; ++i) {
          decays[2 * i] = decay_gradient(forward[i], reverse[i]);
          decays[2 * i + 1] = V{};
        }
        dkdv_span(g, group, t, end, g.lk, reverse, between, decays.data);
        each_block(g, group, [&](const Channels &c, int64_t i) {
          if (a.dg_sums)
            store_lanes((Real *)a.dg_sums + (g.slot + t / kCheckpoint) * a.D + c.d,
                        decays[2 * i + 1], c.lanes);
        });
      }
      stream_fence();
      each_block(g, group,
                 [&](const Channels &c, int64_t i) { finish_reverse(c, reverse[i]); });
    });
  }

  void causal_backward_over_time() const {
    const Group group = plan.all();
    const int64_t n = group.count;
    for (int64_t r = 0; r < a.R; ++r) {
      const Sequence g = sequence(a, r);
      const TimeSplit split(g.lk, plan.threads);
      const int64_t chunks = split.chunks, runs = split.runs;
      auto first = [&](int64_t run) { return split.first(run); };
      auto end = [&](int64_t chunk) { return split.end(chunk); };
      // To save memory, dk and dv hold the adjoints until they are overwritten, if possible.
      const bool lend = a.io == kIoSame && a.D % kLanes == 0;
      Scratch<Real> memory((lend ? 1 : 3) * g.lk * n * kLanes);
      const int64_t offset = g.row * a.dk.sb + g.k * a.dk.sl;
      const Adjoint between =
          lend ? Adjoint{(Real *)a.dv.data + offset, memory.data, (Real *)a.dk.data + offset, a.D}
               : adjoint(memory, g.lk, n);
      const int64_t behind = runs ? first(1) : 0;  // only later chunks are summed here
      const BlockScratch sums = blocks(chunks * n + 1), b = blocks((runs + 1) * n);

      auto ahead_of_tasks = [&] {
        constexpr int64_t kStep = 32 * kChunk;
        for (int64_t t = 0; t < plan.callers_share(g.lk); t += kStep)
          for (const EattnView *x : {&a.dq, &a.dk, &a.dv})
            prepare(*x, a.io, g.row, g.k + t, g.k + smaller(t + kStep, g.lk));
      };
      parallel(chunks, plan.threads, ahead_of_tasks, [&](int64_t c) {
        const BlockScratch forward = blocks(n);
        for (int64_t t = end(c); t < end(c + 1); t += kCheckpoint)
          dq_span(g, group, t, smaller(t + kCheckpoint, end(c + 1)), forward,
                  between.at(t, 0));
        stream_fence();
        if (c < behind) return;
        for (int64_t i = 0; i < n; ++i)
          start(sums[c * n + i], load(between.at(end(c + 1) - 1, i * kLanes).m));
        each_backwards(g, group, end(c), end(c + 1), [&](const Spot &at, int64_t i) {
          const Input q(at.queries(a.q));
          tiles.reverse_sums({at.rows, nullptr, {}, {}, q.rows, {}, {}}, sums[c * n + i],
                             between.at(at.t, i * kLanes));
        });
      });
      const int64_t last = runs ? (runs - 1) * n : 0;
      each_block(g, group,
                 [&](const Channels &c, int64_t i) { start_reverse(c, b[last + i]); });
      for (int64_t run = runs - 2; run >= 0; --run)
        for (int64_t i = 0; i < n; ++i) {
          copy(b[run * n + i], b[(run + 1) * n + i]);
          for (int64_t c = first(run + 2) - 1; c >= first(run + 1); --c)
            fold(b[run * n + i], sums[c * n + i]);
        }
      parallel(runs, plan.threads, [&](int64_t run) {
        const int64_t begin = end(first(run)), limit = end(first(run + 1));
        dkdv_span(g, group, begin, limit, limit, b.from(run * n), between.at(begin, 0));
        stream_fence();
      });
      each_block(g, group, [&](const Channels &c, int64_t i) { finish_reverse(c, b[i]); });
    }
  }

  // ---- non-causal (Eq. 5) ----------------------------------------------------------------------

  // Run `first` for all chunks of a group, then `between`, then `second` for all chunks. A task is
  // a group or, when split over time, a chunk.
  template <class First, class Between, class Second>
  void two_phases(int64_t Sequence::*first_length, int64_t Sequence::*second_length, First first,
                  Between between, Second second) const {
    auto chunks = [](int64_t length) { return ceil_div(length, kChunk); };
    if (!plan.over_time) {
      parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
        const Sequence g = sequence(a, task / plan.groups);
        const Group group = plan.group(task % plan.groups);
        const BlockScratch sums = blocks(group.count * chunks(g.*first_length) + 1);
        const BlockScratch b = blocks(group.count);
        for (int64_t c = 0; c < chunks(g.*first_length); ++c)
          first(g, group, c, sums.from(c * group.count));
        between(g, group, chunks(g.*first_length), sums, b);
        for (int64_t c = 0; c < chunks(g.*second_length); ++c) second(g, group, c, b);
        stream_fence();
      });
      return;
    }
    const Group group = plan.all();
    for (int64_t r = 0; r < a.R; ++r) {
      const Sequence g = sequence(a, r);
      const BlockScratch sums = blocks(group.count * chunks(g.*first_length) + 1);
      const BlockScratch b = blocks(group.count);
      parallel(chunks(g.*first_length), plan.threads, [&](int64_t c) {
        first(g, group, c, sums.from(c * group.count));
        stream_fence();
      });
      between(g, group, chunks(g.*first_length), sums, b);
      parallel(chunks(g.*second_length), plan.threads, [&](int64_t c) {
        second(g, group, c, b);
        stream_fence();
      });
    }
  }

  void full_forward() const {
    two_phases(
        &Sequence::lk, &Sequence::lq,
        [&](const Sequence &g, Group group, int64_t c, Blocks sums) {
          for (int64_t i = 0; i < group.count; ++i) start(sums[i], splat(kInf));
          each(g, group, c * kChunk, smaller((c + 1) * kChunk, g.lk),
               [&](const Spot &at, int64_t i) { accumulate(at, sums[i]); });
        },
        [&](const Sequence &g, Group group, int64_t chunks, Blocks sums, Blocks b) {
          each_block(g, group, [&](const Channels &ch, int64_t i) {
            load_initial(ch, b[i]);
            for (int64_t c = 0; c < chunks; ++c) merge(b[i], sums[c * group.count + i]);
            store_final(ch, b[i]);
            total(b[i].prefix, b[i]);
            weight(b[i].prefix);
          });
        },
        [&](const Sequence &g, Group group, int64_t c, Blocks b) {
          each(g, group, c * kChunk, smaller((c + 1) * kChunk, g.lq),
               [&](const Spot &at, int64_t i) {
                 const Input q(at.queries(a.q));
                 const Output y(at.queries(a.y), at.query_bytes());
                 tiles.readout({at.rows, nullptr, {}, {}, q.rows, {}, {}}, b[i].prefix, y.rows);
               });
        });
  }

  void full_backward() const {
    two_phases(
        &Sequence::lq, &Sequence::lk,
        [&](const Sequence &g, Group group, int64_t c, Blocks sums) {
          const int64_t size = 2 * tiles.terms;
          const Scratch<V> base(group.count * size);
          each_block(g, group, [&](const Channels &ch, int64_t i) {
            load_sums(base.data + i * size, tiles.terms, a.s1, a.z1, g.index, ch);
            weight(base.data + i * size);
            start(sums[i], load_shift(a.m1, ch));
          });
          each(g, group, c * kChunk, smaller((c + 1) * kChunk, g.lq),
               [&](const Spot &at, int64_t i) {
                 const Input q(at.queries(a.q)), gy(at.queries(a.gy));
                 const Output dq(at.queries(a.dq), at.query_bytes());
                 tiles.full_dq({at.rows, nullptr, {}, {}, q.rows, gy.rows, {}}, base.data + i * size,
                               sums[i], dq.rows);
               });
        },
        [&](const Sequence &g, Group group, int64_t chunks, Blocks sums, Blocks b) {
          each_block(g, group, [&](const Channels &ch, int64_t i) {
            start_reverse(ch, b[i]);
            for (int64_t c = 0; c < chunks; ++c) fold(b[i], sums[c * group.count + i]);
            finish_reverse(ch, b[i]);
            total(b[i].prefix, b[i]);
            weight(b[i].prefix);
          });
        },
        [&](const Sequence &g, Group group, int64_t c, Blocks b) {
          each(g, group, c * kChunk, smaller((c + 1) * kChunk, g.lk),
               [&](const Spot &at, int64_t i) {
                 const Input k(at.keys(a.k)), v(at.keys(a.v));
                 const Output dk(at.keys(a.dk), at.key_bytes()), dv(at.keys(a.dv), at.key_bytes());
                 tiles.full_dkdv({at.rows, at.mask(), k.rows, v.rows, {}, {}, {}}, b[i].prefix,
                                 b[i].shift(), dk.rows, dv.rows);
               });
        });
  }

  void forward() const { a.causal ? causal_forward() : full_forward(); }
  void backward() const { a.causal ? causal_backward() : full_backward(); }
};

// Run the requested expansion, with its number of terms as a compile-time constant.
template <template <int> class E, int N, int kFewest>
void run(const EattnArgs &a, void (Series::*pass)() const) {
  if (a.terms == N) {
    const TilesOf<E<N>> tiles(a.radius);
    return (Series(tiles, a).*pass)();
  }
  if constexpr (N > kFewest) run<E, N - 2, kFewest>(a, pass);
  else __builtin_trap();  // the caller has checked the number of terms
}
void run(const EattnArgs &a, void (Series::*pass)() const) {
  if (a.radius > 0) run<Quadrature, kMaxTerms, 5>(a, pass);
  else run<Taylor, 17, 1>(a, pass);
}

}  // namespace

EATTN_ENTRY(forward) { run(*a, &Series::forward); }
EATTN_ENTRY(backward) { run(*a, &Series::backward); }
