// The C ABI: selects the kernels for an ISA and an accumulation type.
#include <cstddef>

#include "args.h"
#include "memory.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#define EATTN_API extern "C" __attribute__((visibility("default")))

#define EATTN_DECLARE(isa)                              \
  extern "C" void eattn_forward_##isa##_float(const EattnArgs *);  \
  extern "C" void eattn_forward_##isa##_double(const EattnArgs *); \
  extern "C" void eattn_backward_##isa##_float(const EattnArgs *); \
  extern "C" void eattn_backward_##isa##_double(const EattnArgs *);

EATTN_DECLARE(baseline)
#if defined(__x86_64__)
EATTN_DECLARE(avx2)
EATTN_DECLARE(avx512)
#endif

namespace {

using Function = void (*)(const EattnArgs *);

struct Isa {
  const char *name;
  Function forward[2], backward[2];  // float, double
  bool (*runs)();
};

#define EATTN_ISA(isa, test)                                      \
  {                                                               \
    #isa, {eattn_forward_##isa##_float, eattn_forward_##isa##_double},   \
        {eattn_backward_##isa##_float, eattn_backward_##isa##_double}, [] { return bool(test); } \
  }

// Fastest first.
const Isa kIsas[] = {
#if defined(__x86_64__)
    EATTN_ISA(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl")),
    EATTN_ISA(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")),
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

EattnArgs single_thread_if_forked(const EattnArgs *args) {
  EattnArgs a = *args;
  if (forked || a.threads < 1) a.threads = 1;
  return a;
}

}  // namespace

// Increment when EattnArgs changes, so that Python rejects an outdated library.
EATTN_API int eattn_abi() { return 3; }

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
  kIsas[isa].forward[is_double](&a);
}

EATTN_API void eattn_backward(const EattnArgs *args, int isa, int is_double) {
  const EattnArgs a = single_thread_if_forked(args);
  prefer_huge_pages(a.dq.data, bytes_of(a, a.Lq));
  prefer_huge_pages(a.dk.data, bytes_of(a, a.Lk));
  prefer_huge_pages(a.dv.data, bytes_of(a, a.Lk));
  kIsas[isa].backward[is_double](&a);
}
