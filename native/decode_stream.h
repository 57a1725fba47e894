// Token ids to text, one id at a time; bounds how many ids wait for their text.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

namespace triton {

namespace nb = nanobind;

// A tokenizers.DecodeStream decodes every id since it last returned text with each new id: ids that
// never complete a character cost more and more. This wraps one and starts another after
// kMaxPending of them. Used under the GIL.
class BoundedDecodeStream {
 public:
  // `make(ids)` returns a tokenizers.DecodeStream that continues after those ids; `decode(ids)`
  // returns their text. `ids` are before the first of `step`, and end with a character.
  BoundedDecodeStream(nb::object make, nb::object decode, const nb::sequence& ids);

  // The text that the id completes, or None (tokenizers.DecodeStream.step).
  nb::object step(nb::handle tokenizer, nb::handle token_id);

 private:
  using Ids = std::vector<nb::object>;

  nb::object step_stream(nb::handle tokenizer, nb::handle token_id);
  // Starts another stream; returns the text of the pending ids as far as it can be known.
  nb::object flush();
  void restart(const Ids& ids);
  std::string decode(const Ids& ids) const;

  nb::object make_;
  nb::object decode_;
  nb::object step_;       // of the stream
  Ids recent_;            // the ids of the last text
  Ids pending_;           // those since
  bool repeats_ = false;  // the stream's next text begins with `sent_`, which `flush` returned
  std::string sent_;
};

void bind_decode_stream(nb::module_& module);

}  // namespace triton
