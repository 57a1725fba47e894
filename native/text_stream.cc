#include "text_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend.h"
#include "error.h"

namespace triton {

namespace {

// Attributes of outputs and streams. Made once, never destroyed.
struct Names {
  nb::object finish_reason = nb::str("finish_reason");
  nb::object prefill_stats = nb::str("prefill_stats");
  nb::object new_token_ids = nb::str("new_token_ids");
  nb::object new_logprobs = nb::str("new_logprobs");
  nb::object request_id = nb::str("request_id");
  nb::object native = nb::str("native");
};

const Names& names() {
  static const auto* made = new Names();
  return *made;
}

nb::object attribute(nb::handle of, const nb::object& name) {
  PyObject* value = PyObject_GetAttr(of.ptr(), name.ptr());
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

TextStream* stream_of(nb::handle request_id, const nb::dict& streams, nb::object& kept) {
  PyObject* found = PyDict_GetItemWithError(streams.ptr(), request_id.ptr());
  if (found == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return nullptr;
  }
  kept = attribute(found, names().native);
  return nb::isinstance<TextStream>(kept) ? nb::inst_ptr<TextStream>(kept) : nullptr;
}

// One row of an array as vLLM's engine sends it: [numpy's name of the type, [1, columns], bytes].
class Row {
 public:
  explicit Row(nb::handle sent) {
    if (!PyList_Check(sent.ptr()) || PyList_GET_SIZE(sent.ptr()) != 3) return;
    type_ = PyList_GET_ITEM(sent.ptr(), 0);
    const nb::handle shape = PyList_GET_ITEM(sent.ptr(), 1);
    bytes_ = PyList_GET_ITEM(sent.ptr(), 2);
    if (!PyUnicode_Check(type_.ptr()) || !PyList_Check(shape.ptr()) ||
        PyList_GET_SIZE(shape.ptr()) != 2 || PyObject_CheckBuffer(bytes_.ptr()) == 0)
      return;
    int64_t rows = 0;
    int64_t columns = 0;
    if (!nb::try_cast(nb::handle(PyList_GET_ITEM(shape.ptr(), 0)), rows) ||
        !nb::try_cast(nb::handle(PyList_GET_ITEM(shape.ptr(), 1)), columns) || rows != 1 ||
        columns < 1 || columns > std::numeric_limits<int32_t>::max())
      return;
    columns_ = static_cast<size_t>(columns);
  }

  size_t columns() const { return columns_; }  // 0 if it is anything else

  // Appends the first numbers of the row. False if they are of another type than the engine has.
  template <typename Number>
  bool read(size_t count, std::vector<Number>& into) const {
    if constexpr (std::is_floating_point_v<Number>) {
      return (is("<f4") && copy<float>(count, into)) || (is("<f8") && copy<double>(count, into));
    } else {
      return (is("<i4") && copy<int32_t>(count, into)) || (is("<i8") && copy<int64_t>(count, into));
    }
  }

 private:
  bool is(const char* type) const {
    return PyUnicode_CompareWithASCIIString(type_.ptr(), type) == 0;
  }

  template <typename Element, typename Number>
  bool copy(size_t count, std::vector<Number>& into) const {
    const ByteView bytes(bytes_);
    if (bytes.size() != columns_ * sizeof(Element)) return false;
    const char* at = bytes.data();
    for (size_t index = 0; index < count; ++index, at += sizeof(Element)) {
      Element element;
      std::memcpy(&element, at, sizeof element);
      into.push_back(static_cast<Number>(element));
    }
    return true;
  }

  nb::handle bytes_;
  nb::handle type_;
  size_t columns_ = 0;
};

// The exception's text; the type's name if the exception's own text cannot be read.
nb::object cause(const nb::python_error& error) {
  try {
    return nb::str(error.value());
  } catch (const nb::python_error&) {
    return nb::type_name(error.type());
  }
}

// Returns (outputs that Python has to see, (request id, error) of those that could not be sent).
nb::tuple advance_all(const nb::list& outputs, const nb::dict& streams) {
  nb::list rest;
  nb::list failed;
  for (nb::handle output : outputs) {
    const nb::object request_id = attribute(output, names().request_id);
    nb::object kept;
    try {
      TextStream* stream = stream_of(request_id, streams, kept);
      if (stream == nullptr || !stream->advance(output)) rest.append(output);
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      failed.append(nb::make_tuple(request_id, cause(error)));
    } catch (const std::exception& error) {  // a Triton error, or out of memory
      failed.append(nb::make_tuple(request_id, lenient_str(error.what())));
    }
  }
  return nb::make_tuple(rest, failed);
}

}  // namespace

TextStream::TextStream(nb::object execution, nb::object step, nb::object tokenizer,
                       nb::object pending, bool keeps_ids, size_t logprobs)
    : held_(std::move(execution)),
      execution_(nb::cast<Execution*>(held_)),
      step_(std::move(step)),
      tokenizer_(std::move(tokenizer)),
      held_pending_(std::move(pending)),
      pending_(nb::cast<PendingDeltas*>(held_pending_)),
      keeps_ids_(keeps_ids),
      logprobs_(logprobs) {}

bool TextStream::advance(nb::handle output) {
  if (!attribute(output, names().finish_reason).is_none()) return false;
  if (!attribute(output, names().prefill_stats).is_none()) return false;
  const nb::object ids = attribute(output, names().new_token_ids);
  if (!PyList_Check(ids.ptr())) return false;
  if (PyList_GET_SIZE(ids.ptr()) != 1) return false;
  if (logprobs_ != 0 && !read_logprobs(output)) return false;
  if (execution_->ended()) return true;  // its caller has gone
  PyObject* token_id = PyList_GET_ITEM(ids.ptr(), 0);
  PyObject* arguments[] = {tokenizer_.ptr(), token_id};
  PyObject* decoded = PyObject_Vectorcall(step_.ptr(), arguments, 2, nullptr);
  if (decoded == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();
    PyErr_Clear();  // Python gets the same error, and handles it
    return false;
  }
  add(token_id, nb::steal(decoded));
  return true;
}

// The engine sends as many columns as the request of the batch that wants most of them.
bool TextStream::read_logprobs(nb::handle output) {
  const nb::object sent = attribute(output, names().new_logprobs);
  if (!PyList_Check(sent.ptr()) || PyList_GET_SIZE(sent.ptr()) < 2) return false;
  const Row ids(PyList_GET_ITEM(sent.ptr(), 0));
  const Row values(PyList_GET_ITEM(sent.ptr(), 1));
  if (ids.columns() == 0 || ids.columns() != values.columns()) return false;
  const size_t count = std::min(logprobs_, ids.columns());
  logprob_ids_.clear();
  logprob_values_.clear();
  return ids.read(count, logprob_ids_) && values.read(count, logprob_values_);
}

void TextStream::add(nb::handle token_id, const nb::object& text) {
  ++count_;
  if (logprobs_ != 0) {  // a response for each, even if it completes no character
    execution_->send_logprobs(text.is_none() ? nb::str("") : text, logprob_ids_, logprob_values_);
    return;
  }
  // A token may be a part of a character.
  const bool has_text =
      !text.is_none() && !(PyUnicode_Check(text.ptr()) && PyUnicode_GET_LENGTH(text.ptr()) == 0);
  if (!has_text) ++pending_->streamed;
  if (keeps_ids_ && !(has_text && ids_.empty())) ids_.push_back(nb::cast<int32_t>(token_id));
  if (has_text) send(text);
}

void TextStream::send(const nb::object& text) {
  if (ids_.empty()) {
    execution_->send_bytes("text_output", text, false);
  } else {
    execution_->send_text(text, std::exchange(ids_, {}));
  }
}

int64_t TextStream::take_count() { return std::exchange(count_, 0); }

nb::list TextStream::take_ids() {
  nb::list ids;
  for (const int32_t id : std::exchange(ids_, {})) ids.append(id);
  return ids;
}

void bind_text_stream(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<PendingDeltas>(module, "PendingDeltas",
                            "Counts, per engine, the tokens that did not produce a response.")
      .def(nb::init<>())
      .def_rw("streamed", &PendingDeltas::streamed,
              "Without text, or buffered for a larger response.")
      .def_rw("whole", &PendingDeltas::whole, "Of requests that do not stream.");
  nb::class_<TextStream>(module, "TextStream",
                         "A streamed request whose tokens become plain text, maybe with log "
                         "probabilities: a response for each.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, bool, size_t>(), "execution"_a,
           "step"_a, "tokenizer"_a, "pending"_a, nb::kw_only(), "keeps_ids"_a, "logprobs"_a = 0,
           nb::sig("def __init__(self, execution: Execution, step: typing.Callable[[typing.Any, "
                   "int], str | None], tokenizer: typing.Any, pending: PendingDeltas, *, "
                   "keeps_ids: bool, logprobs: int = 0) -> None"))
      .def("take_count", &TextStream::take_count, "Tokens since the last call.")
      .def("take_ids", &TextStream::take_ids, nb::sig("def take_ids(self) -> list[int]"),
           "The ids of tokens that no response had since the last call.");
  module.def("advance_all", &advance_all, "outputs"_a, "streams"_a,
             nb::sig("def advance_all(outputs: list[typing.Any], streams: dict[str, typing.Any]) "
                     "-> tuple[list[typing.Any], list[tuple[str, str]]]"),
             "Sends what a step of an engine adds to the streams whose `native` is a TextStream; "
             "returns the outputs with more than text, and (request id, cause) of those that "
             "could not be sent.");
}

}  // namespace triton
