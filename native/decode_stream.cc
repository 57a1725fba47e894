#include "decode_stream.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace triton {

namespace {

// A character has 4 bytes, and a token one at least. Tokens whose ends lie within characters, as
// some scripts have them, give no text for longer; they lose nothing here.
constexpr size_t kMaxPending = 16;
constexpr size_t kTail = 4;  // ids that may hold the beginning of a character, and one before
constexpr size_t kMaxHeld = 3;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD: bytes that are not a character

// The error of tokenizers if a text does not continue as it began. A new stream can decode it.
constexpr std::string_view kInvalidPrefix = "Invalid prefix encountered";

size_t trailing_replacements(std::string_view text) {
  size_t count = 0;
  for (; text.ends_with(kReplacement); ++count) text.remove_suffix(kReplacement.size());
  return count;
}

// Without its last U+FFFDs.
std::string without_last(const std::string& text, size_t replacements) {
  return text.substr(0, text.size() - replacements * kReplacement.size());
}

nb::list as_list(const std::vector<nb::object>& ids) {
  nb::list listed;
  for (const nb::object& id : ids) listed.append(id);
  return listed;
}

nb::object text_object(const std::string& text) { return nb::str(text.data(), text.size()); }

// Panics of tokenizers are BaseExceptions: one would end the loop that decodes for all requests.
bool is_panic(const nb::python_error& error) {
  return !error.matches(PyExc_Exception) && !error.matches(PyExc_KeyboardInterrupt) &&
         !error.matches(PyExc_SystemExit);
}

}  // namespace

BoundedDecodeStream::BoundedDecodeStream(nb::object make, nb::object decode,
                                         const nb::sequence& ids)
    : make_(std::move(make)), decode_(std::move(decode)) {
  for (nb::handle id : ids) recent_.push_back(nb::borrow(id));
  restart(recent_);
}

nb::object BoundedDecodeStream::step(nb::handle tokenizer, nb::handle token_id) {
  nb::object text;
  try {
    text = step_stream(tokenizer, token_id);
  } catch (nb::python_error& error) {
    if (is_panic(error)) nb::raise_from(error, PyExc_RuntimeError, "The tokenizer failed.");
    throw;
  }
  pending_.push_back(nb::borrow(token_id));
  if (text.is_none()) return pending_.size() < kMaxPending ? text : flush();
  recent_.swap(pending_);
  pending_.clear();
  if (!std::exchange(repeats_, false)) return text;
  const auto whole = nb::cast<std::string>(text);
  return whole.starts_with(sent_) ? text_object(whole.substr(sent_.size())) : text;
}

nb::object BoundedDecodeStream::step_stream(nb::handle tokenizer, nb::handle token_id) {
  try {
    return step_(tokenizer, token_id);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    if (!nb::cast<std::string>(nb::str(error.value())).starts_with(kInvalidPrefix)) throw;
  }
  // Like vLLM: https://github.com/vllm-project/vllm/issues/17448
  restart({});
  recent_.clear();
  pending_.clear();
  repeats_ = false;
  return step_(tokenizer, token_id);
}

nb::object BoundedDecodeStream::flush() {
  Ids all = recent_;
  all.insert(all.end(), pending_.begin(), pending_.end());
  std::string text = decode(all);
  const std::string known = repeats_ ? sent_ : decode(recent_);
  text = text.starts_with(known) ? text.substr(known.size()) : decode(pending_);
  // The last bytes may yet become a character: their ids stay, and their U+FFFD is not sent.
  Ids tail(pending_.end() - kTail, pending_.end());
  const std::string tail_text = decode(tail);
  const size_t held =
      std::min({kMaxHeld, trailing_replacements(text), trailing_replacements(tail_text)});
  repeats_ = held != 0;
  if (repeats_) {
    sent_ = without_last(tail_text, held);
    recent_.clear();
    pending_.swap(tail);
    restart(pending_);
  } else {
    pending_.clear();
    restart(recent_);
  }
  return text_object(without_last(text, held));
}

void BoundedDecodeStream::restart(const Ids& ids) { step_ = make_(as_list(ids)).attr("step"); }

std::string BoundedDecodeStream::decode(const Ids& ids) const {
  return nb::cast<std::string>(decode_(as_list(ids)));
}

void bind_decode_stream(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<BoundedDecodeStream>(
      module, "BoundedDecodeStream",
      "A tokenizers.DecodeStream whose steps cost the same however many ids complete no character.")
      .def(nb::init<nb::object, nb::object, nb::sequence>(), "make"_a, "decode"_a,
           "ids"_a = nb::tuple(),
           nb::sig("def __init__(self, make: typing.Callable[[list[int]], typing.Any], decode: "
                   "typing.Callable[[list[int]], str], ids: collections.abc.Sequence[int] = ()) "
                   "-> None"),
           "`make(ids)` returns a tokenizers.DecodeStream that continues after those ids. `ids` "
           "are before the first of `step`; their text ends with a whole character.")
      .def("step", &BoundedDecodeStream::step, nb::arg(), nb::arg(),
           nb::sig("def step(self, tokenizer: typing.Any, token_id: int, /) -> str | None"),
           "The text that the id completes. After 16 ids without text: what is known of it.");
}

}  // namespace triton
