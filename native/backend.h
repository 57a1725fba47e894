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

// One request at the backend, from Execute to its last response. Python owns it and must end it
// once, by a final response, finish() or fail(); where Python drops it unended, the destructor
// fails it, so that no caller waits for ever. The request is kept to its end: that is what makes
// cancel legal and the statistics true.
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
