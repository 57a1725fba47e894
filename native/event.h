// An eventfd: how a thread of Triton's wakes the event loop without the GIL.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace triton {

class Event {
 public:
  Event() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { close(fd_); }

  int fd() const { return fd_; }
  // A full counter (EAGAIN) means that a wake-up is pending already, so a failed write loses
  // nothing.
  void set() { eventfd_write(fd_, 1); }
  void clear() {
    eventfd_t count;
    eventfd_read(fd_, &count);
  }

 private:
  int fd_;
};

}  // namespace triton
