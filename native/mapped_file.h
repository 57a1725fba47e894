// A part of a file in memory, shared with the other processes that map it.
#pragma once

#include <nanobind/nanobind.h>

namespace triton {

void bind_mapped_file(nanobind::module_& module);

}  // namespace triton
