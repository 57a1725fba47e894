#include "socket_writer.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

namespace triton {

namespace {

bool is_true(const nb::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

// How much of the chunk the socket took; 0 where it takes nothing now, or never will: the transport
// finds out which.
size_t send_chunk(int fd, std::string_view head, std::string_view piece) {
  std::array<iovec, 3> parts = {{{const_cast<char*>(head.data()), head.size()},
                                 {const_cast<char*>(piece.data()), piece.size()},
                                 {const_cast<char*>("\r\n"), 2}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent < 0 ? 0 : static_cast<size_t>(sent);
}

}  // namespace

SocketWriter::SocketWriter(int fd, nb::object idle, nb::object write_rest, nb::object otherwise)
    : fd_(fd),
      idle_(std::move(idle)),
      write_rest_(std::move(write_rest)),
      otherwise_(std::move(otherwise)) {}

bool SocketWriter::write(std::string_view piece) {
  if (piece.empty()) return false;           // an empty chunk would end the body
  if (!otherwise_.is_valid()) return false;  // the garbage collector has been here
  if (fd_ >= 0 && !direct_) direct_ = is_true(idle_());
  if (fd_ < 0 || !direct_) return is_true(otherwise_(nb::bytes(piece.data(), piece.size())));
  std::array<char, 24> length;
  const int written = std::snprintf(length.data(), length.size(), "%zx\r\n", piece.size());
  const std::string_view head(length.data(), static_cast<size_t>(written));
  const size_t sent = send_chunk(fd_, head, piece);
  if (sent > 0) piece_bytes_ += piece.size();
  if (sent == head.size() + piece.size() + 2) return false;
  direct_ = false;
  if (sent == 0) return is_true(otherwise_(nb::bytes(piece.data(), piece.size())));
  std::string chunk(head);
  chunk += piece;
  chunk += "\r\n";
  write_rest_(nb::bytes(chunk.data() + sent, chunk.size() - sent));
  return false;
}

uint64_t SocketWriter::close() {
  fd_ = -1;
  direct_ = false;
  return piece_bytes_;
}

struct SocketWriterAccess {
  // What it calls may lead back to it: the garbage collector has to see that.
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const auto* writer = nb::inst_ptr<SocketWriter>(self);
    Py_VISIT(writer->idle_.ptr());
    Py_VISIT(writer->write_rest_.ptr());
    Py_VISIT(writer->otherwise_.ptr());
    return 0;
  }

  static int clear(PyObject* self) {
    auto* writer = nb::inst_ptr<SocketWriter>(self);
    writer->close();
    writer->idle_.reset();
    writer->write_rest_.reset();
    writer->otherwise_.reset();
    return 0;
  }
};

void bind_socket_writer(nb::module_& module) {
  using nb::literals::operator""_a;
  static std::array<PyType_Slot, 3> slots = {
      {{Py_tp_traverse, reinterpret_cast<void*>(SocketWriterAccess::traverse)},
       {Py_tp_clear, reinterpret_cast<void*>(SocketWriterAccess::clear)},
       {0, nullptr}}};
  nb::class_<SocketWriter>(module, "SocketWriter", nb::type_slots(slots.data()),
                           "Writes pieces to a socket as chunks of HTTP/1.1.")
      .def(nb::init<int, nb::object, nb::object, nb::object>(), "fd"_a, "idle"_a, "write_rest"_a,
           "otherwise"_a,
           nb::sig("def __init__(self, fd: int, idle: typing.Callable[[], bool], write_rest: "
                   "typing.Callable[[bytes], object], otherwise: typing.Callable[[bytes], bool]) "
                   "-> None"))
      .def(
          "__call__",
          [](SocketWriter& self, nb::bytes piece) {
            return self.write({piece.c_str(), piece.size()});
          },
          nb::sig("def __call__(self, piece: bytes, /) -> bool"),
          "True if no other piece may follow for now.")
      .def("recheck", &SocketWriter::recheck, "Something else is written through the transport.")
      .def("close", &SocketWriter::close,
           "Stops writing to the descriptor; returns the bytes of the pieces written to it.");
}

}  // namespace triton
