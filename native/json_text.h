// Text as JSON writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace triton {

// Whether the bytes are well-formed UTF-8 (RFC 3629: no surrogates, nothing overlong).
bool is_utf8(std::string_view text);

// Where to cut well-formed UTF-8 so that at most `most` bytes, 4 or more, stand before the cut.
size_t end_of_characters(std::string_view text, size_t most);

// Appends a JSON string: quotes, backslashes and control characters escaped, all else as it is.
void append_json(std::string& target, std::string_view text);

// The range of the value of a member of a JSON object without white space around it.
// Nothing if there is no such member or more than one, if a key of the object has an escape (it may
// spell the name), or if the text is not an object. The values are skipped, not checked.
std::optional<std::pair<size_t, size_t>> json_member(std::string_view text, std::string_view name);

}  // namespace triton
