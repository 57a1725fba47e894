// Reference-counted tensor memory, and the counters of live objects.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace triton {

// Objects that live now; each returns to zero when its requests are over. Readable from Python.
struct LiveCounts {
  std::atomic<int64_t> requests{0};   // between infer() and the release by Triton
  std::atomic<int64_t> responses{0};  // received and not yet dropped by Python
  std::atomic<int64_t> buffers{0};    // memory of output tensors
  std::atomic<int64_t> executions{
      0};  // requests that the in-process backend has not answered to the end
};
extern LiveCounts live;

// The memory of one output tensor: allocated when a backend asks for it, kept for as long as Triton
// or a Python tensor refers to it, so that an embedding reaches Python without a copy and the
// response can go at once.
class Buffer {
 public:
  static Buffer* allocate(size_t byte_size) {
    void* memory = std::malloc(sizeof(Buffer) + byte_size);
    if (memory == nullptr) throw std::bad_alloc();
    return new (memory) Buffer();
  }
  char* data() { return reinterpret_cast<char*>(this + 1); }
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    this->~Buffer();
    std::free(this);
  }

 private:
  Buffer() { live.buffers.fetch_add(1, std::memory_order_relaxed); }
  ~Buffer() { live.buffers.fetch_sub(1, std::memory_order_relaxed); }
  alignas(16) std::atomic<int32_t> references_{1};
};
static_assert(sizeof(Buffer) == 16, "tensor data starts 16 bytes in, and stays aligned");

// Owns one reference to a Buffer; empty for tensors without bytes.
class BufferReference {
 public:
  BufferReference() = default;
  explicit BufferReference(Buffer* buffer) : buffer_(buffer) {
    if (buffer_ != nullptr) buffer_->retain();
  }
  BufferReference(const BufferReference& other) : BufferReference(other.buffer_) {}
  BufferReference(BufferReference&& other) noexcept
      : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferReference& operator=(BufferReference other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferReference() {
    if (buffer_ != nullptr) buffer_->release();
  }
  const char* data() const { return buffer_ != nullptr ? buffer_->data() : nullptr; }

 private:
  Buffer* buffer_ = nullptr;
};

}  // namespace triton
