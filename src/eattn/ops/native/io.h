// Load and store tiles of tokens, for any type, any strides and any number of channels.
#pragma once
#include "args.h"
#include "simd.h"

namespace {

constexpr int kTile = 16;           // tokens per tile; longer column walks are hard to prefetch
constexpr int64_t kCheckpoint = 64; // the forward saves its state every 64 tokens
constexpr int64_t kChunk = 2048;    // unit of work when time is split between threads

constexpr int kIoSame = kDouble ? EATTN_F64 : EATTN_F32;

INLINE float from_bf16(uint16_t h) {
  const uint32_t u = uint32_t(h) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

INLINE uint16_t to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return (u & 0x7fffffff) > 0x7f800000 ? uint16_t(0x7fc0) : uint16_t(rounded);
}

INLINE float from_f16(uint16_t h) {
  const uint32_t magnitude = uint32_t(h & 0x7fff) << 13;
  float f;
  memcpy(&f, &magnitude, 4);
  f *= 0x1p112f;  // rebias the exponent; this is exact, also for subnormals
  uint32_t u;
  memcpy(&u, &f, 4);
  u = (h & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000 : u;
  u |= uint32_t(h & 0x8000) << 16;
  memcpy(&f, &u, 4);
  return f;
}

INLINE uint16_t to_f16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00;
  if (u >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (u < 0x38800000) {                       // subnormal: the addition below rounds
    float a;
    memcpy(&a, &u, 4);
    a += 0.5f;  // one ulp of 0.5f is 2^-24, the spacing of subnormal halves
    memcpy(&u, &a, 4);
    return sign | uint16_t(u - 0x3f000000);
  }
  return sign | uint16_t((u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13);
}

template <class T> INLINE Real widen(T x) { return Real(x); }
template <class T> INLINE T narrow(Real x) { return T(x); }
struct Bf16 { uint16_t bits; };
struct F16 { uint16_t bits; };
template <> INLINE Real widen(Bf16 x) { return Real(from_bf16(x.bits)); }
template <> INLINE Real widen(F16 x) { return Real(from_f16(x.bits)); }
template <> INLINE Bf16 narrow(Real x) { return {to_bf16(float(x))}; }
template <> INLINE F16 narrow(Real x) { return {to_f16(float(x))}; }

template <class T>
INLINE void pack(Real *to, const T *from, int64_t sl, int64_t sd, int rows, int lanes) {
  for (int t = 0; t < rows; ++t, from += sl, to += kLanes) {
    if (sd == 1)
      for (int i = 0; i < lanes; ++i) to[i] = widen(from[i]);
    else
      for (int i = 0; i < lanes; ++i) to[i] = widen(from[i * sd]);
    for (int i = lanes; i < kLanes; ++i) to[i] = 0;
  }
}

template <class T>
INLINE void unpack(T *to, int64_t sl, int64_t sd, const Real *from, int rows, int lanes) {
  for (int t = 0; t < rows; ++t, to += sl, from += kLanes) {
    if (sd == 1)
      for (int i = 0; i < lanes; ++i) to[i] = narrow<T>(from[i]);
    else
      for (int i = 0; i < lanes; ++i) to[i * sd] = narrow<T>(from[i]);
  }
}

// Call f with a pointer of the tensor's type.
template <class F> INLINE void typed(int io, void *p, F f) {
  switch (io) {
    case EATTN_F32: return f((float *)p);
    case EATTN_F64: return f((double *)p);
    case EATTN_BF16: return f((Bf16 *)p);
    default: return f((F16 *)p);
  }
}

// Position and size of a tile of one tensor, for one block of channels.
struct Window {
  const EattnView &x;
  int io;
  int64_t b, l, d;
  int rows, lanes;

  // Whether the tensor can be read in place: no conversion, a full block of adjacent channels.
  INLINE bool direct() const { return io == kIoSame && x.sd == 1 && lanes == kLanes; }
  INLINE int64_t offset() const { return b * x.sb + l * x.sl + d * x.sd; }
};

// Not inlined, to keep the kernels small. Full blocks of adjacent channels are a separate case, in
// which the compiler vectorises the loops over lanes.
__attribute__((noinline)) void pack(Real *to, const Window &w) {
  typed(w.io, w.x.data, [&](auto *p) {
    if (w.lanes == kLanes && w.x.sd == 1) pack(to, p + w.offset(), w.x.sl, 1, w.rows, kLanes);
    else pack(to, p + w.offset(), w.x.sl, w.x.sd, w.rows, w.lanes);
  });
}
__attribute__((noinline)) void unpack(const Real *from, const Window &w) {
  typed(w.io, w.x.data, [&](auto *p) {
    if (w.lanes == kLanes && w.x.sd == 1) unpack(p + w.offset(), w.x.sl, 1, from, w.rows, kLanes);
    else unpack(p + w.offset(), w.x.sl, w.x.sd, from, w.rows, w.lanes);
  });
}

// Rows of a tile. Copy it to a local variable before a loop: as a member of an Input or Output,
// whose address escapes, it would be reloaded for every token.
template <class T> struct Rows {
  T *data;
  int64_t stride;
  INLINE V operator[](int t) const { return load(data + t * stride); }
};

// A tile to read: in place, or a packed copy. The rows of a missing tensor have no data.
struct Input {
  alignas(64) Real packed[kTile * kLanes];
  Rows<const Real> rows;

  INLINE explicit Input(const Window &w) : rows{packed, kLanes} {
    if (!w.x.data) rows.data = nullptr;
    else if (w.direct()) rows = {(const Real *)w.x.data + w.offset(), w.x.sl};
    else pack(packed, w);
  }
};

// Outputs of at least this size bypass the cache, which could not hold them until they are read.
constexpr int64_t kStreamBytes = 8 << 20;

struct Sink : Rows<Real> {
  bool past_cache;
  INLINE void put(int t, V x) const {
    if (past_cache) stream(data + t * stride, x);
    else store(data + t * stride, x);
  }
};

// A tile to write; it is complete in the tensor when this object goes out of scope. Rows of a
// missing tensor are discarded.
struct Output {
  alignas(64) Real packed[kTile * kLanes];
  Window w;
  Sink rows;

  INLINE Output(const Window &window, int64_t tensor_bytes) : w(window) {
    rows = {{packed, kLanes}, false};
    if (!w.x.data || !w.direct()) return;
    Real *data = (Real *)w.x.data + w.offset();
    const bool aligned =
        uintptr_t(data) % kBytes == 0 && w.x.sl * int64_t(sizeof(Real)) % kBytes == 0;
    rows = {{data, w.x.sl}, aligned && tensor_bytes >= kStreamBytes};
  }
  INLINE ~Output() {
    if (w.x.data && !w.direct()) unpack(packed, w);
  }
};

INLINE V load_lanes(const Real *p, int lanes, Real fill) {
  if (lanes == kLanes) return load(p);
  V x = splat(fill);
  for (int i = 0; i < lanes; ++i) x[i] = p[i];
  return x;
}

INLINE void store_lanes(Real *p, V x, int lanes) {
  if (lanes == kLanes) return store(p, x);
  for (int i = 0; i < lanes; ++i) p[i] = x[i];
}

// ---- sequences, channels and tiles -------------------------------------------------------------

// A sequence: index, batch row, first query and number, first key and number, first checkpoint.
struct Sequence {
  int64_t index, row, q, lq, k, lk, slot;
};

INLINE Sequence sequence(const EattnArgs &a, int64_t r) {
  if (!a.cu_seqlens) return {r, r, 0, a.Lq, 0, a.Lk, r * ((a.Lk + kCheckpoint - 1) / kCheckpoint)};
  const int64_t begin = a.cu_seqlens[r], length = a.cu_seqlens[r + 1] - begin;
  return {r, 0, begin, length, begin, length, begin / kCheckpoint + r};
}

// A block of channels of a sequence.
struct Channels {
  const EattnArgs &a;
  const Sequence &g;
  int64_t d;
  int lanes;

  INLINE Channels(const EattnArgs &args, const Sequence &sequence, int64_t block)
      : a(args), g(sequence), d(block * kLanes) {
    lanes = a.D - d < kLanes ? int(a.D - d) : kLanes;
  }
};

// A tile of a block, beginning at token t.
struct Spot : Channels {
  int64_t t;
  int rows;

  INLINE Spot(const Channels &c, int64_t at, int64_t end) : Channels(c), t(at) {
    rows = end - t < kTile ? int(end - t) : kTile;
  }
  INLINE Window queries(const EattnView &x) const {
    return {x, int(a.io), g.row, g.q + t, d, rows, lanes};
  }
  INLINE Window keys(const EattnView &x) const {
    return {x, int(a.io), g.row, g.k + t, d, rows, lanes};
  }
  INLINE Window decays(const EattnView &x) const {
    return {x, kIoSame, g.row, g.k + t, d, rows, lanes};
  }
  INLINE int64_t query_bytes() const { return a.B * a.Lq * a.D * int64_t(sizeof(Real)); }
  INLINE int64_t key_bytes() const { return a.B * a.Lk * a.D * int64_t(sizeof(Real)); }
  INLINE const uint8_t *mask() const {
    return a.key_mask ? a.key_mask + g.row * a.Lk + g.k + t : nullptr;
  }
};

}  // namespace
