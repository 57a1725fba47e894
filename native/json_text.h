// Text as JSON writes it.
#pragma once

#include <string>
#include <string_view>

namespace triton {

// Whether the bytes are well-formed UTF-8 (RFC 3629: no surrogates, nothing overlong).
bool is_utf8(std::string_view text);

// Where to cut well-formed UTF-8 so that at most `most` bytes, 4 or more, stand before the cut.
size_t end_of_characters(std::string_view text, size_t most);

// Appends a JSON string: quotes, backslashes and control characters escaped, all else as it is.
void append_json(std::string& target, std::string_view text);

}  // namespace triton
