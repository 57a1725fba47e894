// Every option of the core, collected before the server starts.
#pragma once

#include <nanobind/nanobind.h>

#include "triton_api.h"

namespace triton {

class Options {
 public:
  Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  ~Options();
  ServerOptions* get() const { return options_; }

 private:
  ServerOptions* options_ = nullptr;
};

void bind_options(nanobind::module_& module);

}  // namespace triton
