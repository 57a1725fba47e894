// The Python module openai_frontend.triton._core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backend.h"
#include "buffer.h"
#include "decode_stream.h"
#include "error.h"
#include "inference.h"
#include "json_text.h"
#include "library.h"
#include "logprob_frames.h"
#include "mapped_file.h"
#include "metrics.h"
#include "server.h"
#include "server_options.h"
#include "stream_writer.h"
#include "tensor.h"
#include "text_stream.h"
#include "trace.h"

namespace nb = nanobind;

namespace {

nb::dict live_counts() {
  nb::dict counts;
  counts["requests"] = triton::live.requests.load();
  counts["responses"] = triton::live.responses.load();
  counts["buffers"] = triton::live.buffers.load();
  counts["executions"] = triton::live.executions.load();
  return counts;
}

nb::dict relay_counts() {
  nb::dict counts;
  counts["texts"] = triton::relay_counts.texts.load();
  counts["writes"] = triton::relay_counts.writes.load();
  return counts;
}

std::optional<std::pair<size_t, size_t>> json_member(const nb::bytes& text, const nb::bytes& name) {
  return triton::json_member({text.c_str(), text.size()}, {name.c_str(), name.size()});
}

// TritonError(code, message): the code as Triton numbers it.
void register_error(nb::module_& module) {
  static PyObject* error_type =
      PyErr_NewException("openai_frontend.triton._core.TritonError", PyExc_RuntimeError, nullptr);
  module.attr("TritonError") = nb::handle(error_type);
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const triton::TritonError& error) {
      const nb::tuple arguments =
          nb::make_tuple(static_cast<int>(error.code()), triton::lenient_str(error.what()));
      PyErr_SetObject(error_type, arguments.ptr());
    }
  });
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() =
      "The Triton core in this process, and the backend whose models are Python engines of this "
      "process.";
  register_error(module);
  module.def("load_library", &triton::load_library, nb::arg("library"), nb::arg("siblings"),
             "Loads libtritonserver; returns the (major, minor) version of its C API.");
  module.def("live_counts", &live_counts, nb::sig("def live_counts() -> dict[str, int]"),
             "Objects that live now; zero when no request is in flight.");
  module.def("relay_counts", &relay_counts, nb::sig("def relay_counts() -> dict[str, int]"),
             "Texts that were relayed to clients, and the writes that took them, so far.");
  module.def("json_member", &json_member, nb::arg("text"), nb::arg("name"),
             nb::sig("def json_member(text: bytes, name: bytes) -> tuple[int, int] | None"),
             "Where the value of a member of a JSON object begins and ends. None if there is not "
             "exactly one, or a key has an escape. Values are skipped, not checked.");
  triton::bind_tensor(module);
  triton::bind_mapped_file(module);
  triton::bind_options(module);
  triton::bind_server(module);
  triton::bind_metrics(module);
  triton::bind_stream_writer(module);
  triton::bind_trace(module);
  triton::bind_logprob_frames(module);
  triton::bind_inference(module);
  triton::bind_backend(module);
  triton::bind_decode_stream(module);
  triton::bind_text_stream(module);
}
