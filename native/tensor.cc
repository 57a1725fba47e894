#include "tensor.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <stdexcept>

namespace triton {

LiveCounts live;

namespace {

constexpr std::array<DataTypeInfo, 15> kDataTypes = {{{"INVALID", 0, nullptr},
                                                      {"BOOL", 1, "?"},
                                                      {"UINT8", 1, "B"},
                                                      {"UINT16", 2, "H"},
                                                      {"UINT32", 4, "I"},
                                                      {"UINT64", 8, "Q"},
                                                      {"INT8", 1, "b"},
                                                      {"INT16", 2, "h"},
                                                      {"INT32", 4, "i"},
                                                      {"INT64", 8, "q"},
                                                      {"FP16", 2, "e"},
                                                      {"FP32", 4, "f"},
                                                      {"FP64", 8, "d"},
                                                      {"BYTES", 0, "B"},
                                                      {"BF16", 2, "H"}}};

template <typename T>
T read(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

double half_to_double(const char* data) { return PyFloat_Unpack2(data, /*little endian*/ 1); }

double bfloat_to_double(const char* data) {
  const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(data)) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

nb::object element(DataType type, const char* data) {
  switch (type) {
    case DataType::kBool:
      return nb::bool_(read<uint8_t>(data) != 0);
    case DataType::kUint8:
      return nb::int_(read<uint8_t>(data));
    case DataType::kUint16:
      return nb::int_(read<uint16_t>(data));
    case DataType::kUint32:
      return nb::int_(read<uint32_t>(data));
    case DataType::kUint64:
      return nb::int_(read<uint64_t>(data));
    case DataType::kInt8:
      return nb::int_(read<int8_t>(data));
    case DataType::kInt16:
      return nb::int_(read<int16_t>(data));
    case DataType::kInt32:
      return nb::int_(read<int32_t>(data));
    case DataType::kInt64:
      return nb::int_(read<int64_t>(data));
    case DataType::kFp16:
      return nb::float_(half_to_double(data));
    case DataType::kFp32:
      return nb::float_(read<float>(data));
    case DataType::kFp64:
      return nb::float_(read<double>(data));
    case DataType::kBf16:
      return nb::float_(bfloat_to_double(data));
    default:
      throw std::invalid_argument("the tensor has no datatype");
  }
}

// A BYTES element is a 4-byte little-endian length and that many bytes. Moves `data` behind it.
nb::bytes take_bytes_element(const char*& data, const char* end) {
  uint32_t length = 0;
  if (end - data < 4) throw std::invalid_argument("a BYTES tensor ends within an element's length");
  std::memcpy(&length, data, 4);
  data += 4;
  if (static_cast<size_t>(end - data) < length)
    throw std::invalid_argument("a BYTES tensor ends within an element");
  nb::bytes taken(data, length);
  data += length;
  return taken;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Tensor* tensor = nb::inst_ptr<Tensor>(nb::handle(self));
  if ((flags & PyBUF_WRITABLE) != 0) {
    PyErr_SetString(PyExc_BufferError, "a tensor is read-only");
    view->obj = nullptr;
    return -1;
  }
  if (tensor->placed) {
    PyErr_SetString(PyExc_BufferError, "the tensor's bytes are in the caller's memory");
    view->obj = nullptr;
    return -1;
  }
  const bool bytes = tensor->type == DataType::kBytes;
  const Py_ssize_t item_size = bytes ? 1 : static_cast<Py_ssize_t>(info(tensor->type).byte_size);
  if (item_size == 0) {
    PyErr_SetString(PyExc_BufferError, "the tensor has no datatype");
    view->obj = nullptr;
    return -1;
  }
  // Flat and one-dimensional: shape is an attribute, and readers of the buffer (base64, numpy)
  // wants the run of bytes.
  auto* extent =
      new Py_ssize_t[2]{static_cast<Py_ssize_t>(tensor->byte_size) / item_size, item_size};
  static char nothing = 0;
  view->buf = tensor->byte_size != 0 ? const_cast<char*>(tensor->data()) : &nothing;
  view->obj = Py_NewRef(self);
  view->len = static_cast<Py_ssize_t>(tensor->byte_size);
  view->readonly = 1;
  view->itemsize = item_size;
  view->format = const_cast<char*>(info(tensor->type).format);
  view->ndim = 1;
  view->shape = extent;
  view->strides = extent + 1;
  view->suboffsets = nullptr;
  view->internal = extent;
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) {
  delete[] static_cast<Py_ssize_t*>(view->internal);
}

PyType_Slot tensor_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

}  // namespace

const DataTypeInfo& info(DataType type) { return kDataTypes.at(static_cast<size_t>(type)); }

DataType parse_data_type(std::string_view name) {
  for (size_t index = 1; index < kDataTypes.size(); ++index) {
    if (kDataTypes[index].name == name) return static_cast<DataType>(index);
  }
  throw std::invalid_argument("unknown Triton datatype: " + std::string(name));
}

nb::object first_element(DataType type, const char* data, size_t byte_size) {
  if (byte_size == 0) return nb::none();
  if (type == DataType::kBytes) return take_bytes_element(data, data + byte_size);
  if (byte_size < info(type).byte_size)
    throw std::invalid_argument("a tensor ends within an element");
  return element(type, data);
}

nb::list all_elements(DataType type, const char* data, size_t byte_size) {
  nb::list elements;
  const char* end = data + byte_size;
  const uint32_t step = info(type).byte_size;
  while (data != end) {
    if (type == DataType::kBytes) {
      elements.append(take_bytes_element(data, end));
    } else {
      if (static_cast<size_t>(end - data) < step)
        throw std::invalid_argument("a tensor ends within an element");
      elements.append(element(type, data));
      data += step;
    }
  }
  return elements;
}

nb::tuple shape_tuple(const std::vector<int64_t>& shape) {
  nb::list dimensions;
  for (int64_t dimension : shape) dimensions.append(dimension);
  return nb::tuple(dimensions);
}

void bind_tensor(nb::module_& module) {
  nb::class_<Tensor>(
      module, "Tensor", nb::type_slots(tensor_slots),
      "A tensor's memory, read-only: the buffer protocol shows it flat, without a copy.")
      .def_ro("name", &Tensor::name)
      .def_prop_ro("dtype", [](const Tensor& self) { return std::string(info(self.type).name); })
      .def_prop_ro(
          "shape", [](const Tensor& self) { return shape_tuple(self.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_ro("nbytes", &Tensor::byte_size)
      .def(
          "item",
          [](const Tensor& self) { return first_element(self.type, self.data(), self.readable()); },
          nb::sig("def item(self) -> typing.Any"))
      .def(
          "tolist",
          [](const Tensor& self) { return all_elements(self.type, self.data(), self.readable()); },
          nb::sig("def tolist(self) -> list[typing.Any]"));
}

}  // namespace triton
