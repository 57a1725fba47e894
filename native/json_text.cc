#include "json_text.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace triton {

namespace {

// How many bytes a character that begins with `lead` has; 0 where none begins so.
int character_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// The second byte says whether a character is overlong, a surrogate, or beyond the last one.
bool is_second(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second < 0xC0;
    case 0xED:
      return second >= 0x80 && second < 0xA0;
    case 0xF0:
      return second >= 0x90 && second < 0xC0;
    case 0xF4:
      return second >= 0x80 && second < 0x90;
    default:
      return second >= 0x80 && second < 0xC0;
  }
}

// The character after the backslash that escapes a byte: 0 for itself unescaped, 'u' for its
// number.
constexpr std::array<char, 128> kEscapes = [] {
  std::array<char, 128> escapes{};
  for (int control = 0; control < 0x20; ++control) escapes[control] = 'u';
  escapes['\b'] = 'b';
  escapes['\t'] = 't';
  escapes['\n'] = 'n';
  escapes['\f'] = 'f';
  escapes['\r'] = 'r';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  return escapes;
}();

constexpr char kHex[] = "0123456789abcdef";

constexpr size_t kNone = std::string_view::npos;

// Each of these takes the position to begin at and returns the position to continue at; kNone if
// the text ends before.

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && std::strchr(" \t\n\r", text[at]) != nullptr && text[at] != 0) ++at;
  return at < text.size() ? at : kNone;
}

// `at` is the opening quote; returns the position after the string.
size_t skip_string(std::string_view text, size_t at) {
  for (size_t end = text.find('"', at + 1); end != kNone; end = text.find('"', end + 1)) {
    size_t slashes = 0;
    while (text[end - 1 - slashes] == '\\') ++slashes;  // ends at the opening quote at the latest
    if (slashes % 2 == 0) return end + 1;
  }
  return kNone;
}

size_t skip_value(std::string_view text, size_t at) {
  if (text[at] == '"') return skip_string(text, at);
  size_t depth = 0;
  while (at != kNone && at < text.size()) {
    switch (text[at]) {
      case '"':
        at = skip_string(text, at);
        if (at == kNone) return kNone;
        continue;
      case '{':
      case '[':
        ++depth;
        break;
      case '}':
      case ']':
        if (depth == 0) return at;  // of the object around a number or a word
        if (--depth == 0) return at + 1;
        break;
      case ',':
      case ' ':
      case '\t':
      case '\n':
      case '\r':
        if (depth == 0) return at;
        break;
      default:
        break;
    }
    ++at;
  }
  return kNone;
}

}  // namespace

std::optional<std::pair<size_t, size_t>> json_member(std::string_view text, std::string_view name) {
  std::optional<std::pair<size_t, size_t>> found;
  size_t at = skip_space(text, 0);
  if (at == kNone || text[at] != '{') return std::nullopt;
  do {
    at = skip_space(text, at + 1);
    if (at == kNone || text[at] != '"') return std::nullopt;
    const size_t key_end = skip_string(text, at);
    if (key_end == kNone) return std::nullopt;
    const std::string_view key = text.substr(at + 1, key_end - at - 2);
    at = skip_space(text, key_end);
    if (at == kNone || text[at] != ':' || key.find('\\') != kNone) return std::nullopt;
    const size_t begin = skip_space(text, at + 1);
    const size_t end = begin == kNone ? kNone : skip_value(text, begin);
    if (end == kNone) return std::nullopt;
    if (key == name) {
      if (found) return std::nullopt;
      found.emplace(begin, end);
    }
    at = skip_space(text, end);
  } while (at != kNone && text[at] == ',');
  return at != kNone && text[at] == '}' ? found : std::nullopt;
}

bool is_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const size_t size = text.size();
  for (size_t at = 0; at < size;) {
    const uint8_t lead = bytes[at];
    const int length = character_length(lead);
    if (length == 0 || at + length > size) return false;
    if (length > 1 && !is_second(lead, bytes[at + 1])) return false;
    for (int rest = 2; rest < length; ++rest) {
      if ((bytes[at + rest] & 0xC0) != 0x80) return false;
    }
    at += length;
  }
  return true;
}

size_t end_of_characters(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  while ((static_cast<uint8_t>(text[most]) & 0xC0) == 0x80) --most;
  return most;
}

void append_json(std::string& target, std::string_view text) {
  target += '"';
  size_t plain = 0;  // begin of the part that is written unchanged
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    const char escape = byte < 0x80 ? kEscapes[byte] : 0;
    if (escape == 0) continue;
    target.append(text, plain, at - plain);
    plain = at + 1;
    target += '\\';
    target += escape;
    if (escape != 'u') continue;
    target += "00";
    target += kHex[byte >> 4];
    target += kHex[byte & 15];
  }
  target.append(text, plain, text.size() - plain);
  target += '"';
}

}  // namespace triton
