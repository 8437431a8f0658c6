// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/join_message.h"

#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/memory/crc32c.h"

namespace lockstep::comm::shm {
namespace {

std::string join_settings(const Hello& hello) {
  return fmt::format(
      "{} (WORLD_SIZE {}, LOCAL_WORLD_SIZE {}, LOCKSTEP_COMM {})",
      hello.over_gloo != 0 ? "Gloo" : "shared memory",
      hello.size,
      hello.local_size,
      hello.comm.data());
}

}  // namespace

Hello Hello::of(const RendezvousAddress& address, bool over_gloo) {
  Hello hello{
      .rank = address.rank,
      .size = address.size,
      .pid = ::getpid(),
      .local_size = address.local_size,
      .over_gloo = over_gloo ? 1 : 0,
      .master_addr_crc = crc32c(address.master_addr)};
  address.comm.copy(hello.comm.data(), hello.comm.size() - 1);
  return hello;
}

JoinResult JoinResult::of(JoinStatus status, const std::string& text) {
  JoinResult result;
  result.status = status;
  text.copy(result.text.data(), result.text.size() - 1);
  return result;
}

void JoinResult::throw_if_failed() const {
  if (status == JoinStatus::kNoRendezvous) {
    throw CommError("join", text.data());
  }
  if (status == JoinStatus::kNoMemory) {
    throw Error("join", text.data());
  }
}

std::string join_mismatch(const std::string& name, const Hello& rank_0, const Hello& other) {
  if (other.size != rank_0.size) {
    return fmt::format(
        "the ranks have different world sizes at '{}'; got {} on rank {}, {} on rank 0; set the "
        "same WORLD_SIZE on all ranks, or another MASTER_PORT if another job uses this one",
        name,
        other.size,
        other.rank,
        rank_0.size);
  }
  if (other.comm != rank_0.comm) {
    return fmt::format(
        "LOCKSTEP_COMM differs between ranks; got {} on rank {}, {} on rank 0; set the same value "
        "on all ranks",
        other.comm.data(),
        other.rank,
        rank_0.comm.data());
  }
  if (other.over_gloo != rank_0.over_gloo) {
    return fmt::format(
        "the ranks join over different transports; rank {} joins over {}, rank 0 over {}; set "
        "these variables to the same values on all ranks of a host",
        other.rank,
        join_settings(other),
        join_settings(rank_0));
  }
  return {};
}

}  // namespace lockstep::comm::shm
