#include "logprob_frames.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <list>
#include <utility>
#include <vector>

#include "json_text.h"

namespace triton {

namespace {

constexpr size_t kMaxTables = 16;
constexpr size_t kMaxTokens = 32 * 1024;
constexpr double kLowest = -9999.0;  // OpenAI's value for minus infinity

struct Candidate {
  int32_t token_id;
  double logprob;
};

// The tokens of a row in order of their first mention, each once.
std::vector<Candidate> distinct(const int32_t* token_ids, const double* values, size_t width) {
  std::vector<Candidate> found;
  found.reserve(width);
  for (size_t at = 0; at < width; ++at) {
    const double logprob = std::max(values[at], kLowest);
    const auto known = std::find_if(found.begin(), found.end(), [&](const Candidate& each) {
      return each.token_id == token_ids[at];
    });
    if (known == found.end())
      found.push_back({token_ids[at], logprob});
    else
      known->logprob = logprob;
  }
  return found;
}

}  // namespace

std::shared_ptr<TokenTable> TokenTable::of(uint64_t key) {
  static auto* mutex = new std::mutex();
  static auto* tables = new std::list<std::pair<uint64_t, std::shared_ptr<TokenTable>>>();
  const std::lock_guard lock(*mutex);
  const auto known = std::find_if(tables->begin(), tables->end(),
                                  [&](const auto& each) { return each.first == key; });
  if (known != tables->end()) {
    tables->splice(tables->begin(), *tables, known);
  } else {
    tables->emplace_front(key, std::make_shared<TokenTable>());
    if (tables->size() > kMaxTables) tables->pop_back();
  }
  return tables->front().second;
}

void TokenTable::add(int32_t token_id, std::string before, std::string after) {
  const std::lock_guard lock(mutex_);
  if (tokens_.size() >= kMaxTokens) tokens_.clear();
  tokens_.insert_or_assign(token_id, TokenJson{std::move(before), std::move(after)});
}

LogprobFrames::LogprobFrames(std::string before, std::string between, std::string after,
                             std::shared_ptr<TokenTable> tokens, size_t top)
    : before_(std::move(before)),
      between_(std::move(between)),
      after_(std::move(after)),
      tokens_(std::move(tokens)),
      top_(top) {}

bool LogprobFrames::append(std::string& frames, std::string_view text, const LogprobRows& rows) {
  std::string frame = before_;
  append_json(frame, text);
  frame += between_;
  {
    const std::lock_guard lock(tokens_->mutex_);
    for (size_t row = 0; row < rows.positions; ++row) {
      if (row != 0) frame += ',';
      const size_t first = row * rows.width;
      if (!append_position(frame, rows.token_ids + first, rows.values + first, rows.width))
        return false;
    }
  }
  frame += after_;
  frames += frame;
  return true;
}

bool LogprobFrames::append_position(std::string& json, const int32_t* token_ids,
                                    const double* values, size_t width) {
  std::vector<Candidate> candidates = distinct(token_ids, values, width);
  const Candidate sampled = candidates.front();
  if (!append_entry(json, sampled.token_id, sampled.logprob)) return false;
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& one, const auto& other) { return one.logprob > other.logprob; });
  json += ",\"top_logprobs\":[";
  for (size_t at = 0; at < std::min(top_, candidates.size()); ++at) {
    if (at != 0) json += ',';
    if (!append_entry(json, candidates[at].token_id, candidates[at].logprob)) return false;
    json += '}';
  }
  json += "]}";
  return true;
}

bool LogprobFrames::append_entry(std::string& json, int32_t token_id, double value) {
  const auto known = tokens_->tokens_.find(token_id);
  if (known == tokens_->tokens_.end() || !std::isfinite(value)) return false;
  json += known->second.before;
  append_number(json, value);
  json += known->second.after;
  return true;
}

void append_number(std::string& json, double number) {
  std::array<char, 32> written;
  const auto end = std::to_chars(written.data(), written.data() + written.size(), std::fabs(number),
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view scientific(written.data(), static_cast<size_t>(end - written.data()));
  const size_t mark = scientific.find('e');
  std::string digits(1, scientific[0]);
  if (mark > 2) digits += scientific.substr(2, mark - 2);
  int exponent = 0;
  const bool negative = scientific[mark + 1] == '-';
  std::from_chars(scientific.data() + mark + 2, end, exponent);
  const int point = (negative ? -exponent : exponent) + 1;  // digits before the decimal point
  const int length = static_cast<int>(digits.size());
  if (std::signbit(number)) json += '-';
  if (length <= point && point <= 16) {
    json += digits;
    json.append(static_cast<size_t>(point - length), '0');
    json += ".0";
  } else if (0 < point && point <= 16) {
    json.append(digits, 0, static_cast<size_t>(point));
    json += '.';
    json.append(digits, static_cast<size_t>(point));
  } else if (-5 < point && point <= 0) {
    json += "0.";
    json.append(static_cast<size_t>(-point), '0');
    json += digits;
  } else {
    json += digits[0];
    if (length > 1) {
      json += '.';
      json.append(digits, 1);
    }
    json += 'e';
    json += std::to_string(point - 1);
  }
}

void bind_logprob_frames(nb::module_& module) {
  using nb::literals::operator""_a;
  module.def(
      "add_token",
      [](uint64_t vocabulary, int32_t token_id, nb::bytes before, nb::bytes after) {
        TokenTable::of(vocabulary)
            ->add(token_id, {before.c_str(), before.size()}, {after.c_str(), after.size()});
      },
      "vocabulary"_a, "token_id"_a, "before"_a, "after"_a,
      "The JSON of a token around its log probability, for `ResponseStream.relay_logprobs`.");
}

}  // namespace triton
