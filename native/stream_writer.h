// The body of one response, on its way to the client.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace triton {

namespace nb = nanobind;

// Owns the body of a response: its chunks of HTTP/1.1, the bytes that wait for a slow client, and
// their count. A piece goes to the client's socket with one system call while the
// transport that owns the socket is idle, otherwise through the transport. Used under the GIL, on
// the event loop's thread, like the transport itself.
class StreamWriter {
 public:
  // `drop` is called once if more bytes wait for the client. One larger piece may wait for the
  // headers.
  StreamWriter(size_t max_buffer_bytes, nb::object drop)
      : max_buffer_bytes_(max_buffer_bytes), drop_(std::move(drop)) {}
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // The headers are written. `fd` is the socket's, or -1; `buffered` says how much of the
  // transport's own is on its way.
  void open(nb::object transport_write, nb::object buffered, int fd, bool chunked, bool paused);
  // True while the client is slow: pieces wait here, and callers should wait for `on_drained`.
  bool write(std::string_view piece);
  void pause() { paused_ = !closed_; }
  // The transport has room again.
  void resume();
  // The descriptor may be somebody else's from now on: pieces are discarded, or raise `error`.
  void close(nb::object error);

  bool paused() const { return paused_; }
  uint64_t body_bytes() const { return body_bytes_; }

  nb::object on_drained = nb::none();

 private:
  friend struct StreamWriterAccess;

  bool keep(std::string_view piece);
  void send(std::string_view piece);

  const size_t max_buffer_bytes_;
  nb::object drop_;
  nb::object transport_write_;  // not valid before the headers are written
  nb::object buffered_;
  nb::object error_ = nb::none();
  std::string buffer_;          // bytes that wait for a slow client
  size_t uncounted_bytes_ = 0;  // of the buffer, that the limit ignores
  uint64_t body_bytes_ = 0;
  int fd_ = -1;
  bool chunked_ = true;
  bool direct_ = false;  // the transport has written everything: its bytes are first
  bool paused_ = false;
  bool closed_ = false;
};

void bind_stream_writer(nb::module_& module);

}  // namespace triton
