// Fresh memory, which costs more than the arithmetic done on it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

constexpr size_t kPage = 4096;

// A page fault is taken for every page first written; huge pages make that 512 times rarer.
inline void prefer_huge_pages(void *p, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr size_t kWorthIt = 4 << 20, kLargest = 1 << 16;  // no base page is larger than that
  if (!p || bytes < kWorthIt) return;
  const size_t begin = (size_t(p) + kLargest - 1) / kLargest * kLargest;
  const size_t end = (size_t(p) + bytes) / kLargest * kLargest;
  madvise((void *)begin, end - begin, MADV_HUGEPAGE);  // advice: a refusal changes nothing
#else
  (void)p;
  (void)bytes;
#endif
}

// Scratch that is freed at the end of a task.
template <class T> struct Scratch {
  T *data;
  explicit Scratch(int64_t n) {
    const size_t bytes = (size_t(n) * sizeof(T) + 255) / 128 * 128;
    data = (T *)aligned_alloc(128, bytes);
    if (!data) abort();
    prefer_huge_pages(data, bytes);
  }
  ~Scratch() { free(data); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  T &operator[](int64_t i) { return data[i]; }
};

}  // namespace
