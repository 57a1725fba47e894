#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <stdexcept>

namespace triton {

namespace nb = nanobind;

namespace {

// A mapped region, as the signal handler needs it.
struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: the slot is free
  std::atomic<size_t> size{0};      // whole pages
  std::atomic<bool> lost{false};    // its pages have been replaced
};

constexpr size_t kMostMappings = 1024;
std::array<Mapping, kMostMappings> mappings;
std::mutex mappings_mutex;  // of writers; the handler only reads
struct sigaction previous_action;

// Another process may shorten the file at any time: an access to what is gone raises SIGBUS, also
// one by a backend. The handler puts empty pages in its place, and the region is lost.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Mapping& mapping : mappings) {
    const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    const size_t size = mapping.size.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address - begin >= size) continue;
    mapping.lost.store(true, std::memory_order_release);
    void* const pages = mmap(reinterpret_cast<void*>(begin), size, PROT_READ | PROT_WRITE,
                             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = saved_errno;
    if (pages != MAP_FAILED) return;
  }
  // Not of a region: the access is repeated, and the previous handler gets the signal.
  sigaction(SIGBUS, &previous_action, nullptr);
  if (info->si_code <= 0) raise(signal);
}

void install_handler() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTART;
    sigaction(SIGBUS, &action, &previous_action);
  });
}

Mapping& free_mapping() {
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) == 0) return mapping;
  }
  throw std::runtime_error("too many regions of shared memory are mapped");
}

// Owns a file descriptor and a mapping of it: `size` bytes from `offset`. Unmapped once no view
// refers to the object.
class MappedFile {
 public:
  MappedFile(int fd, uint64_t offset, size_t size) : offset_(offset), size_(size) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    before_ = static_cast<size_t>(offset % page);
    mapped_ = (before_ + size + page - 1) / page * page;
    if (!fits(fd)) throw std::invalid_argument("the file is shorter than the region");
    install_handler();
    const std::lock_guard lock(mappings_mutex);
    mapping_ = &free_mapping();
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd_ < 0) throw std::runtime_error("no file descriptor is left");
    void* const base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                            static_cast<off_t>(offset - before_));
    if (base == MAP_FAILED) {
      close(fd_);
      throw std::runtime_error("the region cannot be mapped");
    }
    base_ = static_cast<char*>(base);
    mapping_->lost.store(false, std::memory_order_relaxed);
    mapping_->size.store(mapped_, std::memory_order_release);
    mapping_->begin.store(reinterpret_cast<uintptr_t>(base), std::memory_order_release);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    const std::lock_guard lock(mappings_mutex);
    munmap(base_, mapped_);
    mapping_->begin.store(0, std::memory_order_release);
    close(fd_);
  }

  char* data() const { return base_ + before_; }
  size_t size() const { return size_; }
  bool intact() const { return !mapping_->lost.load(std::memory_order_acquire) && fits(fd_); }

 private:
  bool fits(int fd) const {
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < 0) return false;
    const auto length = static_cast<uint64_t>(status.st_size);
    return offset_ <= length && size_ <= length - offset_;
  }

  uint64_t offset_;
  size_t size_;
  size_t before_ = 0;  // bytes of the first page that are not of the region
  size_t mapped_ = 0;
  int fd_ = -1;
  char* base_ = nullptr;
  Mapping* mapping_ = nullptr;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<MappedFile>(self);
  return PyBuffer_FillInfo(view, self, memory->data(), static_cast<Py_ssize_t>(memory->size()),
                           /*readonly*/ 0, flags);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

}  // namespace

void bind_mapped_file(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<MappedFile>(
      module, "MappedFile", nb::type_slots(slots),
      "A part of a file that other processes map too: a writable buffer. It stays mapped as long "
      "as a view of it exists.")
      .def(nb::init<int, uint64_t, size_t>(), "fd"_a, "offset"_a, "size"_a,
           "Duplicates the descriptor. Raises ValueError if the file is not regular or too short.")
      .def_prop_ro("nbytes", &MappedFile::size)
      .def_prop_ro("intact", &MappedFile::intact,
                   "False once the file was found to be shorter than the region. An access to what "
                   "is gone finds zeros, and other processes see nothing of the region any more.");
}

}  // namespace triton
