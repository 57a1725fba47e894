// The core as a Python object.
#pragma once

#include <nanobind/nanobind.h>

namespace triton {

void bind_server(nanobind::module_& module);

}  // namespace triton
