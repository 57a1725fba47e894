// Frames straight to a client's socket, past the event loop's transport that owns it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace triton {

namespace nb = nanobind;

// Writes each piece as one chunk of HTTP/1.1 with one system call, while nothing of the transport's
// own is on its way; what the socket has no room for goes through the transport. Used under the
// GIL, on the event loop's thread, like the transport itself.
class SocketWriter {
 public:
  // `idle` says whether the transport has nothing to write, `write_rest` takes what is left of a
  // chunk that was begun, `otherwise` a whole piece: True where no other may follow for now.
  SocketWriter(int fd, nb::object idle, nb::object write_rest, nb::object otherwise);
  SocketWriter(const SocketWriter&) = delete;
  SocketWriter& operator=(const SocketWriter&) = delete;

  // True where no other piece may follow for now.
  bool write(std::string_view piece);
  // Something else is written through the transport: it comes first.
  void recheck() { direct_ = false; }
  // The descriptor is about to be somebody else's. The bytes of the pieces that went there.
  uint64_t close();

 private:
  friend struct SocketWriterAccess;

  int fd_;
  uint64_t piece_bytes_ = 0;
  bool direct_ = false;  // nothing but these chunks has been written since the transport was idle
  nb::object idle_;
  nb::object write_rest_;
  nb::object otherwise_;
};

void bind_socket_writer(nb::module_& module);

}  // namespace triton
