// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <sys/types.h>

#include "lockstep/base/unique_fd.h"

namespace lockstep::comm::shm {

// Sockets between processes of one host that are named in the kernel only (Linux's abstract
// namespace), so that nothing is left behind, and that can pass an open file on. Messages stay
// whole. Nothing here throws CommError; a peer that is gone is `false` or nothing.

using Deadline = std::chrono::steady_clock::time_point;

/// Listens under `name`, at most 100 bytes. Not open, with errno EADDRINUSE, if somebody else does.
UniqueFd listen_local(const std::string& name);
/// Not open if nobody listens.
UniqueFd connect_local(const std::string& name);

/// Who has opened the other end, by the kernel's word.
struct Peer {
  pid_t pid;
  uid_t user;
};
Peer peer_of(int socket);

bool send_message(int socket, const void* data, size_t bytes, int file = -1);

/// Whether there is something to read before `deadline`: a message, or the end.
bool readable(int socket, Deadline deadline);

/// Reads a message of exactly `bytes`, which must be there; false for any other, and for the end.
/// `file`, if given, gets what was passed along.
bool receive_message(int socket, void* data, size_t bytes, UniqueFd* file = nullptr);

}  // namespace lockstep::comm::shm
