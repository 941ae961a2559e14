// The C ABI: selects the kernels for an ISA and an accumulation type.
#include <cstddef>

#include "args.h"
#include "memory.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#define EATTN_API extern "C" __attribute__((visibility("default")))

#define EATTN_DECLARE_ONE(what, isa)                              \
  extern "C" void eattn_##what##_##isa##_float(const EattnArgs *); \
  extern "C" void eattn_##what##_##isa##_double(const EattnArgs *);
#define EATTN_DECLARE(isa)                                                \
  EATTN_DECLARE_ONE(forward, isa) EATTN_DECLARE_ONE(backward, isa)        \
  EATTN_DECLARE_ONE(grid_forward, isa) EATTN_DECLARE_ONE(grid_backward, isa)

EATTN_DECLARE(baseline)
#if defined(__x86_64__)
EATTN_DECLARE(avx2)
EATTN_DECLARE(avx512)
#endif

namespace {

using Function = void (*)(const EattnArgs *);

struct Isa {
  const char *name;
  Function forward[2][2], backward[2][2];  // small or wide grid; float or double
  bool (*runs)();
};

#define EATTN_PAIR(what, isa) {eattn_##what##_##isa##_float, eattn_##what##_##isa##_double}
#define EATTN_ISA(isa, test)                                      \
  {                                                               \
    #isa, {EATTN_PAIR(forward, isa), EATTN_PAIR(grid_forward, isa)},   \
        {EATTN_PAIR(backward, isa), EATTN_PAIR(grid_backward, isa)}, [] { return bool(test); } \
  }

#if defined(__x86_64__) && defined(_WIN32)
// __builtin_cpu_supports needs a runtime library that clang-cl does not link. The numbers are
// PF_AVX2_INSTRUCTIONS_AVAILABLE and PF_AVX512F_INSTRUCTIONS_AVAILABLE.
extern "C" __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long);
bool has_avx2() { return IsProcessorFeaturePresent(40); }
bool has_avx512() { return IsProcessorFeaturePresent(41); }
#elif defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

// Fastest first.
const Isa kIsas[] = {
#if defined(__x86_64__)
    EATTN_ISA(avx512, has_avx512()),
    EATTN_ISA(avx2, has_avx2()),
#endif
    EATTN_ISA(baseline, true),
};
constexpr int kIsaCount = sizeof(kIsas) / sizeof(kIsas[0]);

// The OpenMP runtime does not survive fork(): a parallel region in the child would wait for threads
// that exist only in the parent. A forked child therefore uses one thread.
bool forked = false;

#if defined(__unix__) || defined(__APPLE__)
const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif

size_t bytes_of(const EattnArgs &a, int64_t length) {
  const size_t size = a.io == EATTN_F64 ? 8 : a.io == EATTN_F32 ? 4 : 2;
  return size_t(a.B) * size_t(length) * size_t(a.D) * size;
}

// Whether grid.cpp computes this expansion; the same as Quadrature.wide in expansion.py.
bool is_wide(const EattnArgs &a) { return a.radius > 6.5 || (a.radius > 0 && a.terms > 33); }

EattnArgs single_thread_if_forked(const EattnArgs *args) {
  EattnArgs a = *args;
  if (forked || a.threads < 1) a.threads = 1;
  return a;
}

}  // namespace

// Increment when EattnArgs changes, so that Python rejects an outdated library.
EATTN_API int eattn_abi() { return 5; }

// Python compares this with the size of its own list of fields.
EATTN_API int eattn_args_size() { return int(sizeof(EattnArgs)); }

EATTN_API int eattn_openmp() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

EATTN_API const char *eattn_compiler() { return __VERSION__; }

EATTN_API const char *eattn_isa_name(int i) { return i < kIsaCount ? kIsas[i].name : nullptr; }

EATTN_API int eattn_isa_runs(int i) { return kIsas[i].runs(); }

EATTN_API void eattn_forward(const EattnArgs *args, int isa, int is_double) {
  const EattnArgs a = single_thread_if_forked(args);
  prefer_huge_pages(a.y.data, bytes_of(a, a.Lq));
  kIsas[isa].forward[is_wide(a)][is_double](&a);
}

EATTN_API void eattn_backward(const EattnArgs *args, int isa, int is_double) {
  const EattnArgs a = single_thread_if_forked(args);
  prefer_huge_pages(a.dq.data, bytes_of(a, a.Lq));
  prefer_huge_pages(a.dk.data, bytes_of(a, a.Lk));
  prefer_huge_pages(a.dv.data, bytes_of(a, a.Lk));
  if (a.dg.data) prefer_huge_pages(a.dg.data, size_t(a.B * a.Lk * a.D) * (is_double ? 8 : 4));
  kIsas[isa].backward[is_wide(a)][is_double](&a);
}
