// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::comm {

/// Holds NCCL's functions, loaded at run time: from the program, if libtorch has linked them, else
/// from libnccl.so.2.
///
/// Lockstep therefore compiles, and is tested, without CUDA's headers, and one build serves
/// machines with and without GPUs.
///
/// Types and constants are those of `<nccl.h>`, unchanged from 2.14 (August 2022) to 2.32, the
/// newest version checked.
struct NcclApi {
  using Comm = struct OpaqueNcclComm*;
  using Stream = void*;  ///< cudaStream_t.
  using Result = int;
  struct UniqueId {
    char bytes[128];
  };
  struct Config {  ///< As of 2.14; NCCL derives its version from the size.
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

  /// Returns this process's NCCL, or that of LOCKSTEP_NCCL_LIBRARY if set. Returns null, with the
  /// reason in `why`, if none is found, or it is older than 2.14. Thread-safe.
  static const NcclApi* find(std::string& why);
  /// Loads NCCL from one file, permanently. Throws Error with the reason if it cannot.
  static NcclApi load(const std::string& path);
  /// Returns "2.27.5".
  std::string version() const;
};

}  // namespace lockstep::comm
