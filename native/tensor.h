// Tensors: datatypes, and the Python view of a tensor's memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "buffer.h"
#include "triton_api.h"

namespace triton {

namespace nb = nanobind;

struct DataTypeInfo {
  std::string_view name;  // Triton's, as in a model's metadata
  uint32_t byte_size;     // of one element; 0 for BYTES, whose elements have a length of their own
  const char* format;     // struct module's; nullptr where it has none (BF16 is shown as uint16)
};

const DataTypeInfo& info(DataType type);
DataType parse_data_type(std::string_view name);  // throws std::invalid_argument

// One output of a response, or one input of a request: metadata and memory.
struct Tensor {
  std::string name;
  DataType type = DataType::kInvalid;
  std::vector<int64_t> shape;
  BufferReference buffer;
  size_t byte_size = 0;
  bool placed = false;  // its bytes are in memory of the caller's, not in `buffer`

  const char* data() const { return buffer.data(); }
  size_t readable() const { return placed ? 0 : byte_size; }
};

// The first element: bytes for BYTES, otherwise a number or a bool. None if the tensor has no
// elements.
nb::object first_element(DataType type, const char* data, size_t byte_size);
// All elements in row-major order, flat.
nb::list all_elements(DataType type, const char* data, size_t byte_size);

nb::tuple shape_tuple(const std::vector<int64_t>& shape);
void bind_tensor(nb::module_& module);

}  // namespace triton
