#include "stream_writer.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdio>
#include <utility>

namespace triton {

namespace {

// A piece of a body with its framing.
using Parts = std::array<std::string_view, 3>;

// How much the socket took; 0 if it takes nothing now, or never will: the transport finds out
// which.
size_t send_now(int fd, const Parts& parts) {
  std::array<iovec, 3> vectors;
  for (size_t at = 0; at < parts.size(); ++at)
    vectors[at] = {const_cast<char*>(parts[at].data()), parts[at].size()};
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = vectors.size();
  const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent < 0 ? 0 : static_cast<size_t>(sent);
}

}  // namespace

void StreamWriter::open(nb::object transport_write, nb::object buffered, int fd, bool chunked,
                        bool paused) {
  if (closed_) return;
  transport_write_ = std::move(transport_write);
  buffered_ = std::move(buffered);
  fd_ = fd;
  chunked_ = chunked;
  paused_ = paused;
  if (!paused) resume();
}

bool StreamWriter::write(std::string_view piece) {
  if (!error_.is_none()) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_.ptr())), error_.ptr());
    throw nb::python_error();
  }
  if (closed_) return false;
  if (piece.empty()) return paused_;  // an empty chunk would end the body
  if (paused_ || !transport_write_.is_valid()) return keep(piece);
  send(piece);
  return paused_;
}

bool StreamWriter::keep(std::string_view piece) {
  // Before the headers, pieces wait for them, not for the client. One that alone exceeds the limit,
  // as a long echoed prompt does, is not counted, even if a comment came before it.
  if (buffer_.empty()) uncounted_bytes_ = 0;
  if (uncounted_bytes_ == 0 && !transport_write_.is_valid() && piece.size() > max_buffer_bytes_)
    uncounted_bytes_ = piece.size();
  buffer_ += piece;
  if (buffer_.size() - uncounted_bytes_ <= max_buffer_bytes_) return true;
  const nb::object drop = drop_;
  close(nb::none());
  drop();
  return false;
}

void StreamWriter::send(std::string_view piece) {
  std::array<char, 24> length;
  Parts parts = {{{}, piece, {}}};
  if (chunked_) {
    const int written = std::snprintf(length.data(), length.size(), "%zx\r\n", piece.size());
    parts = {{{length.data(), static_cast<size_t>(written)}, piece, "\r\n"}};
  }
  body_bytes_ += piece.size();
  if (fd_ >= 0 && !direct_) direct_ = nb::cast<size_t>(nb::object(buffered_)()) == 0;
  const size_t sent = fd_ >= 0 && direct_ ? send_now(fd_, parts) : 0;
  if (sent == parts[0].size() + parts[1].size() + parts[2].size()) return;
  direct_ = false;
  std::string rest;
  for (const std::string_view part : parts) rest += part;
  if (const nb::object write = transport_write_; write.is_valid())
    write(nb::bytes(rest.data() + sent, rest.size() - sent));
}

void StreamWriter::resume() {
  paused_ = false;
  if (!buffer_.empty() && transport_write_.is_valid()) send(std::exchange(buffer_, {}));
  const nb::object drained = on_drained;
  if (!paused_ && !drained.is_none()) drained();
}

void StreamWriter::close(nb::object error) {
  if (std::exchange(closed_, true)) return;
  error_ = std::move(error);
  fd_ = -1;
  std::exchange(buffer_, {});
  // Let go of at the end: that may run any code.
  const nb::object drop = std::move(drop_);
  const nb::object write = std::move(transport_write_);
  const nb::object buffered = std::move(buffered_);
  const nb::object drained = std::exchange(on_drained, nb::none());
  if (std::exchange(paused_, false) && !drained.is_none()) drained();
}

struct StreamWriterAccess {
  // Its callbacks may refer back to it: the garbage collector has to see that.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const auto* writer = nb::inst_ptr<StreamWriter>(self);
    Py_VISIT(writer->drop_.ptr());
    Py_VISIT(writer->transport_write_.ptr());
    Py_VISIT(writer->buffered_.ptr());
    Py_VISIT(writer->error_.ptr());
    Py_VISIT(writer->on_drained.ptr());
    return 0;
  }

  static int clear(PyObject* self) {
    auto* writer = nb::inst_ptr<StreamWriter>(self);
    writer->on_drained = nb::none();
    writer->error_ = nb::none();
    writer->close(nb::none());
    return 0;
  }
};

void bind_stream_writer(nb::module_& module) {
  using nb::literals::operator""_a;
  static std::array<PyType_Slot, 3> slots = {
      {{Py_tp_traverse, reinterpret_cast<void*>(StreamWriterAccess::traverse)},
       {Py_tp_clear, reinterpret_cast<void*>(StreamWriterAccess::clear)},
       {0, nullptr}}};
  nb::class_<StreamWriter>(module, "StreamWriter", nb::type_slots(slots.data()),
                           "Writes the body of one response: see `generation.StreamWriter`.")
      .def(nb::init<size_t, nb::object>(), "max_buffer_bytes"_a, "drop"_a,
           nb::sig("def __init__(self, max_buffer_bytes: int, drop: "
                   "collections.abc.Callable[[], object]) -> None"))
      .def("open", &StreamWriter::open, "write"_a, "buffered"_a, nb::kw_only(), "fd"_a = -1,
           "chunked"_a = true, "paused"_a = false,
           nb::sig("def open(self, write: collections.abc.Callable[[bytes], object], buffered: "
                   "collections.abc.Callable[[], int], *, fd: int = -1, chunked: bool = True, "
                   "paused: bool = False) -> None"),
           "The headers are written: write the body with `write`, or to the socket `fd` while "
           "`buffered` is 0.")
      .def(
          "__call__",
          [](StreamWriter& self, nb::bytes piece) {
            return self.write({piece.c_str(), piece.size()});
          },
          nb::sig("def __call__(self, piece: bytes, /) -> bool"),
          "True while the client is slow: the piece waits.")
      .def("pause", &StreamWriter::pause, "The transport's buffer is full.")
      .def("resume", &StreamWriter::resume, "The transport has room again.")
      .def("close", &StreamWriter::close, nb::arg("error").none() = nb::none(),
           nb::sig("def close(self, error: Exception | None = None) -> None"),
           "Discard what waits and later pieces; with an error, raise it for later pieces.")
      .def_prop_ro("paused", &StreamWriter::paused, "Whether the client is slow.")
      .def_prop_ro("body_bytes", &StreamWriter::body_bytes,
                   "Bytes written so far, without framing and what waits.")
      .def_rw("on_drained", &StreamWriter::on_drained, nb::arg().none(),
              "Called when nothing waits any longer.");
}

}  // namespace triton
