// How far a stream's text may be shown before its parser has read it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace triton {

// Reads the text of one segment (content, reasoning, a call's arguments) piece by piece. It shows
// exactly what the parser would show of it, and stops where the segment may end.
class TextScanner {
 public:
  virtual ~TextScanner() = default;
  // Appends the certain part to the text shown and holds the rest back. False if only the parser
  // can interpret the piece; nothing has changed then. May throw std::bad_alloc: nothing has
  // changed then either.
  virtual bool pass(std::string_view piece, std::string& shown) = 0;
};

// Text up to one of some literals. White space at the end waits for the next text: before a marker
// it belongs to the marker.
class MarkerScanner : public TextScanner {
 public:
  explicit MarkerScanner(std::vector<std::string> markers);
  bool pass(std::string_view piece, std::string& shown) override;

 private:
  // The position from which the text may become a marker, its end if none may; nothing if it
  // contains a marker.
  std::optional<size_t> before_marker(std::string_view text) const;

  std::vector<std::string> markers_;
  std::array<bool, 256> first_{};  // bytes with which a marker begins
  std::string held_;
};

// A JSON value up to its end. Words and escapes wait until they are complete. Text that is not
// strict JSON, which a parser may rewrite, is not passed.
class JsonScanner : public TextScanner {
 public:
  // `open` has the closing bracket of each open object and array, `position` one letter: the
  // part of JSON to which the next character belongs (see JsonPosition).
  JsonScanner(std::string open, char position);
  bool pass(std::string_view piece, std::string& shown) override;

  struct State {
    std::string open;
    char position;
  };

 private:
  State state_;
  std::string held_;
};

}  // namespace triton
