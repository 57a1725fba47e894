// Loads libtritonserver and resolves the functions of triton_api.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace triton {

// Loads `siblings` (in passes, since they need one another and have no usable RPATH), then
// `library`, and resolves every function. Returns the API version. Throws std::runtime_error with
// the loader's reason. A second call with the same path does nothing; with another path it throws.
std::pair<uint32_t, uint32_t> load_library(const std::string& library,
                                           const std::vector<std::string>& siblings);

}  // namespace triton
