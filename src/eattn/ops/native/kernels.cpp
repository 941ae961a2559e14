// Element-wise attention as a series, forward and backward, for one ISA and one accumulation type.
// This file is compiled once per (EATTN_ISA, EATTN_REAL); api.cpp selects a version at run time.
//
// The work is split into (sequence, group of channel blocks) and, if these are fewer than
// the threads, along time. The split does not change any bit of the result (see scan.h).
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
    over_time = a.R * groups < threads && longest >= 2 * kChunk;
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

template <class E> struct Series {
  using Sums = ::Sums<E::kTerms>;
  using B = Block<E>;
  using Io = StateIo<E>;
  using T = Tiles<E>;

  // Call f(spot, i) for every tile of tokens [begin, end) and every block of the group.
  template <class F>
  static INLINE void each(const EattnArgs &a, const Sequence &g, Group group, int64_t begin,
                          int64_t end, F f) {
    for (int64_t t = begin; t < end; t += kTile)
      for (int64_t i = 0; i < group.count; ++i) f(Spot({a, g, group.first + i}, t, end), i);
  }
  template <class F>
  static INLINE void each_backwards(const EattnArgs &a, const Sequence &g, Group group,
                                    int64_t begin, int64_t end, F f) {
    for (int64_t t = begin + (end - begin - 1) / kTile * kTile; t >= begin; t -= kTile)
      for (int64_t i = 0; i < group.count; ++i) f(Spot({a, g, group.first + i}, t, end), i);
  }
  template <class F>
  static INLINE void each_block(const EattnArgs &a, const Sequence &g, Group group, F f) {
    for (int64_t i = 0; i < group.count; ++i) f(Channels(a, g, group.first + i), i);
  }

  // ---- causal forward (Eq. 6) ------------------------------------------------------------------

  static void causal_span(const E &e, const EattnArgs &a, const Sequence &g, Group group, int64_t begin,
                          int64_t end, B *b) {
    each(a, g, group, begin, end, [&](const Spot &at, int64_t i) {
      if (at.t != begin && at.t % kChunk == 0) fold(b[i]);
      if (a.saved && at.t % kCheckpoint == 0) Io::save(at, at.t, b[i]);
      T::causal(e, at, b[i]);
    });
    stream_fence();
  }

  static void causal_forward(const E &e, const EattnArgs &a, const Plan &plan) {
    if (plan.over_time) return causal_forward_over_time(e, a, plan);
    parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
      const Sequence g = sequence(a, task / plan.groups);
      const Group group = plan.group(task % plan.groups);
      Scratch<B> b(group.count);
      each_block(a, g, group, [&](const Channels &c, int64_t i) { Io::load_initial(c, b[i]); });
      causal_span(e, a, g, group, 0, g.lk, b.data);
      each_block(a, g, group, [&](const Channels &c, int64_t i) { Io::store_final(c, b[i]); });
    });
  }

  // Each thread takes one run of chunks. The chunks before it are summed first, to get its initial
  // sums. They are summed from the shift that the walk will have there, so that all bits agree.
  static void causal_forward_over_time(const E &e, const EattnArgs &a, const Plan &plan) {
    const Group group = plan.all();
    const int64_t n = group.count;
    for (int64_t r = 0; r < a.R; ++r) {
      const Sequence g = sequence(a, r);
      const TimeSplit split(g.lk, plan.threads);
      const int64_t runs = split.runs;
      auto first = [&](int64_t run) { return split.first(run); };
      auto end = [&](int64_t chunk) { return split.end(chunk); };
      const int64_t ahead = runs ? first(runs - 1) : 0;
      Scratch<B> sums(ahead * n + 1), b((runs + 1) * n);
      each_block(a, g, group, [&](const Channels &c, int64_t i) { Io::load_initial(c, b[i]); });

      parallel(ahead, plan.threads, [&](int64_t c) {
        for (int64_t i = 0; i < n; ++i) start(sums[c * n + i], splat(kInf));
        each(a, g, group, end(c), end(c + 1), [&](const Spot &at, int64_t i) {
          V &m = sums[c * n + i].shift;
          m = T::smallest(e, at, m);
        });
      });
      for (int64_t i = 0; i < n; ++i) {
        V m = b[i].shift;
        for (int64_t c = 0; c < ahead; ++c) {
          const V own = sums[c * n + i].shift;
          start(sums[c * n + i], m);
          m = min(own, m);
        }
      }
      parallel(
          ahead, plan.threads,
          [&] { prepare(a.y, a.io, g.row, g.q, g.q + plan.callers_share(g.lq)); },
          [&](int64_t c) {
            each(a, g, group, end(c), end(c + 1),
                 [&](const Spot &at, int64_t i) { T::accumulate(e, at, sums[c * n + i]); });
          });
      for (int64_t run = 1; run < runs; ++run)
        for (int64_t i = 0; i < n; ++i) {
          B &to = b[run * n + i];
          to = b[(run - 1) * n + i];
          for (int64_t c = first(run - 1); c < first(run); ++c) {
            fold(to, sums[c * n + i]);
          }
        }
      parallel(runs, plan.threads, [&](int64_t run) {
        causal_span(e, a, g, group, end(first(run)), end(first(run + 1)), b.data + run * n);
      });
      const int64_t last = runs ? (runs - 1) * n : 0;
      each_block(a, g, group,
                 [&](const Channels &c, int64_t i) { Io::store_final(c, b[last + i]); });
    }
  }

  // ---- causal backward -------------------------------------------------------------------------

  // Compute dq of tokens [begin, end), at most kCheckpoint, from the checkpoint at begin.
  static void dq_span(const E &e, const EattnArgs &a, const Sequence &g, Group group, int64_t begin,
                      int64_t end, B *b, Adjoint to) {
    each_block(a, g, group, [&](const Channels &c, int64_t i) { Io::restore(c, begin, b[i]); });
    each(a, g, group, begin, end, [&](const Spot &at, int64_t i) {
      T::causal_dq(e, at, b[i], to.at(at.t - begin, i * kLanes));
    });
  }

  // Compute dk and dv of tokens [begin, end) in reverse; the whole walk starts at `limit`.
  static void dkdv_span(const E &e, const EattnArgs &a, const Sequence &g, Group group, int64_t begin,
                        int64_t end, int64_t limit, B *b, Adjoint from) {
    each_backwards(a, g, group, begin, end, [&](const Spot &at, int64_t i) {
      const int64_t after = at.t + at.rows;
      if (after != limit && after % kChunk == 0) fold(b[i]);
      T::causal_dkdv(e, at, b[i], from.at(at.t - begin, i * kLanes));
    });
  }

  static Adjoint adjoint(Scratch<Real> &memory, int64_t rows, int64_t blocks) {
    const int64_t size = rows * blocks * kLanes;
    return {memory.data, memory.data + size, memory.data + 2 * size, blocks * kLanes};
  }

  static void causal_backward(const E &e, const EattnArgs &a, const Plan &plan) {
    if (plan.over_time) return causal_backward_over_time(e, a, plan);
    parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
      const Sequence g = sequence(a, task / plan.groups);
      const Group group = plan.group(task % plan.groups);
      Scratch<B> forward(group.count), reverse(group.count);
      Scratch<Real> memory(3 * kCheckpoint * group.count * kLanes);
      const Adjoint between = adjoint(memory, kCheckpoint, group.count);
      each_block(a, g, group,
                 [&](const Channels &c, int64_t i) { Io::start_reverse(e, c, reverse[i]); });
      for (int64_t t = (g.lk - 1) / kCheckpoint * kCheckpoint; t >= 0 && g.lk; t -= kCheckpoint) {
        const int64_t end = smaller(t + kCheckpoint, g.lk);
        dq_span(e, a, g, group, t, end, forward.data, between);
        dkdv_span(e, a, g, group, t, end, g.lk, reverse.data, between);
      }
      stream_fence();
      each_block(a, g, group,
                 [&](const Channels &c, int64_t i) { Io::finish_reverse(e, c, reverse[i]); });
    });
  }

  static void causal_backward_over_time(const E &e, const EattnArgs &a, const Plan &plan) {
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
      Scratch<B> sums(chunks * n + 1), b((runs + 1) * n);

      auto ahead_of_tasks = [&] {
        constexpr int64_t kStep = 32 * kChunk;
        for (int64_t t = 0; t < plan.callers_share(g.lk); t += kStep)
          for (const EattnView *x : {&a.dq, &a.dk, &a.dv})
            prepare(*x, a.io, g.row, g.k + t, g.k + smaller(t + kStep, g.lk));
      };
      parallel(chunks, plan.threads, ahead_of_tasks, [&](int64_t c) {
        Scratch<B> forward(n);
        for (int64_t t = end(c); t < end(c + 1); t += kCheckpoint)
          dq_span(e, a, g, group, t, smaller(t + kCheckpoint, end(c + 1)), forward.data,
                  between.at(t, 0));
        stream_fence();
        if (c < behind) return;
        for (int64_t i = 0; i < n; ++i)
          start(sums[c * n + i], load(between.at(end(c + 1) - 1, i * kLanes).m));
        each_backwards(a, g, group, end(c), end(c + 1), [&](const Spot &at, int64_t i) {
          T::reverse_sums(e, at, sums[c * n + i], between.at(at.t, i * kLanes));
        });
      });
      const int64_t last = runs ? (runs - 1) * n : 0;
      each_block(a, g, group,
                 [&](const Channels &c, int64_t i) { Io::start_reverse(e, c, b[last + i]); });
      for (int64_t run = runs - 2; run >= 0; --run)
        for (int64_t i = 0; i < n; ++i) {
          B &to = b[run * n + i];
          to = b[(run + 1) * n + i];
          for (int64_t c = first(run + 2) - 1; c >= first(run + 1); --c) {
            fold(to, sums[c * n + i]);
          }
        }
      parallel(runs, plan.threads, [&](int64_t run) {
        const int64_t begin = end(first(run)), limit = end(first(run + 1));
        dkdv_span(e, a, g, group, begin, limit, limit, b.data + run * n, between.at(begin, 0));
        stream_fence();
      });
      each_block(a, g, group, [&](const Channels &c, int64_t i) { Io::finish_reverse(e, c, b[i]); });
    }
  }

  // ---- non-causal (Eq. 5) ----------------------------------------------------------------------

  // Run `first` for all chunks of a group, then `between`, then `second` for all chunks. A task is
  // a group or, when split over time, a chunk.
  template <class First, class Between, class Second>
  static void two_phases(const EattnArgs &a, const Plan &plan, int64_t Sequence::*first_length,
                         int64_t Sequence::*second_length, First first, Between between,
                         Second second) {
    auto chunks = [](int64_t length) { return ceil_div(length, kChunk); };
    if (!plan.over_time) {
      parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
        const Sequence g = sequence(a, task / plan.groups);
        const Group group = plan.group(task % plan.groups);
        Scratch<B> sums(group.count * chunks(g.*first_length) + 1), b(group.count);
        for (int64_t c = 0; c < chunks(g.*first_length); ++c)
          first(g, group, c, sums.data + c * group.count);
        between(g, group, chunks(g.*first_length), sums.data, b.data);
        for (int64_t c = 0; c < chunks(g.*second_length); ++c) second(g, group, c, b.data);
        stream_fence();
      });
      return;
    }
    const Group group = plan.all();
    for (int64_t r = 0; r < a.R; ++r) {
      const Sequence g = sequence(a, r);
      Scratch<B> sums(group.count * chunks(g.*first_length) + 1), b(group.count);
      parallel(chunks(g.*first_length), plan.threads, [&](int64_t c) {
        first(g, group, c, sums.data + c * group.count);
        stream_fence();
      });
      between(g, group, chunks(g.*first_length), sums.data, b.data);
      parallel(chunks(g.*second_length), plan.threads, [&](int64_t c) {
        second(g, group, c, b.data);
        stream_fence();
      });
    }
  }

  static void full_forward(const E &e, const EattnArgs &a, const Plan &plan) {
    two_phases(
        a, plan, &Sequence::lk, &Sequence::lq,
        [&](const Sequence &g, Group group, int64_t c, B *sums) {
          for (int64_t i = 0; i < group.count; ++i) start(sums[i], splat(kInf));
          each(a, g, group, c * kChunk, smaller((c + 1) * kChunk, g.lk),
               [&](const Spot &at, int64_t i) { T::accumulate(e, at, sums[i]); });
        },
        [&](const Sequence &g, Group group, int64_t chunks, const B *sums, B *b) {
          each_block(a, g, group, [&](const Channels &ch, int64_t i) {
            Io::load_initial(ch, b[i]);
            for (int64_t c = 0; c < chunks; ++c)
              merge(b[i], sums[c * group.count + i].chunk, sums[c * group.count + i].shift);
            Io::store_final(ch, b[i]);
            b[i].prefix = weighted(e, total(b[i]));
          });
        },
        [&](const Sequence &g, Group group, int64_t c, const B *b) {
          each(a, g, group, c * kChunk, smaller((c + 1) * kChunk, g.lq),
               [&](const Spot &at, int64_t i) { T::readout(e, at, b[i].prefix); });
        });
  }

  static void full_backward(const E &e, const EattnArgs &a, const Plan &plan) {
    two_phases(
        a, plan, &Sequence::lq, &Sequence::lk,
        [&](const Sequence &g, Group group, int64_t c, B *sums) {
          Scratch<Sums> base(group.count);
          each_block(a, g, group, [&](const Channels &ch, int64_t i) {
            base[i] = weighted(e, Io::load_final(ch));
            start(sums[i], Io::load_shift(a.m1, ch));
          });
          each(a, g, group, c * kChunk, smaller((c + 1) * kChunk, g.lq),
               [&](const Spot &at, int64_t i) { T::full_dq(e, at, base[i], sums[i]); });
        },
        [&](const Sequence &g, Group group, int64_t chunks, const B *sums, B *b) {
          each_block(a, g, group, [&](const Channels &ch, int64_t i) {
            Io::start_reverse(e, ch, b[i]);
            for (int64_t c = 0; c < chunks; ++c) {
              b[i].chunk = sums[c * group.count + i].chunk;
              fold(b[i]);
            }
            Io::finish_reverse(e, ch, b[i]);
            b[i].prefix = weighted(e, total(b[i]));
          });
        },
        [&](const Sequence &g, Group group, int64_t c, const B *b) {
          each(a, g, group, c * kChunk, smaller((c + 1) * kChunk, g.lk),
               [&](const Spot &at, int64_t i) { T::full_dkdv(e, at, b[i].prefix, b[i].shift); });
        });
  }

  static void forward(const E &e, const EattnArgs &a) {
    const Plan plan(a);
    a.causal ? causal_forward(e, a, plan) : full_forward(e, a, plan);
  }
  static void backward(const E &e, const EattnArgs &a) {
    const Plan plan(a);
    a.causal ? causal_backward(e, a, plan) : full_backward(e, a, plan);
  }
};

// Run the requested expansion, with its number of terms as a compile-time constant.
template <bool kForward, template <int> class E, int N, int kFewest> void run(const EattnArgs &a) {
  if (a.terms == N) {
    const E<N> e(a.radius);
    return kForward ? Series<E<N>>::forward(e, a) : Series<E<N>>::backward(e, a);
  }
  if constexpr (N > kFewest) run<kForward, E, N - 2, kFewest>(a);
  else __builtin_trap();  // the caller has checked the number of terms
}
template <bool kForward> void run(const EattnArgs &a) {
  if (a.radius > 0) run<kForward, Quadrature, 33, 5>(a);
  else run<kForward, Taylor, 17, 1>(a);
}

}  // namespace

EATTN_ENTRY(forward) { run<true>(*a); }
EATTN_ENTRY(backward) { run<false>(*a); }
