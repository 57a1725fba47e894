// Frames of text with log probabilities, from the arrays of an engine.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace triton {

namespace nb = nanobind;

// The JSON of a token before and after its log probability.
struct TokenJson {
  std::string before;
  std::string after;
};

// The tokens of one vocabulary that are known so far. Bounded: it begins again when it is full.
class TokenTable {
 public:
  // The table with this key; the least recently used ones are dropped.
  static std::shared_ptr<TokenTable> of(uint64_t key);

  void add(int32_t token_id, std::string before, std::string after);

 private:
  friend class LogprobFrames;
  std::mutex mutex_;
  std::unordered_map<int32_t, TokenJson> tokens_;
};

// An engine's arrays for the tokens of one response: for each position a row, with the sampled
// token first, which may occur again among the likeliest.
struct LogprobRows {
  const int32_t* token_ids = nullptr;
  const double* values = nullptr;
  size_t positions = 0;
  size_t width = 0;
};

// Makes the frames of one stream.
class LogprobFrames {
 public:
  // A frame is the text between the first two parts and the log probabilities between the last
  // two; `top` alternatives for each token.
  LogprobFrames(std::string before, std::string between, std::string after,
                std::shared_ptr<TokenTable> tokens, size_t top);
  // Appends the frame of a text. False if a token is unknown or a number is not finite: nothing
  // has been appended then.
  bool append(std::string& frames, std::string_view text, const LogprobRows& rows);

 private:
  bool append_position(std::string& json, const int32_t* token_ids, const double* values,
                       size_t width);
  bool append_entry(std::string& json, int32_t token_id, double value);

  const std::string before_;
  const std::string between_;
  const std::string after_;
  const std::shared_ptr<TokenTable> tokens_;
  const size_t top_;
};

// A number as orjson writes it.
void append_number(std::string& json, double number);

void bind_logprob_frames(nb::module_& module);

}  // namespace triton
