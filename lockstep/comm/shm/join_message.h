// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lockstep/comm/shm/rendezvous.h"

namespace lockstep::comm::shm {

// A rendezvous has these messages, in this order:
// - each rank sends its Hello;
// - rank 0 sends a JoinResult with the memory;
// - each rank sends a JoinResult: whether it has mapped the memory;
// - rank 0 sends the final JoinResult.

constexpr uint32_t kHelloMagic = 0x336d6b6cU;  // "lkm3"

/// Holds the first message of a rank.
struct Hello {
  uint32_t magic = kHelloMagic;
  int32_t rank = 0;
  int32_t size = 0;
  /// The process id in the sender's namespace. If the kernel reports another one to rank 0, the
  /// ranks are in different namespaces and could not watch each other.
  int32_t pid = 0;
  int32_t local_size = 0;
  /// 1: the rank uses Gloo; it sends its Hello only so that rank 0 can compare settings.
  int32_t over_gloo = 0;
  uint32_t master_addr_crc = 0;  ///< CRC-32C of MASTER_ADDR.
  std::array<char, 8> comm{};    ///< LOCKSTEP_COMM.

  static Hello of(const RendezvousAddress& address, bool over_gloo);
};

enum class JoinStatus : int32_t { kSuccess, kNoRendezvous, kNoMemory };

/// Holds a rank's result of joining, and the reason of a failure.
struct JoinResult {
  JoinStatus status = JoinStatus::kSuccess;
  std::array<char, 1000> text{};

  static JoinResult of(JoinStatus status, const std::string& text);
  /// Throws CommError for kNoRendezvous, Error for kNoMemory.
  void throw_if_failed() const;
};

/// Returns the reason why the rank of `other` cannot join rank 0; empty if it can. `name`: the name
/// of the rendezvous address.
std::string join_mismatch(const std::string& name, const Hello& rank_0, const Hello& other);

}  // namespace lockstep::comm::shm
