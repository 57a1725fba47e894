// Triton's errors as C++ exceptions, and back.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "triton_api.h"

namespace triton {

class TritonError : public std::runtime_error {
 public:
  TritonError(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

// Takes ownership of `error`; throws unless it is nullptr.
inline void check(Error* error) {
  if (error == nullptr) return;
  TritonError thrown(server_api.ErrorCode(error), server_api.ErrorMessage(error));
  server_api.ErrorDelete(error);
  throw thrown;
}

// For calls whose failure changes nothing for the caller (an answer to a client that has gone,
// say).
inline void ignore(Error* error) {
  if (error != nullptr) server_api.ErrorDelete(error);
}

// A text for the core, which would take a NUL in it for its end.
inline const char* c_text(const std::string& text) {
  if (text.find('\0') != std::string::npos)
    throw TritonError(Code::kInvalidArg, "a name or string of the request contains a NUL byte");
  return text.c_str();
}

// A text of the core's or of a backend's, which need not be UTF-8.
inline nanobind::str lenient_str(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw nanobind::python_error();
  return nanobind::steal<nanobind::str>(decoded);
}

inline Error* make_error(Code code, const std::string& message) {
  return server_api.ErrorNew(code, message.c_str());
}

}  // namespace triton
