// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/nccl/nccl_api.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/rank.h"

namespace lockstep::comm {
namespace {

constexpr int kFirstVersion = 21400;

template <typename Function>
void find_in(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw Error("nccl", fmt::format("the library lacks {}; expected NCCL 2.14 or later", name));
  }
}

NcclApi functions_in(void* library) {
  NcclApi api{};
  find_in(library, "ncclGetVersion", api.get_version);
  int version = 0;
  if (api.get_version(&version) != NcclApi::kSuccess || version < kFirstVersion) {
    throw Error(
        "nccl",
        fmt::format("NCCL is too old; got version code {}, expected 21400 or more", version));
  }
  find_in(library, "ncclGetUniqueId", api.get_unique_id);
  find_in(library, "ncclCommInitRankConfig", api.comm_init_rank_config);
  find_in(library, "ncclCommDestroy", api.comm_destroy);
  find_in(library, "ncclCommAbort", api.comm_abort);
  find_in(library, "ncclCommGetAsyncError", api.comm_get_async_error);
  find_in(library, "ncclGetErrorString", api.get_error_string);
  find_in(library, "ncclGetLastError", api.get_last_error);
  find_in(library, "ncclGroupStart", api.group_start);
  find_in(library, "ncclGroupEnd", api.group_end);
  find_in(library, "ncclAllReduce", api.all_reduce);
  find_in(library, "ncclReduceScatter", api.reduce_scatter);
  find_in(library, "ncclAllGather", api.all_gather);
  find_in(library, "ncclBroadcast", api.broadcast);
  find_in(library, "ncclSend", api.send);
  find_in(library, "ncclRecv", api.recv);
  return api;
}

/// Loads the NCCL that libtorch has linked, statically or dynamically; else libnccl.so.2.
NcclApi load_any() {
  if (::dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) {
    try {
      return functions_in(RTLD_DEFAULT);
    } catch (const Error& error) {
      log_debug(
          "the NCCL linked into this program cannot be used: " + without_rank_suffix(error.what()));
    }
  }
  return NcclApi::load("libnccl.so.2");
}

}  // namespace

NcclApi NcclApi::load(const std::string& path) {
  // The functions of a second NCCL would call those of libtorch's, which have the same names.
  const bool is_second = ::dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr;
  const int own_names_first = is_second ? RTLD_DEEPBIND : 0;
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | own_names_first);
  if (library == nullptr) {
    throw Error("nccl", fmt::format("cannot load {}: {}", path, ::dlerror()));
  }
  return functions_in(library);
}

const NcclApi* NcclApi::find(std::string& why) {
  struct Found {
    NcclApi api{};
    std::string why;
  };
  static const Found found = [] {
    Found result;
    try {
      const auto path = Environment::process().text("LOCKSTEP_NCCL_LIBRARY");
      result.api = path ? load(*path) : load_any();
    } catch (const Error& error) {
      result.why = without_rank_suffix(error.what());
    }
    return result;
  }();
  why = found.why;
  return why.empty() ? &found.api : nullptr;
}

std::string NcclApi::version() const {
  int code = 0;
  get_version(&code);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace lockstep::comm
