#include "json_text.h"

#include <array>
#include <cstdint>

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

// What stands for a byte after a backslash: 0 for itself unescaped, 'u' for its number.
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

}  // namespace

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
  size_t plain = 0;  // where the part begins that is written as it is
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
