// Tokens to text, for the steps of an engine whose requests want nothing else.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace triton {

namespace nb = nanobind;

class Execution;

// Tokens of one engine that produced no response. Used under the GIL.
struct PendingDeltas {
  int64_t streamed = 0;  // without text, or gathered for a larger response
  int64_t whole = 0;     // of requests that do not stream
};

// One streamed request of plain text: a response for each token. Used under the GIL.
class TextStream {
 public:
  // `step(tokenizer, token id)` gives the text that a token completes, or None
  // (tokenizers.DecodeStream.step). `keeps_ids`: of the tokens that are in no response, or in one
  // with others. `logprobs`: the columns that each response has of the engine's log probabilities;
  // 0 for none.
  TextStream(nb::object execution, nb::object step, nb::object tokenizer, nb::object pending,
             bool keeps_ids, size_t logprobs);

  // Appends one output of the engine. Returns false, without side effects, if it is not a single
  // token. `output` has the attributes of vLLM's EngineCoreOutput, but its `new_logprobs` is a list
  // of arrays as the engine sends them: token ids, values.
  bool advance(nb::handle output);
  // Tokens since the last call.
  int64_t take_count();
  // The ids of tokens that no response had since the last call.
  nb::list take_ids();

 private:
  void add(nb::handle token_id, const nb::object& text);
  void send(const nb::object& text);
  bool read_logprobs(nb::handle output);

  nb::object held_;
  Execution* execution_;
  nb::object step_;
  nb::object tokenizer_;
  nb::object held_pending_;
  PendingDeltas* pending_;
  bool keeps_ids_;
  size_t logprobs_;
  std::vector<int32_t> logprob_ids_;  // of the token that is being sent
  std::vector<double> logprob_values_;
  int64_t count_ = 0;
  std::vector<int32_t> ids_;
};

void bind_text_stream(nb::module_& module);

}  // namespace triton
