// Tokens to text to responses, for the steps of an engine whose requests want nothing else.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace triton {

namespace nb = nanobind;

class Execution;

// One request of plain text. Used under the GIL.
class TextStream {
 public:
  // `step(tokenizer, token id)` gives the text that a token completes, or None
  // (tokenizers.DecodeStream.step); `on_no_text()` is called for each of the latter.
  TextStream(nb::object execution, nb::object step, nb::object tokenizer, nb::object on_no_text);

  // Sends what an output of the engine's adds. False where there is more to it than one token:
  // nothing has been done then. `output` has what vLLM's EngineCoreOutput has.
  bool advance(nb::handle output);
  // Tokens since the last call.
  int64_t take_count();

  bool begun = false;  // a token has come

 private:
  nb::object held_;
  Execution* execution_;
  nb::object step_;
  nb::object tokenizer_;
  nb::object on_no_text_;
  int64_t count_ = 0;
};

void bind_text_stream(nb::module_& module);

}  // namespace triton
