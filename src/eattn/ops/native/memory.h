// Allocation of memory: page faults take more time than the arithmetic on the new pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

namespace {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
// Call madvise on the whole pages of [p, p + bytes); a failure has no effect.
inline void advise(void *p, size_t bytes, int advice) {
  constexpr size_t kLargest = 1 << 16;  // no base page is larger
  const size_t begin = (size_t(p) + kLargest - 1) / kLargest * kLargest;
  const size_t end = (size_t(p) + bytes) / kLargest * kLargest;
  if (begin < end) madvise((void *)begin, end - begin, advice);
}
#endif

// The first write to a page causes a page fault; huge pages cause 512 times fewer.
inline void prefer_huge_pages(void *p, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr size_t kWorthIt = 4 << 20;
  if (bytes >= kWorthIt) advise(p, bytes, MADV_HUGEPAGE);
#else
  (void)p;
  (void)bytes;
#endif
}

// Take the page faults of an output now, on this thread. The contents do not change, so other
// threads may already write to it. Does nothing on systems without MADV_POPULATE_WRITE.
inline void populate(void *p, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_WRITE)
  advise(p, bytes, MADV_POPULATE_WRITE);
#else
  (void)p;
  (void)bytes;
#endif
}

#if defined(_WIN32)
inline void *allocate(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
inline void release(void *p) { _aligned_free(p); }
#else
inline void *allocate(size_t alignment, size_t bytes) { return aligned_alloc(alignment, bytes); }
inline void release(void *p) { free(p); }
#endif

// Scratch memory that is freed at the end of a scope.
template <class T> struct Scratch {
  T *data;
  explicit Scratch(int64_t n) {
    const size_t bytes = (size_t(n) * sizeof(T) + 255) / 128 * 128;
    data = (T *)allocate(128, bytes);
    if (!data) abort();
    prefer_huge_pages(data, bytes);
  }
  ~Scratch() { release(data); }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  T &operator[](int64_t i) const { return data[i]; }
};

}  // namespace
