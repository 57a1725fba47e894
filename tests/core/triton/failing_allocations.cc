// Loaded before all else (LD_PRELOAD): makes one of the extension's own allocations fail.
#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

static std::atomic<int> left{0};  // allocations until the one that fails; 0: none does
static std::atomic<int> failed{0};
static std::atomic<bool> of_this_thread{false};
static thread_local bool armed_here = false;

// Fails the `number`th allocation from now on, of this thread or of all others.
extern "C" void arm(int number, int here) {
  failed = 0;
  armed_here = true;
  of_this_thread = here != 0;
  left = number;
}

// How many allocations have failed.
extern "C" int disarm() {
  left = 0;
  armed_here = false;
  return failed;
}

// Whether the extension allocates, itself or by the C++ library.
static bool is_the_extensions() {
  void* frames[12];
  const int count = backtrace(frames, 12);
  for (int each = 0; each < count; ++each) {
    Dl_info library;
    if (dladdr(frames[each], &library) == 0 || library.dli_fname == nullptr) return false;
    if (strstr(library.dli_fname, "failing_allocations") != nullptr) continue;
    if (strstr(library.dli_fname, "libstdc++") != nullptr) continue;
    return strstr(library.dli_fname, "_core.") != nullptr;
  }
  return false;
}

void* operator new(std::size_t size) {
  if (left > 0 && armed_here == of_this_thread && is_the_extensions() && --left == 0) {
    ++failed;
    throw std::bad_alloc();
  }
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
