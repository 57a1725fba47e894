// Custom metric families in the core's own scrape.
#pragma once

#include <nanobind/nanobind.h>

namespace triton {

void bind_metrics(nanobind::module_& module);

}  // namespace triton
