// The in-process Triton backend: requests go to Python models that run on the event loop of this
// process.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "triton_api.h"

namespace triton {

namespace nb = nanobind;

// The bytes of a Python buffer, or of a str as UTF-8, for as long as this lives.
class ByteView {
 public:
  explicit ByteView(nb::handle data) {
    if (PyUnicode_Check(data.ptr())) {
      begin_ = PyUnicode_AsUTF8AndSize(data.ptr(), &size_);
      if (begin_ == nullptr) throw nb::python_error();
      return;
    }
    if (PyObject_GetBuffer(data.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
    begin_ = static_cast<const char*>(view_.buf);
    size_ = view_.len;
    borrowed_ = true;
  }
  ByteView(const ByteView&) = delete;
  ByteView& operator=(const ByteView&) = delete;
  ~ByteView() {
    if (borrowed_) PyBuffer_Release(&view_);
  }
  const char* data() const { return begin_; }
  size_t size() const { return static_cast<size_t>(size_); }

 private:
  const char* begin_ = nullptr;
  Py_ssize_t size_ = 0;
  Py_buffer view_{};
  bool borrowed_ = false;
};

// One request at the backend, from Execute to its last response. Python owns it and must end it
// once, by a final response, finish() or fail(). If Python drops it before, the destructor fails
// it, so that no caller waits forever. The request is kept to its end: cancelling is only legal
// then, and the statistics need it.
class Execution {
 public:
  Execution(ModelInstance* instance, Request* request);
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution();

  std::string request_id() const;
  nb::dict inputs() const;  // name -> first element of BYTES and scalars, or a Tensor
  nb::dict parameters() const;
  void send(nb::handle outputs, bool final);
  void send_bytes(const char* output, nb::handle data, bool final);
  // A text with the ids of its tokens.
  void send_text(nb::handle text, const std::vector<int32_t>& token_ids);
  // The text that a token completes, with the ids and log probabilities of that token and of the
  // likeliest ones.
  void send_logprobs(nb::handle text, const std::vector<int32_t>& ids,
                     const std::vector<double>& values);
  void finish();
  void fail(Code code, const char* message);
  bool is_cancelled() const;
  bool ended() const { return request_ == nullptr; }

  PyObject* host() const { return host_; }
  bool cancel_reported = false;
  bool in_python = false;  // drained: listed under the GIL, and so to be unlisted

 private:
  Response* new_response() const;
  static void add_bytes(Response* response, const char* output, nb::handle data);
  void send_response(Response* response, bool final);
  void end(bool success);

  ModelInstance* instance_;
  Request* request_;
  ResponseFactory* factory_ = nullptr;
  PyObject* host_;  // borrowed from the model, which outlives its requests
  uint64_t start_ns_;
};

void bind_backend(nb::module_& module);

}  // namespace triton
