// Wide grids: Gaussian features at the nodes near x, for many nodes or a large radius.
//
// A token writes and reads only the window of nodes within a cutoff of x, one or two vectors of
// nodes per channel, so that its cost does not depend on the number of nodes. The channels of a
// block take turns at each token: they are independent, which hides the latency of their loads.
// There is no shift. The causal forward saves y, 1 / den and dy/dq of every query, and the backward
// is one walk in reverse order, see ops/grid.py.
//
// Sums have two levels: the tokens of a chunk (local), and everything before the chunk (base).
//
// With decay, the sums of a channel are e^c times the true ones. A token adds its log decay to c
// and e^c times its key to the sums, so that it touches no other node. If c is above a limit, all
// sums of the channel are multiplied by e^(-c), and c is 0 again; the same at the end of a span.
//
// Compiled once per (EATTN_ISA, EATTN_REAL), like kernels.cpp.
#include <cmath>

#include "io.h"
#include "memory.h"
#include "parallel.h"

namespace {

// While this object exists, results too small for a normal number become zero on this thread. Keys
// write such numbers at the edge of their window, and with them arithmetic takes up to ten times as
// long on some x86 processors. Other architectures keep their mode.
class FlushSubnormals {
#if defined(__SSE2__)
  const unsigned before = _mm_getcsr();

 public:
  FlushSubnormals() { _mm_setcsr(before | 0x8000); }  // FTZ
  ~FlushSubnormals() { _mm_setcsr(before); }
#else
 public:
  FlushSubnormals() {}
#endif
};

// The numbers of an expansion; those that ops/expansion.py also has are marked (*).
struct Grid {
  static constexpr int64_t kDense = 33;                       // (*)
  static constexpr double kCutoff = 4, kMargin = 1.5;         // (*)
  static constexpr double kUnderflow = kDouble ? 18.8 : 6.6;  // e^(-2d^2) is subnormal beyond it
  static constexpr Real kSmallest = kDouble ? Real(1e-290) : Real(1e-30);  // see smallest_den
  static constexpr Real kNowhere = Real(1e15);  // position of nodes that do not exist

  int64_t nodes, padded;  // padded: at least one window
  int vectors;            // of a window
  Real radius, reach, cutoff, cutoff2;
  Real inverse, last;
  Scratch<Real> u;  // positions of the nodes

  explicit Grid(const EattnArgs &a)
      : nodes(a.terms),
        radius(Real(a.radius)),
        reach(Real(a.radius + kMargin)),
        cutoff(Real(nodes > kDense ? kCutoff : kUnderflow)),
        cutoff2(cutoff * cutoff),
        u(nodes + kLanes) {
    const double h = a.radius / double(nodes / 2);
    inverse = Real(1 / h);
    const double widest = std::ceil(2 * double(cutoff) / h);
    const int64_t window = widest < double(nodes) ? int64_t(widest) : nodes;
    vectors = int((window + kLanes - 1) / kLanes);
    padded = nodes > vectors * kLanes ? nodes : vectors * kLanes;
    last = Real(padded - vectors * kLanes);
    for (int64_t n = 0; n < padded; ++n)
      u[n] = n < nodes ? Real(double(n - nodes / 2) * h) : kNowhere;
  }

  INLINE int64_t window() const { return vectors * kLanes; }  // in nodes, a whole vector
  INLINE V inside(V x) const { return max(-splat(reach), min(splat(reach), x)); }
  // First node of the window of x, for every lane; 0 for NaN.
  INLINE I first(V x) const {
    const V position = (x + (radius - cutoff)) * inverse + 1;
    return __builtin_convertvector(max(min(position, splat(last)), V{}), I);
  }
  // e^(-2d^2), or 0 at the cutoff and beyond; NaN for NaN.
  INLINE V feature(V d) const {
    const V square = d * d;
    return select(square >= cutoff2, V{}, exp2(square * Real(-2.8853900817779268)));  // -2 log2(e)
  }
};

template <int... n> INLINE V shuffle(V a, V b) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(a, b, n...);
#else
  return __builtin_shuffle(a, b, I{n...});
#endif
}
template <int... n> INLINE V add_pairs(V a, V b, std::integer_sequence<int, n...>) {
  return shuffle<2 * n...>(a, b) + shuffle<2 * n + 1 ...>(a, b);
}
// Return the sum of each of the kLanes vectors, as the lanes of one vector. Overwrites them.
INLINE V sum_each(V *x) {
  for (int n = kLanes; n > 1; n /= 2)
    for (int i = 0; i < n / 2; ++i)
      x[i] = add_pairs(x[2 * i], x[2 * i + 1], std::make_integer_sequence<int, kLanes>{});
  return x[0];
}

// Result of reading the sums at a row of queries.
struct Found {
  V y, inverse, slope;  // as in ops/grid.py
};

constexpr int kPackedNodes = 2048;  // same as PACKED in ops/grid.py

// A compensated sum: thousands of terms, such as a constant log decay, may be far below the sum.
struct Sum {
  V value{}, rest{};
  INLINE void add(V x) {
    const V y = x + rest, sum = value + y, part = sum - value;
    rest = (value - (sum - part)) + (y - part);
    value = sum;
  }
};

// The factor of the true sums of a block of channels, e^c. It is 1 at the end of every span of
// tokens, where the backward computes the gradient of the log decay afresh.
struct Scale {
  static constexpr int64_t kSpan = 512;
  static constexpr Real kLimit = 20;
  static constexpr Real kForgets = 1000;  // e^-1000 is 0
  Sum c;

  INLINE V up() const {
    const V x = exp<true>(c.value);
    return fma(x, c.rest, x);
  }
  INLINE V down() const {
    const V x = exp(-c.value);
    return fma(x, -c.rest, x);
  }
};

// Scales of a tile of tokens.
struct Scales {
  V weight[kTile];  // of the key
  V kept[kTile];    // factor of the sums before the token; only if it moves them
  uint32_t moves;   // bit t: token t moves the sums

  // Move `s` over a tile with these log decays. Masked tokens do not decay. The first token of a
  // sequence always moves the initial state: a single token, as in decoding, then leaves c at 0.
  INLINE Scales(Scale &s, Rows<const Real> log_decay, const uint8_t *mask, int rows, bool first)
      : moves(0) {
    for (int t = 0; t < rows; ++t) {
      if (!mask || mask[t]) {
        s.c.add(min(splat(Scale::kForgets), -log_decay[t]));
        const V c = s.c.value, limit = splat(first && t == 0 ? -1 : Scale::kLimit);
        if (any_above(c, limit) || any_differs(c, c)) {  // NaN moves all sums
          const I keeps = c <= limit;
          kept[t] = select(keeps, splat(1), s.down());
          s.c = {select(keeps, c, V{}), select(keeps, s.c.rest, V{})};
          moves |= uint32_t(1) << t;
        }
      }
      weight[t] = s.up();
    }
  }
  INLINE bool moves_at(int t) const { return moves >> t & 1; }
  // Return the factor of the first token, which then does not move the sums any more.
  INLINE V take_first() {
    const V factor = moves_at(0) ? kept[0] : splat(1);
    moves &= ~uint32_t(1);
    return factor;
  }
};

// Nodes in use by each channel of a block: those of the windows from `first` to `last`.
struct Range {
  I first, last;

  static Range none(const Grid &e) { return {I{} + Int(e.padded), I{} - Int(e.window())}; }
  static Range all(const Grid &e) { return {I{}, I{} + Int(e.last)}; }
  INLINE void add(const Int *windows) {
    I x;
    memcpy(&x, windows, sizeof x);
    first = x < first ? x : first;
    last = x > last ? x : last;
  }
  // Forget the nodes of a channel.
  INLINE void clear(int c, const Grid &e) {
    first[c] = Int(e.padded);
    last[c] = -Int(e.window());
  }
};

// The scale of a block, and the nodes that it uses.
struct Decaying {
  Scale scale;
  Range range;
};
// Those of the blocks of a group, which have initial sums at all nodes or at none.
struct DecayingBlocks : Scratch<Decaying> {
  DecayingBlocks(const Grid &e, int64_t count, bool filled) : Scratch<Decaying>(count) {
    for (int64_t i = 0; i < count; ++i) data[i] = {{}, filled ? Range::all(e) : Range::none(e)};
  }
};

// Sums of a block of channels: for each channel s and z of the chunk (local) and, at a distance,
// s and z before the chunk (base).
struct GridSums {
  Real *s;
  int64_t stride, to_z, to_base;  // to the next channel, from s to z, from local to base

  // Lay out all four in memory of this size.
  static int64_t size(const Grid &e) { return kLanes * 4 * e.padded; }
  GridSums(Real *memory, const Grid &e)
      : s(memory), stride(4 * e.padded), to_z(e.padded), to_base(2 * e.padded) {}
  // Use rows of tensors [R, D, N] as the local sums, without a base.
  GridSums(void *s1, void *z1, const Channels &c, const Grid &e)
      : s((Real *)s1 + (c.g.index * c.a.D + c.d) * e.nodes),
        stride(e.nodes),
        to_z((Real *)z1 - (Real *)s1),
        to_base(0) {}

  // Close a chunk: add its sums to those before it.
  void fold() const {
    for (Real *local = s; local < s + kLanes * stride; local += stride)
      for (int64_t n = 0; n < to_base; ++n) {
        local[to_base + n] += local[n];
        local[n] = 0;
      }
  }
  // Multiply the sums of every channel by its factor: those of the nodes in use, and of some more,
  // which are 0, to fill whole vectors.
  __attribute__((noinline)) void scale(V factor, Range &range, const Grid &e, int lanes) const {
    alignas(64) Real by[kLanes];
    ::store(by, factor);
    for (int c = 0; c < lanes; ++c) {
      if (by[c] == 1) continue;
      int64_t begin = range.first[c];
      int64_t count = ceil_div(range.last[c] - begin, kLanes) * kLanes + e.window();
      if (by[c] != by[c] || count > e.padded) count = e.padded;
      begin = smaller(begin, e.padded - count);
      Real *local = s + c * stride + begin, *base = local + to_base;
      multiply(local, count, by[c]);
      multiply(local + to_z, count, by[c]);
      if (to_base) multiply(base, count, by[c]);
      if (to_base) multiply(base + to_z, count, by[c]);
      if (by[c] == 0) range.clear(c, e);
    }
  }
  static INLINE void multiply(Real *x, int64_t n, Real by) { multiply(x, x, n, by); }
  // Subnormal results are set to 0: arithmetic with them is slow.
  static INLINE void multiply(Real *to, const Real *from, int64_t n, Real by) {
    constexpr Real tiny = std::numeric_limits<Real>::min();
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const V x = ::load(from + i) * by;
      ::store(to + i, select(abs(x) < tiny, V{}, x));
    }
    for (; i < n; ++i) {
      const Real x = from[i] * by;
      to[i] = std::abs(x) < tiny ? 0 : x;
    }
  }
  // Return the sum over nodes of s z' - z s', where s' and z' are these sums of channel c.
  Real product(int c, const Real *s0, const Real *z0, int64_t nodes) const {
    const Real *local = s + c * stride, *base = local + to_base;
    V sums{};
    int64_t n = 0;
    for (; n + kLanes <= nodes; n += kLanes) {
      const V sn = ::load(local + n) + ::load(base + n);
      const V zn = ::load(local + to_z + n) + ::load(base + to_z + n);
      sums += ::load(s0 + n) * zn - ::load(z0 + n) * sn;
    }
    Real sum = 0;
    for (; n < nodes; ++n)
      sum += s0[n] * (local[to_z + n] + base[to_z + n]) - z0[n] * (local[n] + base[n]);
    for (int i = 0; i < kLanes; ++i) sum += sums[i];
    return sum;
  }
  // Copy s and z of all channels.
  void copy(Real *to) const {
    for (int c = 0; c < kLanes; ++c)
      for (int64_t n = 0; n < to_base; ++n)
        *to++ = s[c * stride + n] + s[c * stride + to_base + n];
  }
  // Load row r of tensors [R, D, N]; with `exchange` as the sums (-z, s).
  void load(const void *s0, const void *z0, const Channels &c, int64_t nodes, bool exchange) const {
    for (int i = 0; i < c.lanes; ++i) {
      const int64_t at = (c.g.index * c.a.D + c.d + i) * nodes;
      const Real *first = (const Real *)(exchange ? z0 : s0) + at;
      const Real *second = (const Real *)(exchange ? s0 : z0) + at;
      Real *base = s + i * stride + to_base;
      for (int64_t n = 0; n < nodes; ++n) {
        base[n] = exchange ? -first[n] : first[n];
        base[to_z + n] = second[n];
      }
    }
  }
  void store(void *s1, void *z1, const Channels &c, int64_t nodes, bool exchange) const {
    for (int i = 0; i < c.lanes; ++i) {
      const int64_t at = (c.g.index * c.a.D + c.d + i) * nodes;
      Real *first = (Real *)(exchange ? z1 : s1) + at, *second = (Real *)(exchange ? s1 : z1) + at;
      const Real *local = s + i * stride, *base = local + to_base;
      for (int64_t n = 0; n < nodes; ++n) {
        const Real sum = base[n] + local[n];
        first[n] = exchange ? -sum : sum;
        second[n] = base[to_z + n] + local[to_z + n];
      }
    }
  }
};

// The equations on one row of a block. kVectors is the number of vectors of a window, or 0 if it
// is known at run time only; kBase is whether there are sums before the chunk; kDecay is whether
// keys have a weight, and the nodes in use are tracked.
template <int kVectors, bool kBase, bool kDecay> struct GridRow {
  const Grid &e;
  GridSums sums;
  int lanes;
  Range *range = nullptr;

  template <class F> INLINE void each_vector(F f) const {
    if constexpr (kVectors > 0)
      unroll<kVectors>([&](auto i) INLINE_LAMBDA { f(i * kLanes); });
    else
      for (int i = 0; i < e.vectors; ++i) f(i * kLanes);
  }

  // A row of tokens, in memory, and the windows of its channels.
  struct Tokens {
    alignas(64) Real x[kLanes];
    alignas(64) Int first[kLanes];
    INLINE Tokens(const Grid &e, V row) {
      const V inside = e.inside(row);
      const I window = e.first(inside);
      ::store(x, inside);
      memcpy(first, &window, sizeof window);
    }
  };

  // s_n += f_n(x) p and z_n += f_n(x) r.
  INLINE void add(int c, Real x, int64_t first, Real p, Real r) const {
    Real *s = sums.s + c * sums.stride + first, *z = s + sums.to_z;
    const Real *u = e.u.data + first;
    each_vector([&](int i) INLINE_LAMBDA {
      const V f = e.feature(x - ::load(u + i));
      ::store(s + i, fma(f, splat(p), ::load(s + i)));
      ::store(z + i, fma(f, splat(r), ::load(z + i)));
    });
  }

  // Add keys and values (Eq. 12, Eq. 13).
  INLINE void write(V k, V v, V weight) const {
    const Tokens at(e, k);
    alignas(64) Real p[kLanes], r[kLanes];
    ::store(p, kDecay ? v * weight : v);
    if (kDecay) {
      ::store(r, weight);
      range->add(at.first);
    }
    for (int c = 0; c < lanes; ++c)
      add(c, at.x[c], at.first[c], p[c], kDecay ? r[c] : Real(1));
    if (__builtin_expect(any_differs(k, k), 0)) spread_nan(k);
  }
  // A NaN key affects all nodes.
  __attribute__((noinline)) void spread_nan(V k) const {
    for (int c = 0; c < lanes; ++c)
      for (int64_t n = 0; k[c] != k[c] && n < e.nodes; ++n)
        sums.s[c * sums.stride + n] = sums.s[c * sums.stride + sums.to_z + n] = k[c];
  }

  // Total of x, which points to local sums.
  INLINE V total(const Real *x) const {
    if constexpr (kBase) return ::load(x) + ::load(x + sums.to_base);
    else return ::load(x);
  }
  INLINE Real total_at(const Real *x) const { return kBase ? x[0] + x[sums.to_base] : x[0]; }

  // Read y (Eq. 14 to Eq. 16) and, with kDerivative, dy/dq.
  template <bool kDerivative> INLINE Found read(V q, V weight) const {
    const Tokens at(e, q);
    V num[kLanes], den[kLanes], dnum[kLanes], dden[kLanes];
    for (int c = lanes; c < kLanes; ++c) num[c] = den[c] = dnum[c] = dden[c] = V{};
    for (int c = 0; c < lanes; ++c) {
      const Real *s = sums.s + c * sums.stride + at.first[c], *z = s + sums.to_z;
      const Real *u = e.u.data + at.first[c];
      V sum[4] = {};
      each_vector([&](int i) INLINE_LAMBDA {
        const V d = at.x[c] - ::load(u + i), f = e.feature(d), fd = f * d;
        const V sn = total(s + i), zn = total(z + i);
        sum[0] = fma(f, sn, sum[0]);
        sum[1] = fma(f, zn, sum[1]);
        if (kDerivative) {
          sum[2] = fma(fd, sn, sum[2]);
          sum[3] = fma(fd, zn, sum[3]);
        }
      });
      num[c] = sum[0];
      den[c] = sum[1];
      if (kDerivative) {
        dnum[c] = sum[2];
        dden[c] = sum[3];
      }
    }
    Found o{};
    const V n = sum_each(num), d = sum_each(den);
    o.inverse = 1 / d;
    o.y = n * o.inverse;
    if (kDerivative) o.slope = -4 * o.inverse * fma(-o.y, sum_each(dden), sum_each(dnum));
    const V smallest = kDecay ? weight * Grid::kSmallest : splat(Grid::kSmallest);
    if (__builtin_expect(any_above(smallest, d) || any_differs(d, d), 0))
      read_far(q, d, smallest, o);
    return o;
  }

  // Read queries with no key near: the nearest written node on each side.
  __attribute__((noinline)) void read_far(V q, V den, V smallest, Found &o) const {
    const V inside = e.inside(q);
    for (int c = 0; c < lanes; ++c) {
      if (!(den[c] <= smallest[c])) continue;
      const Real x = inside[c], least = smallest[c];
      const Real *local = sums.s + c * sums.stride;
      auto s = [&](int64_t n) { return total_at(local + n); };
      auto z = [&](int64_t n) { return total_at(local + sums.to_z + n); };
      int64_t right = 0;
      while (right < e.nodes && e.u[right] <= x) ++right;
      int64_t left = right - 1;
      while (left >= 0 && !(z(left) > least)) --left;
      while (right < e.nodes && !(z(right) > least)) ++right;
      if (left < 0 && right == e.nodes) {
        o.y[c] = o.inverse[c] = o.slope[c] = 0;
        continue;
      }
      if (left < 0) left = right;
      if (right == e.nodes) right = left;
      Real f[2];
      far_features(x, left, right, f);
      const Real num = f[0] * s(left) + f[1] * s(right), d = f[0] * z(left) + f[1] * z(right);
      o.y[c] = num / d;
      o.inverse[c] = -1 / d;
      o.slope[c] = Real(left * kPackedNodes + right);
    }
  }
  // Features at two nodes, relative to the larger one; if both are the same, the second is 0.
  INLINE void far_features(Real x, int64_t left, int64_t right, Real *f) const {
    const Real a = std::abs(x - e.u[left]), b = std::abs(e.u[right] - x), m = a < b ? a : b;
    f[0] = std::exp(-2 * (a - m) * (a + m));
    f[1] = left == right ? 0 : std::exp(-2 * (b - m) * (b + m));
  }

  // Add queries to the reverse sums, and return dq.
  INLINE V write_query(V q, V gy, const Found &o) const {
    const Tokens at(e, q);
    const V a = gy * abs(o.inverse);
    alignas(64) Real ar[kLanes], ay[kLanes];
    ::store(ar, a);
    ::store(ay, a * o.y);
    if (kDecay) range->add(at.first);
    const bool far = any_above(V{}, o.inverse);
    for (int c = 0; c < lanes; ++c) {
      if (__builtin_expect(far, 0) && o.inverse[c] < 0) write_far(c, at.x[c], o.slope[c], ay[c], ar[c]);
      else add(c, at.x[c], at.first[c], ay[c], ar[c]);
    }
    return select(o.inverse <= 0, V{}, gy * o.slope);
  }
  __attribute__((noinline)) void write_far(int c, Real x, Real packed, Real p, Real r) const {
    const int64_t left = int64_t(packed) / kPackedNodes, right = int64_t(packed) % kPackedNodes;
    Real f[2], *s = sums.s + c * sums.stride, *z = s + sums.to_z;
    far_features(x, left, right, f);
    if (kDecay) {
      range->first[c] = Int(smaller(range->first[c], left));
      range->last[c] = -Int(smaller(-range->last[c], e.window() - 1 - right));
    }
    s[left] += f[0] * p;
    z[left] += f[0] * r;
    s[right] += f[1] * p;
    z[right] += f[1] * r;
  }

  struct KeyGradient {
    V dk, dv;
    V dw;  // of the logarithm of the key's weight; only with kDecay
  };
  // Read the reverse sums at keys: dv = z(k), dk = v z'(k) - s'(k), dw = v z(k) - s(k).
  INLINE KeyGradient gradient(V k, V v, V weight) const {
    const Tokens at(e, k);
    alignas(64) Real value[kLanes];
    ::store(value, v);
    V dk[kLanes], dv[kLanes], dw[kLanes];
    for (int c = lanes; c < kLanes; ++c) dk[c] = dv[c] = dw[c] = V{};
    for (int c = 0; c < lanes; ++c) {
      const Real *s = sums.s + c * sums.stride + at.first[c], *z = s + sums.to_z;
      const Real *u = e.u.data + at.first[c];
      V sum[3] = {};
      each_vector([&](int i) INLINE_LAMBDA {
        const V d = at.x[c] - ::load(u + i), f = e.feature(d);
        const V sn = total(s + i), zn = total(z + i), both = fma(splat(value[c]), zn, -sn);
        sum[0] = fma(f * d, both, sum[0]);
        sum[1] = fma(f, zn, sum[1]);
        if (kDecay) sum[2] = fma(f, both, sum[2]);
      });
      dk[c] = sum[0];
      dv[c] = sum[1];
      if (kDecay) dw[c] = sum[2];
    }
    if constexpr (kDecay)
      return {-4 * weight * sum_each(dk), weight * sum_each(dv), weight * sum_each(dw)};
    return {-4 * sum_each(dk), sum_each(dv), V{}};
  }
};

template <int kVectors> struct GridSeries {
  template <bool kBase, bool kDecay> using Row = GridRow<kVectors, kBase, kDecay>;
  const Grid &e;
  const EattnArgs &a;

  // ---- tiles ------------------------------------------------------------------------------------

  // Decay of a tile of a block.
  struct Decay {
    Scales scales;
    Range &range;
  };

  template <bool kDecay>
  void accumulate(const Spot &at, GridSums sums, const Decay *decay = nullptr) const {
    const Input ks(at.keys(a.k)), vs(at.keys(a.v));
    const Rows<const Real> k = ks.rows, v = vs.rows;
    const uint8_t *mask = at.mask();
    const Row<true, kDecay> row{e, sums, at.lanes, kDecay ? &decay->range : nullptr};
    for (int t = 0; t < at.rows; ++t)
      if (!mask || mask[t]) write(row, t, k[t], v[t], decay);
  }
  template <bool kBase, bool kDecay>
  INLINE void write(const Row<kBase, kDecay> &row, int t, V k, V v, const Decay *decay) const {
    if constexpr (kDecay) {
      const Scales &scales = decay->scales;
      if (scales.moves_at(t)) row.sums.scale(scales.kept[t], decay->range, e, row.lanes);
      row.write(k, v, scales.weight[t]);
    } else {
      row.write(k, v, V{});
    }
  }

  template <bool kCausal, bool kSave, bool kBase = true, bool kDecay = false>
  void forward_tile(const Spot &at, GridSums sums, const Decay *decay = nullptr) const {
    const Input qs(at.queries(a.q)), ks(kCausal ? at.keys(a.k) : at.queries(a.q)),
        vs(kCausal ? at.keys(a.v) : at.queries(a.q));
    Output ys(at.queries(a.y), at.query_bytes());
    const Rows<const Real> q = qs.rows, k = ks.rows, v = vs.rows;
    const Sink y = ys.rows;
    const uint8_t *mask = at.mask();
    const Row<kBase, kDecay> row{e, sums, at.lanes, kDecay ? &decay->range : nullptr};
    for (int t = 0; t < at.rows; ++t) {
      if (kCausal && (!mask || mask[t])) write(row, t, k[t], v[t], decay);
      const Found o = row.template read<kSave>(q[t], kDecay ? decay->scales.weight[t] : V{});
      y.put(t, o.y);
      if (kSave) save(at, t, o);
    }
  }
  template <bool kBase> void causal_tile(const Spot &at, GridSums sums, const Decay *decay) const {
    if (decay && a.saved) forward_tile<true, true, kBase, true>(at, sums, decay);
    else if (decay) forward_tile<true, false, kBase, true>(at, sums, decay);
    else if (a.saved) forward_tile<true, true, kBase, false>(at, sums);
    else forward_tile<true, false, kBase, false>(at, sums);
  }

  // Reverse walk over one tile of a causal call. `dg` is the gradient of a log decay after it.
  template <bool kDecay>
  void backward_tile(const Spot &at, GridSums sums, const Decay *decay = nullptr,
                     Sum *dg = nullptr) const {
    const Input qs(at.queries(a.q)), gs(at.queries(a.gy)), ks(at.keys(a.k)), vs(at.keys(a.v));
    Output dqs(at.queries(a.dq), at.query_bytes()), dgs(at.decays(a.dg), at.key_bytes());
    Output dks(at.keys(a.dk), at.key_bytes()), dvs(at.keys(a.dv), at.key_bytes());
    const Rows<const Real> q = qs.rows, gy = gs.rows, k = ks.rows, v = vs.rows;
    const Sink dq = dqs.rows, dk = dks.rows, dv = dvs.rows, dg_rows = dgs.rows;
    const uint8_t *mask = at.mask();
    const Row<true, kDecay> row{e, sums, at.lanes, kDecay ? &decay->range : nullptr};
    V dg_total{};
    for (int t = at.rows - 1; t >= 0; --t) {
      dq.put(t, row.write_query(q[t], gy[t], restore(at, t)));
      typename Row<true, kDecay>::KeyGradient o{};
      const bool valid = !mask || mask[t];
      if (valid) o = row.gradient(k[t], v[t], kDecay ? decay->scales.weight[t] : V{});
      dk.put(t, o.dk);
      dv.put(t, o.dv);
      if constexpr (kDecay) {
        const Scales &scales = decay->scales;
        dg->add(-o.dw);
        if (scales.moves_at(t)) {
          const I forgets = scales.kept[t] == 0;  // and the gradient is exactly 0
          *dg = {select(forgets, V{}, dg->value), select(forgets, V{}, dg->rest)};
          sums.scale(scales.kept[t], decay->range, e, at.lanes);
        }
        const V each = valid ? dg->value : V{};
        dg_rows.put(t, each);
        dg_total += each;
      }
    }
    if (kDecay && a.dg_sums) {
      Real *to = (Real *)a.dg_sums + (at.g.slot + at.t / kCheckpoint) * a.D + at.d;
      store_lanes(to, load_lanes(to, at.lanes, 0) + dg_total, at.lanes);
    }
  }

  // Non-causal: read the final state at queries, and add them to the reverse sums.
  void query_tile(const Spot &at, GridSums state, GridSums sums) const {
    const Input qs(at.queries(a.q)), gs(at.queries(a.gy));
    Output dqs(at.queries(a.dq), at.query_bytes());
    const Rows<const Real> q = qs.rows, gy = gs.rows;
    const Sink dq = dqs.rows;
    const Row<true, false> reader{e, state, at.lanes}, row{e, sums, at.lanes};
    for (int t = 0; t < at.rows; ++t)
      dq.put(t, row.write_query(q[t], gy[t], reader.template read<true>(q[t], V{})));
  }

  void key_tile(const Spot &at, GridSums sums) const {
    const Input ks(at.keys(a.k)), vs(at.keys(a.v));
    Output dks(at.keys(a.dk), at.key_bytes()), dvs(at.keys(a.dv), at.key_bytes());
    const Rows<const Real> k = ks.rows, v = vs.rows;
    const Sink dk = dks.rows, dv = dvs.rows;
    const uint8_t *mask = at.mask();
    const Row<true, false> row{e, sums, at.lanes};
    for (int t = 0; t < at.rows; ++t) {
      typename Row<true, false>::KeyGradient o{};
      if (!mask || mask[t]) o = row.gradient(k[t], v[t], V{});
      dk.put(t, o.dk);
      dv.put(t, o.dv);
    }
  }

  // ---- numbers saved for the backward: [3, B, L, D] ---------------------------------------------

  INLINE Real *saved(const Spot &at, int t) const {
    return (Real *)a.saved + (at.g.row * a.Lq + at.g.q + at.t + t) * a.D + at.d;
  }
  INLINE void save(const Spot &at, int t, const Found &o) const {
    Real *to = saved(at, t);
    const int64_t plane = a.B * a.Lq * a.D;
    store_lanes(to, o.y, at.lanes);
    store_lanes(to + plane, o.inverse, at.lanes);
    store_lanes(to + 2 * plane, o.slope, at.lanes);
  }
  INLINE Found restore(const Spot &at, int t) const {
    const Real *from = saved(at, t);
    const int64_t plane = a.B * a.Lq * a.D;
    return {load_lanes(from, at.lanes, 0), load_lanes(from + plane, at.lanes, 0),
            load_lanes(from + 2 * plane, at.lanes, 0)};
  }

  // ---- walks ------------------------------------------------------------------------------------

  // Sums of the blocks of a group.
  struct Blocks {
    Scratch<Real> memory;
    const Grid &e;
    Blocks(const Grid &grid, int64_t count) : memory(count * GridSums::size(grid)), e(grid) {
      memset(memory.data, 0, sizeof(Real) * size_t(count * GridSums::size(e)));
    }
    INLINE GridSums operator[](int64_t i) const {
      return GridSums(memory.data + i * GridSums::size(e), e);
    }
  };

  // Call f(spot, sums) for every tile of `length` tokens and every block, and close the chunks.
  template <class F>
  void walk(const Sequence &g, Group group, int64_t length, const Blocks &blocks, bool backwards,
            F f) const {
    const int64_t tiles = (length + kTile - 1) / kTile;
    for (int64_t n = 0; n < tiles; ++n) {
      const int64_t t = (backwards ? tiles - 1 - n : n) * kTile;
      for (int64_t i = 0; i < group.count; ++i) {
        f(Spot({a, g, group.first + i}, t, length), i);
        if ((n + 1) % (kChunk / kTile) == 0) blocks[i].fold();
      }
    }
    stream_fence();
  }
  void load(const Sequence &g, Group group, const Blocks &to, const void *s, const void *z,
            bool exchange) const {
    for (int64_t i = 0; s && i < group.count; ++i)
      to[i].load(s, z, Channels(a, g, group.first + i), e.nodes, exchange);
  }

  // ---- decay ------------------------------------------------------------------------------------

  INLINE static bool closes_span(const Spot &at) {
    return (at.t + kTile) % Scale::kSpan == 0 || at.t + at.rows == at.g.lk;
  }
  INLINE Scales scales(const Spot &at, Scale &scale) const {
    const Input gs(at.decays(a.g));
    return Scales(scale, gs.rows, at.mask(), at.rows, at.t == 0);
  }
  // Call f(decay) for a tile; at the end of a span, return to the true sums.
  template <class F> void decaying(const Spot &at, GridSums sums, Decaying &of, F f) const {
    const Decay decay{scales(at, of.scale), of.range};
    f(&decay);
    if (!closes_span(at)) return;
    sums.scale(of.scale.down(), of.range, e, at.lanes);
    of.scale = {};
  }

  // What the backward recomputes from the keys of a group: the scale before every tile, and the
  // sums at the end of every span but the last.
  struct Walked {
    int64_t tiles, closed, size;  // closed: spans before the last one
    Scratch<Scale> scales;
    Scratch<Real> ends;

    Walked(const Grid &e, const Sequence &g, int64_t count)
        : tiles(ceil_div(g.lk, kTile)),
          closed((g.lk - 1) / Scale::kSpan),
          size(GridSums::size(e) / 2),
          scales(count * tiles),
          ends(count * closed * size) {}
    INLINE Scale &scale(const Spot &at, int64_t i) const {
      return scales[i * tiles + at.t / kTile];
    }
    INLINE bool last(const Spot &at) const { return at.t / Scale::kSpan == closed; }
    // The sums of block i after the span of a tile: s and z of each channel.
    INLINE Real *end(const Spot &at, int64_t i) const {
      return ends.data + (i * closed + at.t / Scale::kSpan) * size;
    }
  };
  void walk_keys(const Sequence &g, Group group, const Walked &to) const {
    const Blocks b(e, group.count);
    load(g, group, b, a.s0, a.z0, false);
    const DecayingBlocks of(e, group.count, a.s0);
    walk(g, group, g.lk, b, false, [&](const Spot &at, int64_t i) {
      to.scale(at, i) = of[i].scale;
      if (to.last(at)) {
        scales(at, of[i].scale);
        return;
      }
      decaying(at, b[i], of[i], [&](const Decay *decay) { accumulate<true>(at, b[i], decay); });
      if (closes_span(at)) b[i].copy(to.end(at, i));
    });
  }
  // Gradient of a log decay after a span: the product of the sums and the reverse sums there.
  V product(const Spot &at, int64_t i, GridSums reverse, const Walked &walked) const {
    V result{};
    const bool last = walked.last(at);
    for (int c = 0; c < at.lanes && (a.gs || !last); ++c) {
      const int64_t from = last ? (at.g.index * a.D + at.d + c) * e.nodes : 2 * c * e.padded;
      const Real *s = (last ? (const Real *)a.s1 : walked.end(at, i)) + from;
      const Real *z = last ? (const Real *)a.z1 + from : s + e.padded;
      result[c] = reverse.product(c, s, z, e.nodes);
    }
    return result;
  }

  // ---- forward and backward ---------------------------------------------------------------------

  void forward(const Sequence &g, Group group) const {
    store_shift(g, group);
    if (a.causal && g.lk <= kTile && e.padded == e.nodes) return forward_in_place(g, group);
    const Blocks b(e, group.count);
    load(g, group, b, a.s0, a.z0, false);
    if (a.causal && a.g.data) {
      const DecayingBlocks of(e, group.count, a.s0);
      walk(g, group, g.lk, b, false, [&](const Spot &at, int64_t i) {
        decaying(at, b[i], of[i],
                 [&](const Decay *decay) { causal_tile<true>(at, b[i], decay); });
      });
    } else if (a.causal) {
      walk(g, group, g.lk, b, false,
           [&](const Spot &at, int64_t i) { causal_tile<true>(at, b[i], nullptr); });
    } else {
      walk(g, group, g.lk, b, false,
           [&](const Spot &at, int64_t i) { accumulate<false>(at, b[i]); });
      walk(g, group, g.lq, b, false,
           [&](const Spot &at, int64_t i) { forward_tile<false, false>(at, b[i]); });
    }
    for (int64_t i = 0; i < group.count; ++i)
      b[i].store(a.s1, a.z1, Channels(a, g, group.first + i), e.nodes, false);
  }
  // A few tokens, as in decoding: update a copy of the state, without any other memory.
  void forward_in_place(const Sequence &g, Group group) const {
    for (int64_t i = 0; i < group.count; ++i) {
      const Channels c(a, g, group.first + i);
      const GridSums sums(a.s1, a.z1, c, e);
      const Spot all(c, 0, g.lk);
      if (a.g.data && g.lk) {
        Scale scale;
        Range range = a.s0 ? Range::all(e) : Range::none(e);
        Decay decay{scales(all, scale), range};
        copy_state(c, decay.scales.take_first());
        causal_tile<false>(all, sums, &decay);
        sums.scale(scale.down(), range, e, c.lanes);
      } else {
        copy_state(c, splat(1));
        if (g.lk) causal_tile<false>(all, sums, nullptr);
      }
    }
    stream_fence();
  }
  // Copy the initial state to the final one, times a factor for each channel.
  void copy_state(const Channels &c, V factor) const {
    const int64_t at = (c.g.index * a.D + c.d) * e.nodes, count = c.lanes * e.nodes;
    for (const auto &[to, from] : {std::pair(a.s1, a.s0), std::pair(a.z1, a.z0)}) {
      Real *x = (Real *)to + at;
      const Real *x0 = (const Real *)from + at;
      if (!from) memset(x, 0, sizeof(Real) * size_t(count));
      else if (!any_differs(factor, splat(1))) memcpy(x, x0, sizeof(Real) * size_t(count));
      else
        for (int i = 0; i < c.lanes; ++i, x += e.nodes, x0 += e.nodes)
          GridSums::multiply(x, x0, e.nodes, factor[i]);
    }
  }
  void store_shift(const Sequence &g, Group group) const {
    const Real shift = any_key(g) ? 0 : kInf;
    const int64_t end = smaller(a.D, (group.first + group.count) * kLanes);
    for (int64_t d = group.first * kLanes; d < end; ++d) {
      const int64_t at = g.index * a.D + d;
      const Real before = a.m0 ? ((const Real *)a.m0)[at] : kInf;
      ((Real *)a.m1)[at] = before < shift ? before : shift;
    }
  }
  bool any_key(const Sequence &g) const {
    for (int64_t t = 0; t < g.lk; ++t)
      if (!a.key_mask || a.key_mask[g.row * a.Lk + g.k + t]) return true;
    return false;
  }

  void backward(const Sequence &g, Group group) const {
    if (a.causal && a.g.data) return backward_decaying(g, group);
    const Blocks b(e, group.count);
    load(g, group, b, a.gs, a.gz, true);
    if (a.causal) {
      walk(g, group, g.lk, b, true,
           [&](const Spot &at, int64_t i) { backward_tile<false>(at, b[i]); });
    } else {
      const Blocks state(e, group.count);
      load(g, group, state, a.s1, a.z1, false);
      walk(g, group, g.lq, b, false,
           [&](const Spot &at, int64_t i) { query_tile(at, state[i], b[i]); });
      walk(g, group, g.lk, b, false, [&](const Spot &at, int64_t i) { key_tile(at, b[i]); });
    }
    store_gradient(g, group, b);
  }
  void backward_decaying(const Sequence &g, Group group) const {
    const Walked walked(e, g, group.count);
    walk_keys(g, group, walked);
    const Blocks b(e, group.count);
    load(g, group, b, a.gs, a.gz, true);
    const DecayingBlocks of(e, group.count, a.gs);
    const Scratch<Sum> dg(group.count);
    walk(g, group, g.lk, b, true, [&](const Spot &at, int64_t i) {
      Scale scale = walked.scale(at, i);
      const Decay decay{scales(at, scale), of[i].range};
      if (closes_span(at)) {
        dg[i] = {product(at, i, b[i], walked), V{}};
        b[i].scale(scale.down(), of[i].range, e, at.lanes);
      }
      backward_tile<true>(at, b[i], &decay, &dg[i]);
    });
    store_gradient(g, group, b);
  }
  void store_gradient(const Sequence &g, Group group, const Blocks &b) const {
    for (int64_t i = 0; a.ds && i < group.count; ++i)
      b[i].store(a.ds, a.dz, Channels(a, g, group.first + i), e.nodes, true);
  }
};

// Split of the work into groups of blocks. A sequence is not split over time.
struct GridPlan {
  static constexpr int64_t kCacheBytes = 512 << 10;  // for the sums of a group
  int threads;
  int64_t blocks, groups;
  GridPlan(const Grid &e, const EattnArgs &a) : blocks((a.D + kLanes - 1) / kLanes) {
    constexpr double kWorthAThread = 1 << 17;  // as in Plan
    const double work =
        double(a.B) * double(a.Lq + a.Lk) * double(a.D) * double(4 * e.vectors * kLanes);
    threads = work < kWorthAThread * double(a.threads) ? 1 + int(work / kWorthAThread)
                                                       : int(a.threads);
    const int64_t bytes = blocks * GridSums::size(e) * int64_t(sizeof(Real));
    groups = (bytes + kCacheBytes - 1) / kCacheBytes;
    const int64_t rows = a.R ? a.R : 1, wanted = (threads + rows - 1) / rows;
    if (groups < wanted) groups = wanted;
    if (groups > blocks) groups = blocks;
  }
  INLINE Group group(int64_t i) const {
    const int64_t begin = blocks * i / groups;
    return {begin, blocks * (i + 1) / groups - begin};
  }
};

template <bool kForward, int kVectors> void run_grid(const Grid &e, const EattnArgs &a) {
  const GridPlan plan(e, a);
  const GridSeries<kVectors> series{e, a};
  parallel(a.R * plan.groups, plan.threads, [&](int64_t task) {
    const FlushSubnormals flush;
    const Sequence g = sequence(a, task / plan.groups);
    const Group group = plan.group(task % plan.groups);
    kForward ? series.forward(g, group) : series.backward(g, group);
  });
}
template <bool kForward> void run_grid(const EattnArgs &a) {
  const Grid e(a);
  if (e.vectors == 1) run_grid<kForward, 1>(e, a);
  else if (e.vectors == 2) run_grid<kForward, 2>(e, a);
  else run_grid<kForward, 0>(e, a);
}

}  // namespace

EATTN_ENTRY(grid_forward) { run_grid<true>(*a); }
EATTN_ENTRY(grid_backward) { run_grid<false>(*a); }
