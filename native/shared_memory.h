// Memory that other processes can name, mapped into this one.
#pragma once

#include <nanobind/nanobind.h>

namespace triton {

void bind_shared_memory(nanobind::module_& module);

}  // namespace triton
