// Tasks on the threads of OpenMP, and the entry points of the kernels.
#pragma once
#include "args.h"
#include "simd.h"

namespace {

// Run all tasks; the calling thread runs `first` before its share of the tasks.
template <class First, class F> void parallel(int64_t tasks, int threads, First first, F task) {
  if (threads > tasks) threads = int(tasks);
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp master
      first();
#pragma omp for schedule(dynamic, 1)
      for (int64_t i = 0; i < tasks; ++i) task(i);
    }
    return;
  }
#endif
  first();
  for (int64_t i = 0; i < tasks; ++i) task(i);
}
template <class F> void parallel(int64_t tasks, int threads, F task) {
  parallel(tasks, threads, [] {}, task);
}

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Channel blocks [first, first + count) of a sequence.
struct Group {
  int64_t first, count;
};

}  // namespace

// Define the function that api.cpp calls for this ISA and type. Nothing else may have external
// linkage: if inline functions were shared between translation units, the linker might keep a
// version that this CPU cannot run.
#define EATTN_JOIN(a, b, c) eattn_##a##_##b##_##c
#define EATTN_NAME(what, isa, real) EATTN_JOIN(what, isa, real)
#define EATTN_ENTRY(what)                                     \
  extern "C" __attribute__((visibility("hidden"))) void       \
  EATTN_NAME(what, EATTN_ISA, EATTN_REAL)(const EattnArgs *a)
