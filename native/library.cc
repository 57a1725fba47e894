#include "library.h"

#include <dlfcn.h>

#include <stdexcept>

#include "triton_api.h"

namespace triton {

ServerApi server_api;
BackendApi backend_api;

namespace {

std::string loaded_path;

std::string loader_error() {
  const char* reason = dlerror();
  return reason != nullptr ? reason : "unknown reason";
}

// A library cannot be opened before the libraries that it needs, so failed ones are tried again
// after the others.
void load_siblings(std::vector<std::string> pending) {
  while (!pending.empty()) {
    std::vector<std::string> failed;
    std::string reason;
    for (const std::string& path : pending) {
      if (dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
        reason = loader_error();
        failed.push_back(path);
      }
    }
    if (failed.size() == pending.size()) throw std::runtime_error(reason);
    pending = std::move(failed);
  }
}

template <typename Function>
void resolve(void* handle, const std::string& name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name.c_str()));
  if (function == nullptr) throw std::runtime_error(loader_error());
}

void resolve_all(void* handle) {
#define TRITON_RESOLVE(result, name, arguments) \
  resolve(handle, "TRITONSERVER_" #name, server_api.name);
  TRITON_SERVER_FUNCTIONS(TRITON_RESOLVE)
#undef TRITON_RESOLVE
#define TRITON_RESOLVE(result, name, arguments) \
  resolve(handle, "TRITONBACKEND_" #name, backend_api.name);
  TRITON_BACKEND_FUNCTIONS(TRITON_RESOLVE)
#undef TRITON_RESOLVE
}

void check_version(void* handle) {
  uint32_t major = 0;
  uint32_t minor = 0;
  resolve(handle, "TRITONSERVER_ApiVersion", server_api.ApiVersion);
  server_api.ApiVersion(&major, &minor);
  if (major == kApiMajor && minor >= kApiMinMinor) return;
  throw std::runtime_error("its C API version is " + std::to_string(major) + "." +
                           std::to_string(minor) + "; this gateway needs " +
                           std::to_string(kApiMajor) + "." + std::to_string(kApiMinMinor) +
                           " or a later minor version");
}

}  // namespace

std::pair<uint32_t, uint32_t> load_library(const std::string& library,
                                           const std::vector<std::string>& siblings) {
  if (!loaded_path.empty() && loaded_path != library) {
    throw std::runtime_error("another Triton library is loaded already: " + loaded_path);
  }
  if (loaded_path.empty()) {
    load_siblings(siblings);
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(loader_error());
    check_version(handle);  // first, for an old library lacks functions too, and its age says more
    resolve_all(handle);
    loaded_path = library;
  }
  uint32_t major = 0;
  uint32_t minor = 0;
  server_api.ApiVersion(&major, &minor);
  return {major, minor};
}

}  // namespace triton
