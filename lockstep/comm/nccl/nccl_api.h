// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::comm {

/// NCCL's functions, found when they are needed: in the program itself, where libtorch has brought
/// them along, else in libnccl.so.2. So this library compiles, and is tested, without CUDA's
/// headers, and one build serves machines with GPUs and without.
///
/// The types and numbers are those of nccl.h, which NCCL has kept since 2.14 (August 2022) up to
/// 2.32, the newest looked at.
struct NcclApi {
  using Comm = struct OpaqueNcclComm*;
  using Stream = void*;  ///< cudaStream_t.
  using Result = int;
  struct UniqueId {
    char bytes[128];
  };
  struct Config {  ///< As of 2.14; NCCL takes the size for its version.
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
  };
  enum DataType { kInt8 = 0, kUint8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7 };
  enum MoreDataTypes { kFloat64 = 8, kBfloat16 = 9 };
  enum RedOp { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };
  static constexpr Result kSuccess = 0;
  static constexpr Result kInProgress = 7;

  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm*, int size, UniqueId, int rank, Config*);
  Result (*comm_destroy)(Comm);
  Result (*comm_abort)(Comm);
  Result (*comm_get_async_error)(Comm, Result*);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_reduce)(const void*, void*, size_t count, int type, int op, Comm, Stream);
  Result (*reduce_scatter)(const void*, void*, size_t count, int type, int op, Comm, Stream);
  Result (*all_gather)(const void*, void*, size_t count, int type, Comm, Stream);
  Result (*broadcast)(const void*, void*, size_t count, int type, int root, Comm, Stream);
  Result (*send)(const void*, size_t count, int type, int peer, Comm, Stream);
  Result (*recv)(void*, size_t count, int type, int peer, Comm, Stream);

  /// The one of this process, of LOCKSTEP_NCCL_LIBRARY if that is set; null, with the reason in
  /// `why`, where there is none, or one before 2.14. Thread-safe.
  static const NcclApi* find(std::string& why);
  /// That of one file; nothing of it is unloaded again. Error, with the reason.
  static NcclApi load(const std::string& path);
  /// "2.27.5".
  std::string version() const;
};

}  // namespace lockstep::comm
