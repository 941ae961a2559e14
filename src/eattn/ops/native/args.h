// Arguments of the kernels: a plain struct of 64-bit fields. ops/native.py lists the same fields in
// the same order.
#pragma once
#include <cstdint>

// A [B, L, D] tensor with strides in elements; data is nullptr if the tensor is missing.
struct EattnView {
  void *data;
  int64_t sb, sl, sd;
};

struct EattnArgs {
  EattnView q, k, v, y;            // inputs and output of the forward
  EattnView gy, dq, dk, dv;        // backward only
  EattnView g, dg;                 // log decay and its gradient, in the accumulation type
  const uint8_t *key_mask;         // [B, Lk], 1 where the token is valid; or nullptr
  const int64_t *cu_seqlens;       // [R + 1] offsets of packed sequences; or nullptr
  // States in memory order [R, N, D], shifts [R, D]; all in the accumulation type.
  const void *s0, *z0, *m0;        // initial state, or nullptr
  void *s1, *z1, *m1;              // final state: written by forward, read by backward
  const void *gs, *gz;             // gradients of the final state, or nullptr
  void *ds, *dz;                   // gradients of the initial state, or nullptr
  void *saved;                     // checkpoints, see states.h; or nullptr
  // Gradient of a log decay that is constant per channel: [slots, D], the sum over every
  // kCheckpoint tokens of a sequence, numbered like its checkpoints; or nullptr. Then dg is missing.
  void *dg_sums;
  int64_t B, Lq, Lk, D, R;         // R: number of sequences, B or the packed ones
  int64_t terms, causal, io, threads;
  double radius;                   // half-width of the quadrature's grid; 0 for Taylor
};

// Values of io, the type of the inputs.
enum { EATTN_F32 = 0, EATTN_F64 = 1, EATTN_BF16 = 2, EATTN_F16 = 3 };
