#include "text_scanner.h"

#include <stdexcept>
#include <utility>

namespace triton {

namespace {

constexpr size_t kMaxHeld = 1024;  // bytes of white space that wait for the text after them
constexpr size_t kMaxWord = 512;   // bytes of a number or a literal
constexpr size_t kMaxDepth = 256;

bool is_space(char byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

bool is_hex(char byte) {
  return is_digit(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

bool is_word(char byte) {
  return is_digit(byte) || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         byte == '_' || byte == '.' || byte == '+' || byte == '-';
}

size_t end_of_digits(std::string_view text, size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

bool is_number(std::string_view word) {
  size_t at = word.starts_with('-') ? 1 : 0;
  const size_t whole = at;
  at = end_of_digits(word, at);
  if (at == whole || (word[whole] == '0' && at - whole > 1)) return false;
  if (at < word.size() && word[at] == '.') {
    const size_t fraction = at + 1;
    at = end_of_digits(word, fraction);
    if (at == fraction) return false;
  }
  if (at < word.size() && (word[at] == 'e' || word[at] == 'E')) {
    ++at;
    if (at < word.size() && (word[at] == '+' || word[at] == '-')) ++at;
    const size_t exponent = at;
    at = end_of_digits(word, exponent);
    if (at == exponent) return false;
  }
  return at == word.size();
}

bool is_scalar(std::string_view word) {
  return word == "true" || word == "false" || word == "null" || is_number(word);
}

// The part of JSON to which the next character belongs.
namespace JsonPosition {
constexpr char kValue = 'v';        // a value begins
constexpr char kFirst = 'f';        // the first element of an object or array, or its end
constexpr char kKey = 'k';          // a key begins
constexpr char kColon = 'c';        // the colon after a key
constexpr char kAfter = 'a';        // a comma or a closing bracket
constexpr char kKeyString = 'K';    // within a key
constexpr char kValueString = 'V';  // within a string
constexpr std::string_view kAll = "vfkcaKV";
}  // namespace JsonPosition

enum class Step { kNext, kIncomplete, kStop };

// Moves over the bytes of a value. `at` only moves over complete items.
class JsonCursor {
 public:
  JsonCursor(std::string_view text, JsonScanner::State& state) : text_(text), state_(state) {}

  // kNext once everything is read, kIncomplete if an item at the end is not complete.
  Step read() {
    while (at < text_.size()) {
      const Step step = read_item();
      if (step != Step::kNext) return step;
    }
    return Step::kNext;
  }

  size_t at = 0;

 private:
  Step read_item() {
    switch (state_.position) {
      case JsonPosition::kKeyString:
      case JsonPosition::kValueString:
        return read_in_string();
      default:
        return is_space(text_[at]) ? advance(state_.position) : read_structure();
    }
  }

  Step read_structure() {
    const char byte = text_[at];
    switch (state_.position) {
      case JsonPosition::kFirst:
        if (!state_.open.empty() && byte == state_.open.back()) return close();
        return is_in_array() ? read_value() : read_key();
      case JsonPosition::kKey:
        return read_key();
      case JsonPosition::kColon:
        return byte == ':' ? advance(JsonPosition::kValue) : Step::kStop;
      case JsonPosition::kAfter:
        if (!state_.open.empty() && byte == state_.open.back()) return close();
        if (byte != ',') return Step::kStop;
        return advance(is_in_array() ? JsonPosition::kValue : JsonPosition::kKey);
      default:
        return read_value();
    }
  }

  Step read_key() { return text_[at] == '"' ? advance(JsonPosition::kKeyString) : Step::kStop; }

  Step read_value() {
    const char byte = text_[at];
    if (byte == '{' || byte == '[') return open(byte == '{' ? '}' : ']');
    if (state_.open.empty()) return Step::kStop;
    return byte == '"' ? advance(JsonPosition::kValueString) : read_word();
  }

  Step read_word() {
    size_t end = at;
    while (end < text_.size() && is_word(text_[end])) ++end;
    if (end - at > kMaxWord) return Step::kStop;
    if (end == text_.size()) return Step::kIncomplete;
    if (!is_scalar(text_.substr(at, end - at))) return Step::kStop;
    at = end;
    state_.position = JsonPosition::kAfter;
    return Step::kNext;
  }

  Step read_in_string() {
    while (at < text_.size()) {
      const char byte = text_[at];
      if (byte == '"') {
        const bool key = state_.position == JsonPosition::kKeyString;
        return advance(key ? JsonPosition::kColon : JsonPosition::kAfter);
      }
      if (byte == '\\') return read_escape();
      if (static_cast<unsigned char>(byte) < 0x20) return Step::kStop;
      ++at;
    }
    return Step::kNext;
  }

  Step read_escape() {
    if (at + 1 == text_.size()) return Step::kIncomplete;
    const char letter = text_[at + 1];
    if (letter != 'u') {
      if (std::string_view("\"\\/bfnrt").find(letter) == std::string_view::npos) return Step::kStop;
      at += 2;
      return Step::kNext;
    }
    for (size_t digit = at + 2; digit < at + 6; ++digit) {
      if (digit == text_.size()) return Step::kIncomplete;
      if (!is_hex(text_[digit])) return Step::kStop;
    }
    at += 6;
    return Step::kNext;
  }

  Step advance(char position) {
    ++at;
    state_.position = position;
    return Step::kNext;
  }

  Step open(char closing) {
    if (state_.open.size() >= kMaxDepth) return Step::kStop;
    state_.open += closing;
    return advance(JsonPosition::kFirst);
  }

  // The end of the whole value ends the segment.
  Step close() {
    if (state_.open.size() == 1) return Step::kStop;
    state_.open.pop_back();
    return advance(JsonPosition::kAfter);
  }

  bool is_in_array() const { return !state_.open.empty() && state_.open.back() == ']'; }

  std::string_view text_;
  JsonScanner::State& state_;
};

}  // namespace

MarkerScanner::MarkerScanner(std::vector<std::string> markers) : markers_(std::move(markers)) {
  for (const std::string& marker : markers_) {
    if (marker.empty()) throw std::invalid_argument("a marker is empty");
    first_[static_cast<unsigned char>(marker.front())] = true;
  }
}

std::optional<size_t> MarkerScanner::before_marker(std::string_view text) const {
  for (size_t at = 0; at < text.size(); ++at) {
    if (!first_[static_cast<unsigned char>(text[at])]) continue;
    const std::string_view rest = text.substr(at);
    bool begun = false;
    for (const std::string_view marker : markers_) {
      if (rest.starts_with(marker)) return std::nullopt;
      begun = begun || marker.starts_with(rest);
    }
    if (begun) return at;
  }
  return text.size();
}

bool MarkerScanner::pass(std::string_view piece, std::string& shown) {
  std::string joined;
  std::string_view text = piece;
  if (!held_.empty()) {
    joined = held_;
    joined += piece;
    text = joined;
  }
  const std::optional<size_t> end = before_marker(text);
  if (!end) return false;
  size_t sure = *end;
  while (sure > 0 && is_space(text[sure - 1])) --sure;
  if (text.size() - sure > kMaxHeld) return false;
  std::string held(text.substr(sure));
  shown.append(text.substr(0, sure));
  held_ = std::move(held);
  return true;
}

JsonScanner::JsonScanner(std::string open, char position) : state_{std::move(open), position} {
  if (JsonPosition::kAll.find(position) == std::string_view::npos)
    throw std::invalid_argument("not a position within JSON");
}

bool JsonScanner::pass(std::string_view piece, std::string& shown) {
  std::string joined;
  std::string_view text = piece;
  if (!held_.empty()) {
    joined = held_;
    joined += piece;
    text = joined;
  }
  State state = state_;
  JsonCursor cursor(text, state);
  if (cursor.read() == Step::kStop) return false;
  std::string held(text.substr(cursor.at));
  shown.append(text.substr(0, cursor.at));
  held_ = std::move(held);
  state_ = std::move(state);
  return true;
}

}  // namespace triton
